"""What the scan's Triton kernels share: where a row lies, the linear recurrence, and its last position.

A program of one warp goes over 64 positions, a chunk. What has no channels is computed for all of them at once, two to
a lane; what has channels 16 positions a turn, in such a way that no channel's recurrence crosses lanes, and a warp
reads a position's channels side by side.
"""

from __future__ import annotations

from typing import TypeAlias

import triton
import triton.language as tl

Pointer: TypeAlias = tl.tensor  # Triton evaluates annotations: they must be types that it knows
Block: TypeAlias = tl.tensor

LANES = tl.constexpr(32)


@triton.jit  # type: ignore[untyped-decorator]
def row_of(pointer: Pointer, row: Block, heads: Block, stride_batch: Block, stride_head: Block) -> Block:
    """Where row (batch, head) begins."""
    return pointer + (row // heads).to(tl.int64) * stride_batch + (row % heads).to(tl.int64) * stride_head


@triton.jit  # type: ignore[untyped-decorator]
def channels_of(CHANNELS: tl.constexpr) -> Block:
    """0, 1, ...: a lane takes CHANNELS / 32 neighbours, of which Triton would otherwise choose more for small types."""
    return tl.max_contiguous(tl.arange(0, CHANNELS), CHANNELS // LANES if CHANNELS > LANES else 1)


@triton.jit  # type: ignore[untyped-decorator]
def channels_at(pointer: Pointer, k: Block, stride: Block, channel: Block, there: Block) -> Block:
    """The channels of positions k, (positions, channels), in float32; 0 where there are none."""
    return tl.load(pointer + k[:, None] * stride + channel[None, :], mask=there, other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def kept(factor: Block, x: Block) -> Block:
    """factor x, and 0 where the factor is 0, whatever x is."""
    return tl.where(factor == 0, 0.0, factor * x)


@triton.jit  # type: ignore[untyped-decorator]
def _recurrence(keep_1: Block, x_1: Block, keep_2: Block, x_2: Block) -> tuple[Block, Block]:
    """Two neighbouring stretches of x_k = added_k + keep_k x_{k-1}."""
    return keep_1 * keep_2, tl.where(keep_2 == 0, x_2, keep_2 * x_1 + x_2)


@triton.jit  # type: ignore[untyped-decorator]
def linear_scan(keep: Block, added: Block, before: Block) -> Block:
    """x_k = added_k + keep_k x_{k-1} along the first axis, from x_{-1} = `before` on.

    What is kept by 0 is forgotten, NaN included. A recurrence from the last position on is given them in that order:
    a reversed scan of Triton's first exchanges everything between lanes.
    """
    first = tl.arange(0, added.shape[0]) == 0
    if len(added.shape) == 2:
        first = first[:, None]
    added += tl.where(first, kept(keep, before), 0.0)
    _, x = tl.associative_scan((tl.broadcast_to(keep, added.shape), added), 0, _recurrence)
    return x


@triton.jit  # type: ignore[untyped-decorator]
def last_of(x: Block) -> Block:
    """The last element along the first axis, bit by bit: where its lane has it already, this takes no instruction."""
    integer: tl.constexpr = tl.int64 if x.dtype == tl.float64 else tl.int32
    last = tl.arange(0, x.shape[0]) == x.shape[0] - 1
    if len(x.shape) == 2:
        last = last[:, None]
    return tl.sum(tl.where(last, x.to(integer, bitcast=True), 0), 0).to(x.dtype, bitcast=True)
