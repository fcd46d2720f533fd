"""The scan's backward pass on CUDA devices, parallel over chunks of 64 positions; `scan/fused.py` has the equations.

With next_k = 0 where a sequence starts at k + 1 and 1 - a_{k+1} elsewhere, from the last position on

    g_k = do_k + next_k g_{k+1},        c_k = o_k . do_k + next_k c_{k+1},

linear recurrences with the same factors. What is multiplied by 0 is forgotten, NaN included. Three kernels:

1. `sum_gradients`: what a chunk alone adds to g and c at its first position, and the product of its factors.
2. `carry_gradients`: g and c at the first position after every chunk, in float64.
3. `scan_gradients`: the gradients of a chunk's scores and values.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .scan_triton_forward import Block, Pointer, channels_at, channels_of, kept, last_of, linear_scan, row_of


@triton.jit  # type: ignore[untyped-decorator]
def _product(x: Block, y: Block) -> Block:
    return kept(x, kept(y, 1.0))


@triton.jit  # type: ignore[untyped-decorator]
def _factors(weights: Pointer, starts: Pointer, stride_starts: Block, k: Block, n: Block) -> Block:
    """keep_k, what passes from position k to the one before; 1 from the end on."""
    start = tl.load(starts + k.to(tl.int64) * stride_starts, mask=k < n, other=0) != 0
    return tl.where(start, 0.0, 1.0 - tl.load(weights + k, mask=k < n, other=0.0))


@triton.jit  # type: ignore[untyped-decorator]
def sum_gradients(
    weights: Pointer, outputs: Pointer, d_outputs: Pointer, starts: Pointer,
    batch_outputs: int, head_outputs: int, stride_outputs: int,
    batch_d_outputs: int, head_d_outputs: int, stride_d_outputs: int,
    batch_starts: int, head_starts: int, stride_starts: int,
    factors: Pointer, sums: Pointer, products: Pointer, heads: int, n: int, chunks: int,
    DIM: tl.constexpr, CHANNELS: tl.constexpr, CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    """One chunk's factor and c (rows, chunks) and g (rows, chunks, D), float32."""
    chunk, row = tl.program_id(0) % chunks, tl.program_id(0) // chunks
    begin, i, channel = chunk * CHUNK, tl.arange(0, CHUNK), tl.arange(0, CHANNELS)
    weights += row.to(tl.int64) * n
    starts = row_of(starts, row, heads, batch_starts, head_starts)
    keep = tl.where(i == 0, 1.0, _factors(weights, starts, stride_starts, begin + i, n))
    worth = tl.associative_scan(keep, 0, _product)  # of a position's gradient at the chunk's first
    outputs = row_of(outputs, row, heads, batch_outputs, head_outputs) + begin.to(tl.int64) * stride_outputs
    d_outputs = row_of(d_outputs, row, heads, batch_d_outputs, head_d_outputs) + begin.to(tl.int64) * stride_d_outputs
    counts = ((begin + i < n) & (worth != 0))[:, None] & (channel < DIM)[None, :]
    output = channels_at(outputs, i, stride_outputs, channel, counts)
    up = channels_at(d_outputs, i, stride_d_outputs, channel, counts)
    weighted = worth[:, None] * up
    at = row.to(tl.int64) * chunks + chunk
    tl.store(sums + at * DIM + channel, tl.sum(weighted, 0), mask=channel < DIM)
    tl.store(products + at, tl.sum(tl.sum(weighted * output, 0), 0))
    after = _factors(weights, starts, stride_starts, begin + CHUNK, n)
    tl.store(factors + at, _product(last_of(worth), after))


@triton.jit  # type: ignore[untyped-decorator]
def carry_gradients(
    weights: Pointer, starts: Pointer, batch_starts: int, head_starts: int,
    factors: Pointer, sums: Pointer, products: Pointer, g: Pointer, c: Pointer,
    sums_after: Pointer, products_after: Pointer, g_before: Pointer, c_before: Pointer,
    heads: int, n: int, chunks: int, DIM: tl.constexpr, CHANNELS: tl.constexpr, CHUNK: tl.constexpr, TURN: tl.constexpr,
) -> None:  # fmt: skip
    """g and c at the first position after every chunk, in float32, and before the row's first, in float64.

    A program has some channels of a row. CHUNK is here the number of chunks whose factors are read at once, TURN that
    whose g are computed at once.
    """
    row, part = tl.program_id(0), tl.program_id(1)
    i, r = tl.arange(0, CHUNK), tl.arange(0, TURN)
    channel = part * CHANNELS + tl.arange(0, CHANNELS)
    real, at = channel < DIM, row.to(tl.int64) * chunks
    written = tl.where(part == 0, chunks, 0)  # what has no channels, one program of the row writes for all
    down = tl.load(g + row * DIM + channel, mask=real, other=0.0)
    along = tl.load(c + row)
    tl.store(sums_after + (at + chunks - 1) * DIM + channel, down.to(tl.float32), mask=real)
    tl.store(products_after + at + chunks - 1, along.to(tl.float32), mask=0 < written)
    for begin in range(0, chunks, CHUNK):
        chunk = chunks - 1 - begin - i
        factor = tl.load(factors + at + chunk, mask=chunk >= 0, other=1.0).to(tl.float64)
        product = tl.load(products + at + chunk, mask=chunk >= 0, other=0.0).to(tl.float64)
        alongs = linear_scan(factor, product, along)
        tl.store(products_after + at + chunk - 1, alongs.to(tl.float32), mask=(chunk > 0) & (chunk < written))
        along = last_of(alongs)
        for turn in range(0, CHUNK, TURN):
            back = chunks - 1 - begin - turn - r
            place, there = (at + back)[:, None] * DIM + channel[None, :], (back >= 0)[:, None] & real[None, :]
            added = tl.load(sums + place, mask=there, other=0.0).to(tl.float64)
            downs = linear_scan(tl.gather(factor, turn + r, 0)[:, None], added, down[None, :])
            tl.store(sums_after + place - DIM, downs.to(tl.float32), mask=there & (back > 0)[:, None])
            down = last_of(downs)
    starts = row_of(starts, row, heads, batch_starts, head_starts)
    first = _factors(weights + row.to(tl.int64) * n, starts, 0, tl.full((), 0, tl.int32), n).to(tl.float64)
    tl.store(g_before + row * DIM + channel, kept(first, down), mask=real)
    tl.store(c_before + row, kept(first, along), mask=0 < written)


