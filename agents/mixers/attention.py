"""Causal self-attention with a key-value cache: Decision Transformer's token mixer (Chen et al. 2021).

Shape suffixes: B batch, N tokens, M cached tokens, C channels, H heads, D = C / H channels a head.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .base import HeadMixer
from .forms import Linear, MixerGraph, Nodes, beside, exact, layer


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

    recordable, exported = True, True

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__(width, heads)
        self.dropout = dropout

    def graph(self) -> AttentionGraph:
        return AttentionGraph(self.query, self.key, self.value, self.output, self.heads)

    def mix(
        self, x: Tensor, state: AttentionState | None, *, starts: Tensor | None = None, keep: slice | None = None
    ) -> tuple[Tensor, Tensor, AttentionState]:
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


class AttentionGraph(MixerGraph):
    """Self-attention over a window; its key-value cache grows, which a graph's state cannot."""

    parts = ()

    def __init__(self, query: nn.Linear, key: nn.Linear, value: nn.Linear, output: nn.Linear, heads: int) -> None:
        self.output, self.heads, self.size = output, heads, output.in_features // heads
        self.pairs = beside(layer(key), layer(value)).less(exact(output.bias))
        self.query = Linear(*(part / math.sqrt(self.size) for part in layer(query))).less(exact(output.bias))

    def refusal(self, rollout: str, tokens: int) -> str | None:
        if rollout == "window":
            return None
        return f"has no state of constant size to export in the rollout {rollout}; use --rollout window"

    def attend(self, nodes: Nodes, x: str, queried: str, mask: str, length: int) -> str:
        heads, size = self.heads, self.size
        pairs = nodes.reshape(nodes.linear(x, self.pairs), -1, length, 2 * heads, size)
        keys, values = nodes.split(nodes.add("Transpose", pairs, perm=[0, 2, 1, 3]), [heads, heads], 1)
        queries = nodes.reshape(nodes.linear(queried, self.query), -1, length if queried == x else 1, heads, size)
        queries = nodes.add("Transpose", queries, perm=[0, 2, 1, 3])
        scores = nodes.add("MatMul", queries, nodes.add("Transpose", keys, perm=[0, 1, 3, 2]))
        mixed = nodes.add("MatMul", nodes.add("Softmax", nodes.add("Add", scores, mask), axis=-1), values)
        return nodes.reshape(nodes.add("Transpose", mixed, perm=[0, 2, 1, 3]), -1, heads * size)
