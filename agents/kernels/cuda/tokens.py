"""A step's tokens from its numbers, layer-normalised, and back, in Triton, as ../token_embedding.py on a CPU.

Token j of a step is LayerNorm(W_j x_j + b_j + e_t), of the numbers x_j of token j and the embedding e_t of its time;
they are the return-to-go, the observation and the action. The first block's scores are taken on the way.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import launching
from .launching import MOST_REGISTERS, TILE, launch, tile
from .residual_norm import Scoring
from .rows import (
    Block,
    Pointer,
    from_scores,
    norm_gradient,
    normalised,
    store_map_sums,
    store_scores,
    store_sum,
    to_scores,
)  # fmt: skip

KINDS = 3  # tokens of a step


class Steps(NamedTuple):
    """Steps whose tokens are wanted.

    Attributes:
        sources: of each token of a step, (B, T, its numbers), float32, contiguous.
        times: int64 (B, T), contiguous.
        starts: bool (B, T), where a sequence begins, contiguous; None where each row is one.
    """

    sources: tuple[Tensor, Tensor, Tensor]
    times: Tensor
    starts: Tensor | None


class Layers(NamedTuple):
    """Parameters, float32, contiguous.

    Attributes:
        maps: of each token, weight (C, its numbers) and bias (C,).
        table: of the embedding of time, (rows, C).
        weight: of the layer norm, (C,).
        bias: (C,).
    """

    maps: tuple[tuple[Tensor, Tensor], ...]
    table: Tensor
    weight: Tensor
    bias: Tensor


@triton.jit  # type: ignore[untyped-decorator]
def _token(
    kind: tl.constexpr, x: Pointer, matrix: Pointer, shift: Pointer, time: Block, weight: Block, bias: Block,
    outputs: Pointer, low: Pointer, normed: Pointer, inverse: Pointer, scores: Pointer, ws: Pointer, bs: Pointer,
    step: Block, steps: Block, real: Block, channel: Block, epsilon: Block,
    C: tl.constexpr, NUMBERS: tl.constexpr, HEADS: tl.constexpr, KINDS: tl.constexpr,
) -> None:  # fmt: skip
    """One kind of token of a tile of steps."""
    is_channel = channel < C
    row = step * KINDS + kind
    place = row[:, None].to(tl.int64) * C + channel[None, :]
    number = time + tl.load(shift + channel, mask=is_channel, other=0.0)[None, :]
    for k in range(NUMBERS):
        given = tl.load(x + step.to(tl.int64) * NUMBERS + k, mask=step < steps, other=0.0)
        number += given[:, None] * tl.load(matrix + channel * NUMBERS + k, mask=is_channel, other=0.0)[None, :]
    hat, shrink = normalised(tl.where(real, number, 0.0), real, epsilon, C)
    out = hat * weight[None, :] + bias[None, :]
    tl.store(outputs + place, out, mask=real)
    tl.store(low + place, out.to(low.dtype.element_ty), mask=real)
    tl.store(normed + place, hat, mask=real)
    tl.store(inverse + row, shrink, mask=step < steps)
    store_scores(scores, ws, bs, row, steps * KINDS, channel, out, C, HEADS)


@triton.jit  # type: ignore[untyped-decorator]
def embed_steps(
    x_0: Pointer, map_0: Pointer, shift_0: Pointer, x_1: Pointer, map_1: Pointer, shift_1: Pointer,
    x_2: Pointer, map_2: Pointer, shift_2: Pointer, times: Pointer, starts: Pointer, table: Pointer,
    weight: Pointer, bias: Pointer, ws: Pointer, bs: Pointer, outputs: Pointer, low: Pointer, normed: Pointer,
    inverse: Pointer, scores: Pointer, begins: Pointer, steps: int, last: int, epsilon: float,
    C: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, KINDS: tl.constexpr,
    NUMBERS_0: tl.constexpr, NUMBERS_1: tl.constexpr, NUMBERS_2: tl.constexpr, PACKED: tl.constexpr,
) -> None:  # fmt: skip
    """The tokens of a tile of steps, and where sequences begin among tokens. Times after the table's last are that."""
    step, channel = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, CHANNELS)
    real = (step < steps)[:, None] & (channel < C)[None, :]
    time = tl.minimum(tl.load(times + step, mask=step < steps, other=0), last)
    # Nobody can be told here of a time before the first: NaN, which reaches the loss, is.
    moment = tl.load(table + time[:, None] * C + channel[None, :], mask=real & (time >= 0)[:, None], other=float("nan"))
    gain = tl.load(weight + channel, mask=channel < C, other=0.0)
    lift = tl.load(bias + channel, mask=channel < C, other=0.0)
    _token(
        0, x_0, map_0, shift_0, moment, gain, lift, outputs, low, normed, inverse, scores, ws, bs,
        step, steps, real, channel, epsilon, C, NUMBERS_0, HEADS, KINDS,
    )  # fmt: skip
    _token(
        1, x_1, map_1, shift_1, moment, gain, lift, outputs, low, normed, inverse, scores, ws, bs,
        step, steps, real, channel, epsilon, C, NUMBERS_1, HEADS, KINDS,
    )  # fmt: skip
    _token(
        2, x_2, map_2, shift_2, moment, gain, lift, outputs, low, normed, inverse, scores, ws, bs,
        step, steps, real, channel, epsilon, C, NUMBERS_2, HEADS, KINDS,
    )  # fmt: skip
    if PACKED:
        begin = tl.load(starts + step, mask=step < steps, other=0)
        for kind in tl.static_range(KINDS):
            tl.store(begins + step * KINDS + kind, begin if kind == 0 else begin * 0, mask=step < steps)


