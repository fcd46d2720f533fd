"""Keys and values in a binary tree of block sums, and attention that looks into a part of it.

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

Shape suffixes: B batch, N queries, H heads, D channels of a key or value, F channels of a key and its features, R rows
of queries (B N), S slots for buds, P buds expanded at once, L tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

DTYPE = torch.float64


class TreeState(NamedTuple):
    """The blocks of B sequences of one length, all heads in one tree.

    A value like any other state: what it holds does not change when later tokens are appended, though the memory of its
    blocks is shared with its successor.

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
    def empty(batch: int, heads: int, key_dim: int, dim: int, device: torch.device | str | None = None) -> TreeState:
        """The tree before any token."""
        keys = torch.zeros(batch, 2, heads, key_dim, dtype=DTYPE, device=device)
        values = torch.zeros(batch, 2, heads, dim, dtype=DTYPE, device=device)
        written = torch.zeros(batch, dtype=torch.long, device=device)
        return TreeState(keys, values, torch.zeros_like(keys[:, 0]), torch.zeros_like(values[:, 0]), written, 0)

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
        grown = rows * 2 if full else rows
        keys, values = _resized(self.keys, grown), _resized(self.values, grown)
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


class Buds(NamedTuple):
    """Disjoint blocks of tokens.

    Attributes:
        start: first token, (R, S).
        tokens: |n|, how many, (R, S); 0 in a slot that holds no bud.
        alignment: A_n, sum of q . k over the block, (R, S, H).
        transformed: the same of the sampler's features, (R, S, H).
        length: l, tokens of the row's sequence, (R, 1).
    """

    start: Tensor
    tokens: Tensor
    alignment: Tensor
    transformed: Tensor
    length: Tensor

    def gather(self, slots: Tensor) -> Buds:
        """The buds in `slots` (R, P)."""
        every = slots.unsqueeze(-1).expand(*slots.shape, self.alignment.shape[-1])
        return Buds(
            self.start.gather(1, slots),
            self.tokens.gather(1, slots),
            self.alignment.gather(1, every),
            self.transformed.gather(1, every),
            self.length,
        )

    def beside(self, other: Buds) -> Buds:
        """These and, after them, other buds of the same rows."""
        start, tokens, alignment, transformed = (torch.cat(pair, 1) for pair in zip(self[:4], other[:4], strict=True))
        return Buds(start, tokens, alignment, transformed, self.length)

    def put(self, slots: Tensor, buds: Buds) -> None:
        """Writes `buds` (R, P) into `slots`."""
        every = slots.unsqueeze(-1).expand_as(buds.alignment)
        self.start.scatter_(1, slots, buds.start)
        self.tokens.scatter_(1, slots, buds.tokens)
        self.alignment.scatter_(1, every, buds.alignment)
        self.transformed.scatter_(1, every, buds.transformed)


class View:
    """What some queries see of a tree: row r = b N + n is query n of sequence b, which sees the first l_n tokens.

    Attributes:
        keys: sums of keys and their features, (B 2M, H, F).
        values: sums of values, (B 2M, H, D).
        rows: 2 M.
        base: the first of them of a row's sequence, (R, 1).
        queries: (R, H, F).
        key_totals: (R, 1, H, F).
        value_totals: (R, H, D).
        lengths: l_n, (R, 1).
    """

    def __init__(
        self, state: TreeState, queries: Tensor, key_totals: Tensor, value_totals: Tensor, lengths: Tensor
    ) -> None:
        """Takes queries and their features (B, N, H, F), scaled, the totals up to l_n, (B, N, H, F) and (B, N, H, D),
        and l_n, (N,).
        """
        batch, count, _, self._dim = *queries.shape[:3], value_totals.shape[-1]
        self.rows = state.keys.shape[1]
        self.keys, self.values = state.keys.flatten(0, 1), state.values.flatten(0, 1)
        self.base = torch.arange(batch, device=queries.device).repeat_interleave(count).unsqueeze(1) * self.rows
        self.queries = queries.to(DTYPE).flatten(0, 1)
        self.value_totals = value_totals.flatten(0, 1)
        self.lengths = lengths.repeat(batch).unsqueeze(1)
        self.key_totals = key_totals.flatten(0, 1).unsqueeze(1)

    def root(self, slots: int) -> Buds:
        """The bud of all tokens in slot 0, and `slots` - 1 empty slots."""
        rows = len(self.lengths)
        buds = Buds(
            torch.zeros(rows, 1, dtype=torch.long, device=self.lengths.device),
            self.lengths,
            *self._align(self.key_totals),
            self.lengths,
        )
        start, tokens, alignment, transformed = (
            F.pad(part, (0, 0) * (part.dim() - 2) + (0, slots - 1)) for part in buds[:4]
        )
        return Buds(start, tokens, alignment, transformed, self.lengths)

    def halves(self, buds: Buds) -> tuple[Buds, Buds]:
        """The children of buds of two tokens or more: one inner product gives both (equation 2).

        The left child has the largest power of two that leaves something to the right one.
        """
        level = torch.frexp((buds.tokens - 1).clamp(min=1).to(DTYPE)).exponent.long() - 1
        half = torch.ones_like(level) << level
        alignment, transformed = self._align(self.keys[self._place(level, buds.start)])
        left = buds._replace(tokens=half, alignment=alignment, transformed=transformed)
        right = buds._replace(
            start=buds.start + half,
            tokens=buds.tokens - half,
            alignment=buds.alignment - alignment,
            transformed=buds.transformed - transformed,
        )
        return left, right

    def mix(self, buds: Buds) -> Tensor:
        """The output of algorithm 1, (R, H, D); slot 0 must hold the newest token's bud."""
        scores = buds.alignment / buds.tokens.clamp(min=1).unsqueeze(-1)
        size = buds.tokens.to(DTYPE).unsqueeze(-1)
        shares = torch.softmax(scores + size.log(), 1) / size.clamp(min=1)  # log(0) leaves an empty slot out
        level = torch.frexp(buds.tokens[:, 1:].clamp(min=1).to(DTYPE)).exponent.long() - 1
        sums = self.values[self._place(level, buds.start[:, 1:])] * (size[:, 1:, :, None] > 0)
        newest = self.value_totals - sums.sum(1)
        return newest * shares[:, 0].unsqueeze(-1) + torch.einsum("rsh,rshd->rhd", shares[:, 1:], sums)

    def _place(self, level: Tensor, start: Tensor) -> Tensor:
        return self.base + self.rows - (self.rows >> level) + (start >> level)

    def _align(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Alignments and transformed ones, (R, P, H) each, of sums of keys (R, P, H, F)."""
        dim, query = self._dim, self.queries
        plain = torch.einsum("rphf,rhf->rph", keys[..., :dim], query[..., :dim])
        return plain, torch.einsum("rphf,rhf->rph", keys[..., dim:], query[..., dim:])
