"""What the kernels over rows of channels share: a tile's place, layer norm both ways, dropout's bits, maps to scores.

A tile is (ROWS, CHANNELS), of which the first C channels are real.
"""

from __future__ import annotations

from typing import TypeAlias

import triton
import triton.language as tl

Pointer: TypeAlias = tl.tensor  # Triton evaluates annotations: they must be types that it knows
Block: TypeAlias = tl.tensor

# Of SplitMix64 and lowbias32, as in ../residual_norm.py, whose numbers these are.
GOLDEN, FIRST, SECOND = (
    tl.constexpr(0x9E3779B97F4A7C15),
    tl.constexpr(0xBF58476D1CE4E5B9),
    tl.constexpr(0x94D049BB133111EB),
)
STEP, THIRD, FOURTH = tl.constexpr(0x9E3779B9), tl.constexpr(0x7FEB352D), tl.constexpr(0x846CA68B)


@triton.jit  # type: ignore[untyped-decorator]
def keeps(key: Block, below: Block, row: Block, channel: Block) -> Block:
    """Whether dropout keeps an element, (rows, channels): a function of the call's key, the row and the channel."""
    z = key.to(tl.uint64, bitcast=True) + (row + 1).to(tl.uint64) * GOLDEN
    z = (z ^ (z >> 30)) * FIRST
    z = (z ^ (z >> 27)) * SECOND
    x = (z ^ (z >> 31)).to(tl.uint32)[:, None] + (channel.to(tl.uint32) * STEP)[None, :]
    x = (x ^ (x >> 16)) * THIRD
    x = (x ^ (x >> 15)) * FOURTH
    return (x ^ (x >> 16)) >= below.to(tl.uint32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def normalised(x: Block, real: Block, epsilon: Block, C: tl.constexpr) -> tuple[Block, Block]:
    """Every row of x less its mean, over its standard deviation, and one over that."""
    off = tl.where(real, x - (tl.sum(x, 1) / C)[:, None], 0.0)
    shrink = 1 / tl.sqrt(tl.sum(off * off, 1) / C + epsilon)
    return off * shrink[:, None], shrink


@triton.jit  # type: ignore[untyped-decorator]
def norm_gradient(down: Block, hat: Block, weight: Block, shrink: Block, real: Block, C: tl.constexpr) -> Block:
    """The gradient of what was normalised, from that of hat weight + bias."""
    d_hat = down * weight[None, :]
    mean, along = tl.sum(d_hat, 1) / C, tl.sum(d_hat * hat, 1) / C
    return tl.where(real, shrink[:, None] * (d_hat - mean[:, None] - hat * along[:, None]), 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def store_scores(
    scores: Pointer, ws: Pointer, bs: Pointer, row: Block, rows: Block, channel: Block, out: Block,
    C: tl.constexpr, HEADS: tl.constexpr,
) -> None:  # fmt: skip
    """The heads' scores of rows, (rows, HEADS): a linear map of them."""
    for head in range(HEADS):
        weight = tl.load(ws + head * C + channel, mask=channel < C, other=0.0)
        score = tl.sum(out * weight[None, :], 1) + tl.load(bs + head)
        tl.store(scores + row * HEADS + head, score, mask=row < rows)


@triton.jit  # type: ignore[untyped-decorator]
def score_gradients(d_scores: Pointer, row: Block, rows: Block, n: Block, head: Block, HEADS: tl.constexpr) -> Block:
    """Of rows, that is tokens of sequences of n, the gradient of a head's scores (B, HEADS, n)."""
    at = (row // n).to(tl.int64) * HEADS * n + head * n + row % n
    return tl.load(d_scores + at, mask=row < rows, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def from_scores(
    d_scores: Pointer, ws: Pointer, row: Block, rows: Block, n: Block, channel: Block, C: tl.constexpr,
    HEADS: tl.constexpr,
) -> Block:  # fmt: skip
    """The gradient of rows that comes from their scores, (rows, channels)."""
    total = tl.zeros((row.shape[0], channel.shape[0]), tl.float32)
    for head in range(HEADS):
        weight = tl.load(ws + head * C + channel, mask=channel < C, other=0.0)
        total += score_gradients(d_scores, row, rows, n, head, HEADS)[:, None] * weight[None, :]
    return total


@triton.jit  # type: ignore[untyped-decorator]
def to_scores(
    d_scores: Pointer, row: Block, rows: Block, n: Block, out: Block, HEADS: tl.constexpr, HEADS_UP: tl.constexpr,
) -> tuple[Block, Block]:  # fmt: skip
    """What rows add to the gradients of the map's weight, (HEADS_UP, rows, channels), and bias, (HEADS_UP, rows)."""
    head = tl.arange(0, HEADS_UP)
    at = (row // n).to(tl.int64)[None, :] * HEADS * n + head[:, None] * n + (row % n)[None, :]
    down = tl.load(d_scores + at, mask=(head < HEADS)[:, None] & (row < rows)[None, :], other=0.0)
    return down[:, :, None] * out[None, :, :], down


@triton.jit  # type: ignore[untyped-decorator]
def store_sum(place: Pointer, total: Block, channel: Block, C: tl.constexpr) -> None:
    """The sum over a tile's rows."""
    tl.store(place + channel, tl.sum(total, 0), mask=channel < C)


@triton.jit  # type: ignore[untyped-decorator]
def store_map_sums(
    place: Pointer, d_ws: Block, d_bs: Block, channel: Block, C: tl.constexpr, HEADS: tl.constexpr,
    HEADS_UP: tl.constexpr,
) -> None:  # fmt: skip
    """The sums over rows of what `to_scores` says: weight (HEADS, C), and bias (HEADS,) after it."""
    head = tl.arange(0, HEADS_UP)
    there = (head < HEADS)[:, None] & (channel < C)[None, :]
    tl.store(place + head[:, None] * C + channel[None, :], tl.sum(d_ws, 1), mask=there)
    tl.store(place + HEADS * C + head, tl.sum(d_bs, 1), mask=head < HEADS)
