"""Causal self-attention with a key-value cache: Decision Transformer's token mixer (Chen et al. 2021).

Shape suffixes: B batch, N tokens, M cached tokens, C channels, H heads, D = C / H channels a head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..scan.rows import State
from .base import HeadMixer, Mixed


class AttentionState(NamedTuple):
    """The key-value cache, keys and values (B, H, M, D): it grows by one row a token."""

    keys: Tensor
    values: Tensor


class Attention(HeadMixer):
    """Masked softmax self-attention, y_k = W_o Attention(W_q x_k, x_1..k).

    Args:
        width: C, channels of a token.
        heads: H, must divide C. Scores are scaled by 1 / sqrt(D).
        dropout: probability, on the attention weights (min-decision-transformer).
    """

    capturable = True

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__(width, heads)
        self.dropout = dropout

    def mix(self, x: Tensor, state: State | None, starts: Tensor | None = None, keep: slice | None = None) -> Mixed:
        keep = keep if keep is not None else slice(None)
        queries = self.split(self.query(x[:, keep]))
        cache = own = AttentionState(self.split(self.key(x)), self.split(self.value(x)))
        if state is not None:
            cache = AttentionState(torch.cat([state.keys, own.keys], -2), torch.cat([state.values, own.values], -2))
        plain = state is None and starts is None and keep == slice(None)
        mixed = F.scaled_dot_product_attention(
            queries,
            *cache,
            attn_mask=None if plain else _causal_mask(x.shape[1], cache.keys.shape[-2], starts, x.device)[..., keep, :],
            is_causal=plain,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return mixed, own.values, cache

    def initial_state(self, batch_size: int) -> AttentionState:
        empty = self.key.weight.new_zeros(batch_size, self.heads, 0, self.head_dim)
        return AttentionState(empty, empty)


def _causal_mask(n: int, total: int, starts: Tensor | None, device: torch.device) -> Tensor:
    # True where attended to, (..., N, M + N): cached tokens and own ones up to itself, of the same sequence.
    cached = total - n
    causal = torch.ones(n, total, dtype=torch.bool, device=device).tril(cached)
    if starts is None:
        return causal
    own = starts.cumsum(-1)
    every = F.pad(own, (cached, 0))  # the cached tokens belong to sequence 0: the one before the first start
    return (causal & (own.unsqueeze(-1) == every.unsqueeze(-2))).unsqueeze(1)