@triton.jit  # type: ignore[untyped-decorator]
def scan_gradients(
    weights: Pointer, values: Pointer, outputs: Pointer, d_outputs: Pointer, starts: Pointer, d_values: Pointer,
    batch_values: int, head_values: int, stride_values: int, batch_outputs: int, head_outputs: int, stride_outputs: int,
    batch_d_outputs: int, head_d_outputs: int, stride_d_outputs: int,
    batch_starts: int, head_starts: int, stride_starts: int,
    batch_d_values: int, head_d_values: int, stride_d_values: int,
    d_scores: Pointer, d_decays: Pointer, g: Pointer, c: Pointer, heads: int, n: int, chunks: int,
    DIM: tl.constexpr, CHANNELS: tl.constexpr, CHUNK: tl.constexpr, TURN: tl.constexpr, DECAYS: tl.constexpr,
) -> None:  # fmt: skip
    """Gradients of one chunk, from what `carry_gradients` says of those after it; the row's first has no decay."""
    chunk, row = tl.program_id(0) % chunks, tl.program_id(0) // chunks
    begin, i, r, channel = chunk * CHUNK, tl.arange(0, CHUNK), tl.arange(0, TURN), channels_of(CHANNELS)
    real, at = channel < DIM, row.to(tl.int64) * chunks + chunk
    down = tl.load(g + at * DIM + channel, mask=real, other=0.0)
    # c is a sum over channels, taken after the recurrence: a sum over lanes costs more than to go through it with all.
    along = tl.where(channel == 0, tl.load(c + at), 0.0)
    weights += row.to(tl.int64) * n
    d_scores += row.to(tl.int64) * n
    starts = row_of(starts, row, heads, batch_starts, head_starts)
    weight = tl.load(weights + begin + i, mask=begin + i < n, other=0.0)
    following = _factors(weights, starts, stride_starts, begin + i + 1, n)
    values = row_of(values, row, heads, batch_values, head_values) + begin.to(tl.int64) * stride_values
    outputs = row_of(outputs, row, heads, batch_outputs, head_outputs) + begin.to(tl.int64) * stride_outputs
    d_outputs = row_of(d_outputs, row, heads, batch_d_outputs, head_d_outputs) + begin.to(tl.int64) * stride_d_outputs
    d_values = row_of(d_values, row, heads, batch_d_values, head_d_values) + begin.to(tl.int64) * stride_d_values
    for turn in range(0, CHUNK, TURN):
        k = CHUNK - 1 - turn - r
        a, factor = tl.gather(weight, k, 0), tl.gather(following, k, 0)
        inside = (begin + k < n)[:, None] & real[None, :]
        up = channels_at(d_outputs, k, stride_d_outputs, channel, inside)
        output = channels_at(outputs, k, stride_outputs, channel, inside)
        # What weighs nothing may be anything, NaN included.
        value = channels_at(values, k, stride_values, channel, (a > 0)[:, None] & real[None, :])
        alongs = linear_scan(factor[:, None], output * up, along[None, :])
        downs = linear_scan(factor[:, None], up, down[None, :])
        tl.store(d_values + k[:, None] * stride_d_values + channel[None, :], a[:, None] * downs, mask=inside)
        tl.store(d_scores + begin + k, kept(a, tl.sum(value * downs - alongs, 1)), mask=begin + k < n)
        if DECAYS:
            keep = _factors(weights, starts, stride_starts, begin + k, n)
            past = channels_at(outputs - stride_outputs, k, stride_outputs, channel, inside & (begin + k > 0)[:, None])
            faded = kept(keep, tl.sum(past * downs - alongs, 1))
            tl.store(d_decays + row.to(tl.int64) * n + begin + k, faded, mask=begin + k < n)
        down, along = last_of(downs), last_of(alongs)