@triton.jit  # type: ignore[untyped-decorator]
def embed_steps_gradients(
    d_outputs: Pointer, d_low: Pointer, d_scores: Pointer, normed: Pointer, inverse: Pointer, weight: Pointer,
    bias: Pointer, ws: Pointer, d_tokens: Pointer, sums: Pointer, stride_sums: int, steps: int, n: int,
    C: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, HEADS_UP: tl.constexpr,
    KINDS: tl.constexpr,
) -> None:  # fmt: skip
    """Every PARTS-th tile of steps: the gradient before the layer norm, (KINDS, steps, C).

    Sums: of weight, bias and the shift of each kind of token, and those of the scores' map.
    """
    channel = tl.arange(0, CHANNELS)
    gain = tl.load(weight + channel, mask=channel < C, other=0.0)
    lift = tl.load(bias + channel, mask=channel < C, other=0.0)
    d_weight, d_bias = tl.zeros((ROWS, CHANNELS), tl.float32), tl.zeros((ROWS, CHANNELS), tl.float32)
    d_shift_0, d_shift_1, d_shift_2 = d_weight, d_weight, d_weight
    d_ws, d_bs = tl.zeros((HEADS_UP, ROWS, CHANNELS), tl.float32), tl.zeros((HEADS_UP, ROWS), tl.float32)
    for begin in range(tl.program_id(0) * ROWS, steps, tl.num_programs(0) * ROWS):
        step = begin + tl.arange(0, ROWS)
        real = (step < steps)[:, None] & (channel < C)[None, :]
        for kind in tl.static_range(KINDS):
            row = tl.where(step < steps, step * KINDS + kind, steps * KINDS)
            place = row[:, None].to(tl.int64) * C + channel[None, :]
            hat = tl.load(normed + place, mask=real, other=0.0)
            shrink = tl.load(inverse + row, mask=step < steps, other=0.0)
            down = tl.load(d_outputs + place, mask=real, other=0.0)
            down += tl.load(d_low + place, mask=real, other=0.0).to(tl.float32)
            down += from_scores(d_scores, ws, row, steps * KINDS, n, channel, C, HEADS)
            out = hat * gain[None, :] + lift[None, :]
            more_ws, more_bs = to_scores(d_scores, row, steps * KINDS, n, out, HEADS, HEADS_UP)
            d_ws += more_ws
            d_bs += more_bs
            d_weight += down * hat
            d_bias += down
            before = norm_gradient(down, hat, gain, shrink, real, C)
            if kind == 0:
                d_shift_0 += before
            elif kind == 1:
                d_shift_1 += before
            else:
                d_shift_2 += before
            tl.store(d_tokens + (kind * steps + step)[:, None].to(tl.int64) * C + channel[None, :], before, mask=real)
    sums += tl.program_id(0).to(tl.int64) * stride_sums
    store_sum(sums, d_weight, channel, C)
    store_sum(sums + C, d_bias, channel, C)
    store_sum(sums + 2 * C, d_shift_0, channel, C)
    store_sum(sums + 3 * C, d_shift_1, channel, C)
    store_sum(sums + 4 * C, d_shift_2, channel, C)
    store_map_sums(sums + 5 * C, d_ws, d_bs, channel, C, HEADS, HEADS_UP)


