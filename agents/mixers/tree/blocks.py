"""Keys and values in a binary tree of block sums; `kernels/tree_attention.py` looks into a part of it.

*High Attention Scores And Where To Find Them* (Menet, Choi, de Viragh, Chettata), sections 2.1, 2.2 and 2.4. A node
holds the sum of the keys and of the values of a block of neighbouring tokens (equation 1). Algorithm 1 keeps a set of
disjoint blocks, the buds; it replaces one by its halves until there are T of them, and then gives every token of a bud
the same score, the mean of their true ones (so the geometric mean of the attention weights). With as many buds as
tokens this is softmax attention.

Where the paper's text leaves something open, or is misprinted:

* Any number of tokens. Only blocks of 2^h tokens that begin at a multiple of 2^h are stored, each written once, when
  its last token arrives. The one bud that need not be such a block holds the newest token: it is what the others leave
  of the whole, by equation (2) for keys and likewise for values. Its left half is always a stored block.
* The weights of the leaves add up to 1: a bud of |n| tokens counts |n| times in the denominator too. As algorithm 1 is
  printed, it counts once, and a constant value would not come out as itself.
* Sums and alignments are float64: a leaf's alignment comes from its block's by subtraction, and float32 would leave the
  error of the whole sum in the one score.

Shape suffixes: B batch, H heads, D channels of a key or value, F channels of a key and its features.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

DTYPE = torch.float64


class TreeState(NamedTuple):
    """The blocks of B sequences of one length, all heads in one tree, in the processor's memory.

    A value, though it shares the memory of its blocks with its successor.

    Attributes:
        keys: sums of keys and their features, (B, 2 M, H, F), M a power of two and at least `length`; the blocks of 2^h
            tokens lie in order from row 2 M - 2 M / 2^h on.
        values: sums of values, (B, 2 M, H, D), likewise.
        key_total: sum over all tokens, (B, H, F).
        value_total: likewise, (B, H, D).
        written: tokens that are in the shared memory, (B,), of this state or one that followed it.
        length: tokens in this state.
    """

    keys: Tensor
    values: Tensor
    key_total: Tensor
    value_total: Tensor
    written: Tensor
    length: int

    @staticmethod
    def empty(batch: int, heads: int, key_dim: int, dim: int) -> TreeState:
        """The tree before any token."""
        keys, values = (torch.zeros(batch, 2, heads, size, dtype=DTYPE) for size in (key_dim, dim))
        totals = torch.zeros_like(keys[:, 0]), torch.zeros_like(values[:, 0])
        return TreeState(keys, values, *totals, torch.zeros(batch, dtype=torch.long), 0)

    def append(self, keys: Tensor, values: Tensor) -> TreeState:
        """The tree with one more token, keys (B, H, F) and values (B, H, D): two blocks are written on average."""
        state = self._writable()
        for nodes, token in ((state.keys, keys), (state.values, values)):
            nodes[:, self.length] = token.to(DTYPE)
            level, position = 1, self.length
            while position & 1:
                position >>= 1
                child = _row(nodes.shape[1], level - 1, 2 * position)
                nodes[:, _row(nodes.shape[1], level, position)] = nodes[:, child] + nodes[:, child + 1]
                level += 1
        state.written.fill_(self.length + 1)
        return state._replace(
            key_total=self.key_total + keys, value_total=self.value_total + values, length=self.length + 1
        )

    def _writable(self) -> TreeState:
        """A state whose memory has room for a token: a copy where this one's is full or has been written on."""
        rows = self.keys.shape[1]
        full = 2 * self.length == rows
        if not full and bool((self.written == self.length).all()):
            return self
        keys, values = (_resized(nodes, rows * 2 if full else rows) for nodes in (self.keys, self.values))
        return self._replace(keys=keys, values=values, written=self.written.clone())


def _row(rows: int, level: int, position: int) -> int:
    """Where a block of 2^level tokens lies among 2 M rows."""
    return rows - (rows >> level) + position


def _resized(nodes: Tensor, rows: int) -> Tensor:
    """A copy with 2 M = `rows` rows, every level in its new place."""
    fresh = nodes.new_zeros(nodes.shape[0], rows, *nodes.shape[2:])
    old, level = nodes.shape[1], 0
    while count := old >> (level + 1):
        begin = _row(rows, level, 0)
        fresh[:, begin : begin + count] = nodes[:, _row(old, level, 0) : _row(old, level, 0) + count]
        level += 1
    return fresh
