"""Causal self-attention with a key-value cache: Decision Transformer's token mixer (Chen et al. 2021).

Shape suffixes: B batch, N tokens, M cached tokens, C channels, H heads, D = C / H channels a head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .base import HeadMixer


class AttentionState(NamedTuple):
    """The key-value cache: it grows by one row a token.

    Attributes:
        keys: shape (B, H, M, D).
        values: shape (B, H, M, D).
    """

    keys: Tensor
    values: Tensor


class Attention(HeadMixer):
    """Masked softmax self-attention, y_k = W_o Attention(W_q x_k, x_1..k).

    Args:
        width: C, channels of a token.
        heads: H, must divide C. Scores are scaled by 1 / sqrt(D).
        dropout: probability, on the attention weights (min-decision-transformer).
        rems: of no effect: every mixer is built alike.
    """

    recordable = True

    def __init__(self, width: int, heads: int, dropout: float = 0.0, rems: object = None) -> None:
        """Builds the projections; raises ValueError if `heads` does not divide `width`."""
        super().__init__(width, heads)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.dropout = dropout

    def mix(
        self, x: Tensor, state: AttentionState | None, *, starts: Tensor | None = None, keep: slice | None = None
    ) -> tuple[Tensor, Tensor, AttentionState]:
        """`forward` up to the heads' outputs where kept (B, H, N', D); also all values (B, H, N, D) and the cache."""
        keep = keep if keep is not None else slice(None)
        queries = self._heads(self.query(x[:, keep]))
        keys, values = self._heads(self.key(x)), self._heads(self.value(x))
        cache = AttentionState(keys, values)
        if state is not None:
            cache = AttentionState(torch.cat([state.keys, keys], -2), torch.cat([state.values, values], -2))
        dropout = self.dropout if self.training else 0.0
        plain = state is None and starts is None and keep == slice(None)
        mixed = F.scaled_dot_product_attention(
            queries,
            *cache,
            attn_mask=None if plain else _causal_mask(x.shape[1], cache.keys.shape[-2], starts, x.device)[..., keep, :],
            is_causal=plain,
            dropout_p=dropout,
        )
        return mixed, values, cache

    def mix_step(self, x: Tensor, state: AttentionState) -> tuple[Tensor, Tensor, AttentionState]:
        """`step` up to the heads' outputs (B, H, D); the value (B, H, D); the new cache."""
        mixed, values, state = self.mix(x.unsqueeze(1), state)
        return mixed.squeeze(2), values.squeeze(2), state

    def initial_state(self, batch_size: int) -> AttentionState:
        """The cache before any token: M = 0."""
        empty = self.key.weight.new_zeros(batch_size, self.heads, 0, self.head_dim)
        return AttentionState(empty, empty)

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
        return heads


def _causal_mask(n: int, total: int, starts: Tensor | None, device: torch.device) -> Tensor:
    """True where attended to, (..., N, M + N): cached tokens and own ones up to itself, of the same sequence."""
    cached = total - n
    causal = torch.ones(n, total, dtype=torch.bool, device=device).tril(cached)
    if starts is None:
        return causal
    own = starts.cumsum(-1)
    every = F.pad(own, (cached, 0))  # the cached tokens belong to sequence 0: the one before the first start
    return (causal & (own.unsqueeze(-1) == every.unsqueeze(-2))).unsqueeze(1)