@triton.jit  # type: ignore[untyped-decorator]
def sum_times(
    d_tokens: Pointer, times: Pointer, d_table: Pointer, steps: int, last: int,
    C: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, KINDS: tl.constexpr,
) -> None:  # fmt: skip
    """The gradient of one time's embedding: the sum over the tokens of its steps, always in the same order."""
    mine, channel = tl.program_id(0), tl.arange(0, CHANNELS)
    total = tl.zeros((ROWS, CHANNELS), tl.float32)
    for begin in range(0, steps, ROWS):
        step = begin + tl.arange(0, ROWS)
        here = (step < steps) & (tl.minimum(tl.load(times + step, mask=step < steps, other=-1), last) == mine)
        if tl.max(here.to(tl.int32), 0) > 0:
            for kind in range(KINDS):
                place = (kind * steps + step)[:, None].to(tl.int64) * C + channel[None, :]
                total += tl.load(d_tokens + place, mask=here[:, None] & (channel < C)[None, :], other=0.0)
    store_sum(d_table + mine.to(tl.int64) * C, total, channel, C)


def forward(
    steps: Steps, layers: Layers, scoring: Scoring, epsilon: float, low: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """The tokens (rows, C), the same in the type `low`, what `backward` needs of them, their scores, where they start.

    Returns:
        As `residual_norm.forward`, rows being tokens of all sequences; and bool (B, N), None without `starts`.
    """
    batch, count = steps.times.shape
    total, channels, heads = batch * count, len(layers.weight), len(scoring.bias)
    rows, x = total * KINDS, layers.weight
    outputs, normed, inverse = x.new_empty(rows, channels), x.new_empty(rows, channels), x.new_empty(rows)
    lowered, scores = torch.empty_like(outputs, dtype=low), x.new_empty(rows, heads)
    begins = None if steps.starts is None else steps.starts.new_empty(batch, count * KINDS)
    # As bytes: Triton's booleans are not.
    flags = (x, x) if begins is None or steps.starts is None else (
        steps.starts.view(torch.uint8), begins.view(torch.uint8)
    )  # fmt: skip
    maps = [part for source, pair in zip(steps.sources, layers.maps, strict=True) for part in (source, *pair)]
    shape = tile(channels)
    launch(
        embed_steps, (triton.cdiv(total, shape["ROWS"]),), *maps, steps.times, flags[0], layers.table,
        layers.weight, layers.bias, *scoring, outputs, lowered, normed, inverse, scores, flags[1],
        total, len(layers.table) - 1, epsilon, **shape, HEADS=heads, KINDS=KINDS,
        **{f"NUMBERS_{kind}": source.shape[-1] for kind, source in enumerate(steps.sources)},
        PACKED=begins is not None, num_warps=4, maxnreg=MOST_REGISTERS,
    )  # fmt: skip
    return outputs, lowered, normed, inverse, scores, begins


def columns(channels: int, heads: int) -> int:
    """How many sums `backward` leaves: of weight, bias and every kind's shift (C), and of the scores' map."""
    return (2 + KINDS) * channels + heads * (channels + 1)


def backward(
    d_outputs: Tensor,
    d_low: Tensor,
    saved: tuple[Tensor, Tensor],
    layers: Layers,
    sums: Tensor,
    scoring: tuple[Scoring, Tensor],
) -> Tensor:
    """The tokens' gradient before the layer norm, (KINDS, S, C); arguments as of `residual_norm.backward`.

    Args:
        sums: (PARTS, columns(C, H)), to be filled; its rows may be parts of longer ones.
    """
    normed, inverse = saved
    rows, channels = normed.shape
    d_scores = scoring[1]
    heads, d_tokens = d_scores.shape[1], normed.new_empty(KINDS, rows // KINDS, channels)
    launch(
        embed_steps_gradients, (launching.PARTS,),
        d_outputs, d_low, d_scores, normed, inverse, layers.weight, layers.bias,
        scoring[0].weight, d_tokens, sums, sums.stride(0), rows // KINDS, d_scores.shape[-1],
        **tile(channels, TILE // 2), HEADS=heads, HEADS_UP=triton.next_power_of_2(heads), KINDS=KINDS, num_warps=4,
        maxnreg=MOST_REGISTERS,
    )  # fmt: skip
    return d_tokens


def table_gradient(d_tokens: Tensor, times: Tensor, table: Tensor) -> Tensor:
    """The gradient of the embedding of time, from `backward`'s."""
    found, (_, steps, channels) = torch.empty_like(table), d_tokens.shape
    launch(
        sum_times, (len(table),), d_tokens, times, found, steps, len(table) - 1, **tile(channels), KINDS=KINDS,
        num_warps=4,
    )  # fmt: skip
    return found
