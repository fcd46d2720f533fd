"""LayerNorm(x + dropout(y + shift)) of rows with its gradients, in Triton, as ../residual_norm.py on a CPU.

Where the next block's mixer reads the result, its scores, a linear map of a row, are taken on the way, and their
gradient goes back with the row's: no pass over the rows is theirs alone. At the same key the same elements are dropped
as on a CPU. Sums over all rows are left in PARTS parts, for one sum of everything at the end.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import launching
from .launching import launch, or_any, tile
from .rows import (
    Pointer,
    from_scores,
    keeps,
    norm_gradient,
    normalised,
    store_map_sums,
    store_scores,
    store_sum,
    to_scores,
)  # fmt: skip

BITS = 32  # of an element's random number


class Drop(NamedTuple):
    """Which elements are dropped.

    Attributes:
        key: of this call's random numbers, int64 (), on the device.
        below: an element is dropped where its 32 bits are below.
    """

    key: Tensor
    below: int

    @property
    def scale(self) -> float:
        """Of what is kept."""
        return float(2**BITS / (2**BITS - self.below))


def draw_drops(p: float, count: int, like: Tensor) -> list[Drop]:
    """`count` of probability p in [0, 1), to a multiple of 2^-32; the device's generator draws the keys."""
    below = min(round(p * 2**BITS), 2**BITS - 1)
    keys = torch.empty(count, dtype=torch.int64, device=like.device)
    return [Drop(key, below) for key in (keys.random_() if below else keys)]


@triton.jit  # type: ignore[untyped-decorator]
def norm_rows(
    x: Pointer, y: Pointer, shift: Pointer, weight: Pointer, bias: Pointer, ws: Pointer, bs: Pointer, key: Pointer,
    outputs: Pointer, low: Pointer, normed: Pointer, inverse: Pointer, scores: Pointer,
    rows: int, first: int, step: int, below: int, scale: float, epsilon: float,
    C: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, DROPS: tl.constexpr,
    WIDE: tl.constexpr,
) -> None:  # fmt: skip
    """A tile of rows. Row r of x is its row first + step r; HEADS is 0 without scores, WIDE whether `outputs` is."""
    row, channel = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, CHANNELS)
    is_channel = channel < C
    real = (row < rows)[:, None] & is_channel[None, :]
    at = row[:, None].to(tl.int64) * C + channel[None, :]
    old = tl.load(x + (first + step * row)[:, None].to(tl.int64) * C + channel[None, :], mask=real, other=0.0)
    change = tl.load(y + at, mask=real, other=0.0).to(tl.float32)
    change = (change + tl.load(shift + channel, mask=is_channel, other=0.0)[None, :]) * scale
    if DROPS:
        change = tl.where(keeps(tl.load(key), below, row, channel), change, 0.0)
    hat, shrink = normalised(old + tl.where(real, change, 0.0), real, epsilon, C)
    out = hat * tl.load(weight + channel, mask=is_channel, other=0.0)[None, :]
    out += tl.load(bias + channel, mask=is_channel, other=0.0)[None, :]
    if WIDE:
        tl.store(outputs + at, out, mask=real)
    tl.store(low + at, out.to(low.dtype.element_ty), mask=real)
    tl.store(normed + at, hat, mask=real)
    tl.store(inverse + row, shrink, mask=row < rows)
    store_scores(scores, ws, bs, row, rows, channel, out, C, HEADS)


@triton.jit  # type: ignore[untyped-decorator]
def norm_rows_gradients(
    d_outputs: Pointer, d_low: Pointer, d_scores: Pointer, normed: Pointer, inverse: Pointer, weight: Pointer,
    bias: Pointer, ws: Pointer, key: Pointer, d_x: Pointer, d_y: Pointer, sums: Pointer, stride_sums: int,
    rows: int, n: int, first: int, step: int, below: int, scale: float,
    C: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, HEADS_UP: tl.constexpr,
    DROPS: tl.constexpr, WIDE: tl.constexpr,
) -> None:  # fmt: skip
    """Every PARTS-th tile. Sums: of shift, weight and bias, and those of the scores' map. WIDE: d_outputs is read."""
    channel = tl.arange(0, CHANNELS)
    is_channel = channel < C
    gain = tl.load(weight + channel, mask=is_channel, other=0.0)
    lift = tl.load(bias + channel, mask=is_channel, other=0.0)
    d_shift, d_weight, d_bias = (
        tl.zeros((ROWS, CHANNELS), tl.float32),
        tl.zeros((ROWS, CHANNELS), tl.float32),
        tl.zeros((ROWS, CHANNELS), tl.float32),
    )
    if HEADS:
        d_ws, d_bs = tl.zeros((HEADS_UP, ROWS, CHANNELS), tl.float32), tl.zeros((HEADS_UP, ROWS), tl.float32)
    for begin in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = begin + tl.arange(0, ROWS)
        real = (row < rows)[:, None] & is_channel[None, :]
        at = row[:, None].to(tl.int64) * C + channel[None, :]
        down = tl.load(d_low + at, mask=real, other=0.0).to(tl.float32)
        hat = tl.load(normed + at, mask=real, other=0.0)
        shrink = tl.load(inverse + row, mask=row < rows, other=0.0)
        if WIDE:
            down += tl.load(d_outputs + at, mask=real, other=0.0)
        if HEADS:
            down += from_scores(d_scores, ws, row, rows, n, channel, C, HEADS)
            out = hat * gain[None, :] + lift[None, :]
            more_ws, more_bs = to_scores(d_scores, row, rows, n, out, HEADS, HEADS_UP)
            d_ws += more_ws
            d_bs += more_bs
        d_weight += down * hat
        d_bias += down
        old = norm_gradient(down, hat, gain, shrink, real, C)
        tl.store(d_x + (first + step * row)[:, None].to(tl.int64) * C + channel[None, :], old, mask=real)
        change = old * scale
        if DROPS:
            change = tl.where(keeps(tl.load(key), below, row, channel), change, 0.0)
        d_shift += change
        tl.store(d_y + at, change.to(d_y.dtype.element_ty), mask=real)
    sums += tl.program_id(0).to(tl.int64) * stride_sums
    store_sum(sums, d_shift, channel, C)
    store_sum(sums + C, d_weight, channel, C)
    store_sum(sums + 2 * C, d_bias, channel, C)
    if HEADS:
        store_map_sums(sums + 3 * C, d_ws, d_bs, channel, C, HEADS, HEADS_UP)


class Scoring(NamedTuple):
    """The linear map from a row to the scores of the mixer that reads it: weight (H, C) and bias (H,), float32."""

    weight: Tensor
    bias: Tensor


def columns(channels: int, heads: int) -> int:
    """How many sums `backward` leaves: of shift, weight and bias (C) and, with scores, of their map (H, C) and (H,)."""
    return 3 * channels + heads * (channels + 1)


def forward(
    x: Tensor,
    y: Tensor,
    norm: tuple[Tensor, Tensor, Tensor],
    epsilon: float,
    drop: Drop,
    low: torch.dtype,
    *,
    keep: tuple[int, int] = (0, 1),
    scoring: Scoring | None = None,
    wide: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """LayerNorm(x + dropout(y + shift)), the same in the type `low`, what `backward` needs of it, and scores.

    Args:
        x: float32, contiguous, C channels.
        y: float32 or bfloat16 (rows, C), contiguous.
        norm: shift, weight and bias, float32 (C,).
        epsilon: added to the variance.
        drop: which elements of y are dropped.
        low: float32 or bfloat16.
        keep: (first, step): row r of x is its row first + step r.
        scoring: what reads the result, if anything does.
        wide: whether the first result is wanted; else it is empty.

    Returns:
        Two of the kind (rows, C), the normalised rows before weight and bias, 1 / their standard deviations, and scores
        (rows, H), empty without `scoring`.
    """
    rows, channels = y.shape
    heads = 0 if scoring is None else len(scoring.bias)
    outputs, lowered = x.new_empty(rows if wide else 0, channels), torch.empty_like(y, dtype=low)
    normed, inverse, scores = x.new_empty(rows, channels), x.new_empty(rows), x.new_empty(rows, heads)
    shape = tile(channels)
    launch(
        norm_rows, (triton.cdiv(rows, shape["ROWS"]),),
        x, y, *norm, *(scoring or (x, x)), drop.key, outputs, lowered, normed, inverse, scores,
        rows, *keep, _signed(drop.below), drop.scale, epsilon,
        **shape, HEADS=heads, DROPS=drop.below > 0, WIDE=wide, num_warps=4,
    )  # fmt: skip
    return outputs, lowered, normed, inverse, scores


def backward(
    d_outputs: Tensor | None,
    d_low: Tensor,
    saved: tuple[Tensor, Tensor],
    norm: tuple[Tensor, Tensor],
    drop: Drop,
    dtype: torch.dtype,
    sums: Tensor,
    *,
    d_x: Tensor | None = None,
    keep: tuple[int, int] = (0, 1),
    scoring: tuple[Scoring, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients of x and of y (rows, C), in its `dtype`.

    Args:
        d_outputs: of the first result, float32 (rows, C), if any.
        d_low: of the second, in its type.
        saved: the normalised rows and 1 / their standard deviations.
        norm: weight and bias.
        drop: as before.
        dtype: float32 or bfloat16.
        sums: (PARTS, columns(C, H)), to be filled; its rows may be parts of longer ones.
        d_x: what the first gradient is written into, where keep says.
        keep: as before.
        scoring: as before, and the gradient of the scores, (B, H, N) for rows that are N tokens of B sequences.
    """
    normed, inverse = saved
    rows, channels = normed.shape
    d_x, d_y = torch.empty_like(normed) if d_x is None else d_x, torch.empty_like(normed, dtype=dtype)
    (scorer, d_scores), heads = scoring or (None, normed), 0 if scoring is None else scoring[1].shape[1]
    ws = normed if scorer is None else scorer.weight
    launch(
        norm_rows_gradients, (launching.PARTS,),
        or_any(d_outputs, normed), d_low, d_scores, normed, inverse, *norm, ws, drop.key, d_x, d_y, sums,
        sums.stride(0), rows, d_scores.shape[-1], *keep, _signed(drop.below), drop.scale,
        **tile(channels), HEADS=heads, HEADS_UP=triton.next_power_of_2(max(1, heads)), DROPS=drop.below > 0,
        WIDE=d_outputs is not None, num_warps=4,
    )  # fmt: skip
    return d_x, d_y


def _signed(number: int) -> int:
    """The 32 bits of a number, as a signed one: Triton would take a larger one for 64."""
    return number - (1 << BITS) if number >= 1 << (BITS - 1) else number
