"""The scan on CUDA devices, parallel over chunks of 64 positions. `scan/fused.py` has the equations.

Tested on an H100 and in the Triton interpreter, and compiled to machine code by scripts/check_gpu_kernels.

**Forward**
With L_k = log sum exp(s_j), over the positions j <= k of k's own sequence, a_k = exp(s_k - L_k) and

    o_k = keep_k o_{k-1} + a_k v_k,        keep_k = 0 where a sequence starts, 1 - a_k elsewhere,

so a start needs nothing but its own factor, and what is kept by 0 is forgotten, NaN included. With decays d_k, L_k =
log(exp(L_{k-1} + d_k) + exp(s_k)), and the rest stays. Three kernels:

1. `sum_chunks`: the state (m, u, w) of each chunk's own last sequence, and whether a sequence starts in it.
2. `carry_states`: the states of all positions before each chunk, in float64. The same recurrence, of whole chunks:
   with M and U of all so far, o = keep o' + exp(m - M) / U w, keep = 0 where a sequence starts, 1 - u exp(m - M) / U.
3. `scan_outputs`: the weights and outputs of a chunk from the state before it; it reads the values once more.

A maximum is carried as float32, in which a score's maximum is exact; the sums with it are float64 or, inside a chunk,
float32. A faded maximum is rounded, and what is lost goes to its sum, so that scores of any size keep their digits.

A program of one warp goes over the 64 positions of a chunk. What has no channels is computed for all of them at once,
two to a lane; what has channels 16 positions a turn, in such a way that no channel's recurrence crosses lanes, and a
warp reads a position's channels side by side.

**Backward**
With next_k = 0 where a sequence starts at k + 1 and 1 - a_{k+1} elsewhere, from the last position on

    g_k = do_k + next_k g_{k+1},        c_k = o_k . do_k + next_k c_{k+1},

linear recurrences with the same factors. What is multiplied by 0 is forgotten, NaN included. Three kernels:

1. `sum_gradients`: what a chunk alone adds to g and c at its first position, and the product of its factors.
2. `carry_gradients`: g and c at the first position after every chunk, in float64.
3. `scan_gradients`: the gradients of a chunk's scores and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from . import Tensors

CHUNK = 64  # positions of a program
TURN = 16  # positions whose channels a warp has in its registers, at most
CARRIED = 32  # channels of a program that carries something from chunk to chunk
MOST_REGISTERS = 255  # of a thread: without this, ptxas would rather spill some than use more than 32 or 128
Pointer: TypeAlias = tl.tensor  # Triton evaluates annotations: they must be types that it knows
Block: TypeAlias = tl.tensor

LANES = tl.constexpr(32)
LOW = tl.constexpr(torch.finfo(torch.float32).min)  # the maximum of no scores


@triton.jit  # type: ignore[untyped-decorator]
def row_of(pointer: Pointer, row: Block, heads: Block, stride_batch: Block, stride_head: Block) -> Block:
    """Where row (batch, head) begins."""
    return pointer + (row // heads).to(tl.int64) * stride_batch + (row % heads).to(tl.int64) * stride_head


@triton.jit  # type: ignore[untyped-decorator]
def channels_of(CHANNELS: tl.constexpr) -> Block:
    """0, 1, ...: a lane takes CHANNELS / 32 neighbors, of which Triton would otherwise choose more for small types."""
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
    """Two neighboring stretches of x_k = added_k + keep_k x_{k-1}."""
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


@triton.jit  # type: ignore[untyped-decorator]
def _join(m_1: Block, u_1: Block, f_1: Block, m_2: Block, u_2: Block, f_2: Block) -> tuple[Block, Block, Block]:
    """(m, u) of two neighboring stretches, the second's alone if a sequence starts in it, and whether one does."""
    m_1 = tl.where(f_2 != 0, m_2, m_1)
    m = tl.maximum(m_1, m_2)
    return m, u_2 * tl.exp(m_2 - m) + tl.where(f_2 != 0, 0.0, u_1 * tl.exp(m_1 - m)), f_1 | f_2


@triton.jit  # type: ignore[untyped-decorator]
def _join_faded(
    m_1: Block, u_1: Block, f_1: Block, d_1: Block, m_2: Block, u_2: Block, f_2: Block, d_2: Block
) -> tuple[Block, Block, Block, Block]:
    """As `_join`, where the second stretch fades the first by the sum d of its decays."""
    faded = m_1 + d_2
    added = faded - m_1
    lost = (m_1 - (faded - added)) + (d_2 - added)  # Knuth's two-sum
    m, u, f = _join(faded, u_1 * tl.exp(lost), f_1, m_2, u_2, f_2)
    return m, u, f, d_1 + d_2


@triton.jit  # type: ignore[untyped-decorator]
def _sum(x: Block, y: Block) -> Block:
    return x + y


@triton.jit  # type: ignore[untyped-decorator]
def _positions(
    scores: Pointer, mask: Pointer, starts: Pointer, stride_scores: Block, stride_mask: Block, stride_starts: Block,
    begin: Block, n: Block, CHUNK: tl.constexpr,
) -> tuple[Block, Block, Block]:  # fmt: skip
    """Of a chunk's positions: the score, LOW where it is masked; whether it counts; whether a sequence starts."""
    k = begin.to(tl.int64) + tl.arange(0, CHUNK)
    score = tl.load(scores + k * stride_scores, mask=k < n, other=-float("inf"))
    present = (score != -float("inf")) & (tl.load(mask + k * stride_mask, mask=k < n, other=0) != 0)
    return tl.where(present, score, LOW), present, tl.load(starts + k * stride_starts, mask=k < n, other=0) != 0


@triton.jit  # type: ignore[untyped-decorator]
def _last_sequence(score: Block, fading: Block, present: Block, start: Block) -> tuple[Block, Block, Block, Block]:
    """What counts at a chunk's end: m and u of its last sequence, exp(s_k - m) in it, and whether it starts there.

    `fading` is the sum of the decays after a position.
    """
    i = tl.arange(0, score.shape[0])
    first = tl.max(tl.where(start, i, -1), 0)
    counts = present & (i >= first)
    m = tl.max(tl.where(counts, score + fading, LOW), 0)
    p = tl.exp(tl.where(counts, (score - m) + fading, -float("inf")))  # m may be rounded
    return m, tl.sum(p, 0), p, first >= 0


@triton.jit  # type: ignore[untyped-decorator]
def _rounded(m: Block, u: Block) -> tuple[Block, Block]:
    """A float64 state's m in float32, and u in float64 as it is beside that."""
    high = tl.maximum(m, LOW).to(tl.float32)
    return high, u * tl.exp(tl.maximum(m, LOW) - high.to(tl.float64))


@triton.jit  # type: ignore[untyped-decorator]
def _inverse(u: Block) -> Block:
    """1 / u, and 0 where nothing has been seen."""
    return tl.where(u == 0, 0.0, 1 / tl.where(u == 0, 1.0, u))


@triton.jit  # type: ignore[untyped-decorator]
def sum_chunks(
    scores: Pointer, values: Pointer, mask: Pointer, starts: Pointer, decays: Pointer,
    batch_scores: int, head_scores: int, stride_scores: int, batch_values: int, head_values: int, stride_values: int,
    batch_mask: int, head_mask: int, stride_mask: int, batch_starts: int, head_starts: int, stride_starts: int,
    batch_decays: int, head_decays: int, stride_decays: int,
    high: Pointer, total: Pointer, sums: Pointer, begun: Pointer, faded: Pointer, heads: int, n: int, chunks: int,
    DIM: tl.constexpr, CHANNELS: tl.constexpr, CHUNK: tl.constexpr, DECAYS: tl.constexpr,
) -> None:  # fmt: skip
    """State of one chunk alone: (rows, chunks), w (rows, chunks, D), float32, and whether a sequence starts in it.

    With decays also their sum, `faded` (rows, chunks).
    """
    chunk, row = tl.program_id(0) % chunks, tl.program_id(0) // chunks
    begin = chunk * CHUNK
    score, present, start = _positions(
        row_of(scores, row, heads, batch_scores, head_scores), row_of(mask, row, heads, batch_mask, head_mask),
        row_of(starts, row, heads, batch_starts, head_starts), stride_scores, stride_mask, stride_starts,
        begin, n, CHUNK,
    )  # fmt: skip
    i, channel = tl.arange(0, CHUNK), tl.arange(0, CHANNELS)
    at = row.to(tl.int64) * chunks + chunk
    if DECAYS:
        decays = row_of(decays, row, heads, batch_decays, head_decays) + begin.to(tl.int64) * stride_decays
        own = tl.load(decays + i * stride_decays, mask=begin + i < n, other=0.0)
        later = (i + 1 < CHUNK) & (begin + i + 1 < n)
        after = tl.load(decays + (i + 1) * stride_decays, mask=later, other=0.0)
        fading = tl.associative_scan(after, 0, _sum, reverse=True)
        tl.store(faded + at, tl.sum(own, 0))
    else:
        fading = tl.zeros((CHUNK,), tl.float32)
    m, u, p, starting = _last_sequence(score, fading, present, start)
    values = row_of(values, row, heads, batch_values, head_values) + begin.to(tl.int64) * stride_values
    # What weighs nothing may be anything, NaN included.
    counts = (p > 0)[:, None] & (channel < DIM)[None, :]
    value = channels_at(values, i, stride_values, channel, counts)
    tl.store(sums + at * DIM + channel, tl.sum(p[:, None] * value, 0), mask=channel < DIM)
    tl.store(high + at, m)
    tl.store(total + at, u)
    tl.store(begun + at, starting.to(tl.int8))


@triton.jit  # type: ignore[untyped-decorator]
def carry_states(
    high: Pointer, total: Pointer, sums: Pointer, begun: Pointer, faded: Pointer, m: Pointer, u: Pointer, w: Pointer,
    high_before: Pointer, total_before: Pointer, before: Pointer, m_after: Pointer, u_after: Pointer, w_after: Pointer,
    chunks: int, DIM: tl.constexpr, CHANNELS: tl.constexpr, CHUNK: tl.constexpr, TURN: tl.constexpr,
    DECAYS: tl.constexpr,
) -> None:  # fmt: skip
    """State before every chunk, w / u in its place, in float32, and after the last, in float64; some channels of a row.

    CHUNK is here the number of chunks whose m and u are computed at once, TURN that whose w are.
    """
    row, part = tl.program_id(0), tl.program_id(1)
    i, r = tl.arange(0, CHUNK), tl.arange(0, TURN)
    channel = part * CHANNELS + tl.arange(0, CHANNELS)
    real, at = channel < DIM, row.to(tl.int64) * chunks
    top, whole = _rounded(tl.load(m + row), tl.load(u + row))
    output = tl.load(w + row * DIM + channel, mask=real, other=0.0) * _inverse(tl.load(u + row))
    written = tl.where(part == 0, chunks, 0)  # what has no channels, one program of the row writes for all
    tl.store(high_before + at, top, mask=0 < written)
    tl.store(total_before + at, whole.to(tl.float32), mask=0 < written)
    tl.store(before + at * DIM + channel, output.to(tl.float32), mask=real)
    top = top.to(tl.float64)
    for begin in range(0, chunks, CHUNK):
        c = begin + i
        own = tl.load(high + at + c, mask=c < chunks, other=LOW).to(tl.float64)
        own_total = tl.load(total + at + c, mask=c < chunks, other=0.0).to(tl.float64)
        starting = tl.load(begun + at + c, mask=c < chunks, other=0).to(tl.int32)
        if DECAYS:
            decay = tl.load(faded + at + c, mask=c < chunks, other=0.0).to(tl.float64)
            tops, wholes, started, fading = tl.associative_scan((own, own_total, starting, decay), 0, _join_faded)
            tops, wholes, _, _ = _join_faded(top, whole, 0, 0.0, tops, wholes, started, fading)
        else:
            tops, wholes, started = tl.associative_scan((own, own_total, starting), 0, _join)
            tops, wholes, _ = _join(top, whole, 0, tops, wholes, started)
        share = tl.exp(own - tops) * _inverse(wholes)
        keep = tl.where(starting != 0, 0.0, 1.0 - own_total * share)
        told, of_told = _rounded(tops, wholes) if DECAYS else (tops.to(tl.float32), wholes)
        tl.store(high_before + at + c + 1, told, mask=c + 1 < written)
        tl.store(total_before + at + c + 1, of_told.to(tl.float32), mask=c + 1 < written)
        for turn in range(0, CHUNK, TURN):
            k = begin + turn + r
            place, there = (at + k)[:, None] * DIM + channel[None, :], (k < chunks)[:, None] & real[None, :]
            added = tl.load(sums + place, mask=there, other=0.0).to(tl.float64) * tl.gather(share, turn + r, 0)[:, None]
            factor = tl.gather(keep, turn + r, 0)[:, None]
            outputs = linear_scan(factor, added, output[None, :])
            tl.store(
                before + place + DIM, outputs.to(tl.float32), mask=there & (begin + turn + r + 1 < chunks)[:, None]
            )
            output = last_of(outputs)
        top, whole = last_of(tops), last_of(wholes)
    tl.store(m_after + row, top, mask=0 < written)
    tl.store(u_after + row, whole, mask=0 < written)
    tl.store(w_after + row * DIM + channel, output * whole, mask=real)


@triton.jit  # type: ignore[untyped-decorator]
def scan_outputs(
    scores: Pointer, values: Pointer, mask: Pointer, starts: Pointer, outputs: Pointer, decays: Pointer,
    batch_scores: int, head_scores: int, stride_scores: int, batch_values: int, head_values: int, stride_values: int,
    batch_mask: int, head_mask: int, stride_mask: int, batch_starts: int, head_starts: int, stride_starts: int,
    batch_outputs: int, head_outputs: int, stride_outputs: int, batch_decays: int, head_decays: int, stride_decays: int,
    weights: Pointer, m: Pointer, u: Pointer, w: Pointer, heads: int, n: int, chunks: int,
    DIM: tl.constexpr, CHANNELS: tl.constexpr, CHUNK: tl.constexpr, TURN: tl.constexpr, DECAYS: tl.constexpr,
) -> None:  # fmt: skip
    """Weights and outputs of one chunk, from what `carry_states` says of those before it."""
    chunk, row = tl.program_id(0) % chunks, tl.program_id(0) // chunks
    begin = chunk * CHUNK
    score, present, start = _positions(
        row_of(scores, row, heads, batch_scores, head_scores), row_of(mask, row, heads, batch_mask, head_mask),
        row_of(starts, row, heads, batch_starts, head_starts), stride_scores, stride_mask, stride_starts,
        begin, n, CHUNK,
    )  # fmt: skip
    i, r, channel = tl.arange(0, CHUNK), tl.arange(0, TURN), channels_of(CHANNELS)
    real, at = channel < DIM, row.to(tl.int64) * chunks + chunk
    top, whole, output = tl.load(m + at), tl.load(u + at), tl.load(w + at * DIM + channel, mask=real, other=0.0)
    one = tl.where(present, 1.0, 0.0)
    if DECAYS:
        decays = row_of(decays, row, heads, batch_decays, head_decays) + begin.to(tl.int64) * stride_decays
        decay = tl.load(decays + i * stride_decays, mask=begin + i < n, other=0.0)
        tops, wholes, started, fading = tl.associative_scan((score, one, start.to(tl.int32), decay), 0, _join_faded)
        tops, wholes, _, _ = _join_faded(top, whole, 0, 0.0, tops, wholes, started, fading)
    else:
        tops, wholes, started = tl.associative_scan((score, one, start.to(tl.int32)), 0, _join)
        tops, wholes, _ = _join(top, whole, 0, tops, wholes, started)
    weight = tl.where(present, tl.exp(score - tops) * _inverse(wholes), 0.0)
    keep = tl.where(start, 0.0, 1.0 - weight)
    tl.store(weights + row.to(tl.int64) * n + begin + i, weight, mask=begin + i < n)
    values = row_of(values, row, heads, batch_values, head_values) + begin.to(tl.int64) * stride_values
    outputs = row_of(outputs, row, heads, batch_outputs, head_outputs) + begin.to(tl.int64) * stride_outputs
    for turn in range(0, CHUNK, TURN):
        k, a, factor = turn + r, tl.gather(weight, turn + r, 0), tl.gather(keep, turn + r, 0)[:, None]
        # What weighs nothing may be anything, NaN included.
        counts = (a > 0)[:, None] & real[None, :]
        value = channels_at(values, k, stride_values, channel, counts)
        here = linear_scan(factor, a[:, None] * value, output[None, :])
        inside = (begin + k < n)[:, None] & real[None, :]
        tl.store(outputs + k[:, None] * stride_outputs + channel[None, :], here, mask=inside)
        output = last_of(here)


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


def forward(
    state: Tensors, scores: Tensor, values: Tensor, mask: Tensor, starts: Tensor, log_decay: Tensor | None
) -> Tensors:
    """As `scan_numba.forward`, of float32 scores and float32 or bfloat16 values; the weights are float32.

    Raises:
        ValueError: scores or values of another type (float16 is converted before), or not on a CUDA device.
    """
    _check(scores, values)
    decays = log_decay is not None
    outputs = torch.empty_like(values, dtype=torch.float32)
    weights = torch.empty(scores.shape, dtype=torch.float32, device=values.device)
    before = [part.contiguous() for part in state]
    after = [torch.empty_like(part) for part in before]
    given = (scores, values, mask.view(torch.uint8), starts.view(torch.uint8), outputs)
    tensors, strides = _rows((*given, scores if log_decay is None else log_decay), values.dim() - 2)
    of_decays = tensors.pop(), *strides[15:]
    sizes = _sizes(tensors[1])
    chunks, rows, dim = sizes["chunks"], state[0].numel(), sizes["DIM"]
    own = [values.new_empty(rows, chunks, *more, dtype=torch.float32) for more in ((), (), (dim,))]
    begun = values.new_empty(rows, chunks, dtype=torch.int8)
    faded = torch.empty_like(own[0])
    launch(
        sum_chunks, (rows * chunks,), *tensors[:4], of_decays[0], *strides[:12], *of_decays[1:], *own, begun, faded,
        **sizes, DECAYS=decays, num_warps=4,
    )  # fmt: skip
    carried = [torch.empty_like(part) for part in own]
    _carry(carry_states, (*own, begun, faded, *before, *carried, *after), rows, chunks=chunks, dim=dim, DECAYS=decays)
    launch(
        scan_outputs, (rows * chunks,), *tensors, *of_decays[:1], *strides, weights, *carried, **sizes,
        TURN=_turn(sizes, 128), DECAYS=decays, maxnreg=MOST_REGISTERS,
    )  # fmt: skip
    return outputs, weights, *after


def backward(kept: Tensors, starts: Tensor, d_outputs: Tensor, g: Tensor, c: Tensor, decays: bool) -> Tensors:
    """As `scan_numba.backward`."""
    values, outputs, weights = kept
    weights, d_scores = weights.contiguous(), torch.empty_like(weights)
    d_decays = torch.empty_like(weights) if decays else weights.new_empty(0)
    d_values = torch.empty_like(values)
    after = [part.contiguous() for part in (g, c)]
    before = [torch.empty_like(part) for part in after]
    given = (values, outputs, d_outputs, starts.view(torch.uint8), d_values)
    tensors, strides = _rows(given, values.dim() - 2)
    sizes = _sizes(tensors[0])
    chunks, rows, dim = sizes["chunks"], c.numel(), sizes["DIM"]
    factors, products, carried_products = (values.new_empty(rows, chunks, dtype=torch.float32) for _ in range(3))
    sums, carried = (values.new_empty(rows, chunks, dim, dtype=torch.float32) for _ in range(2))
    own = (factors, sums, products)
    launch(sum_gradients, (rows * chunks,), weights, *tensors[1:4], *strides[3:12], *own, **sizes, num_warps=8)
    arguments = (weights, tensors[3], *strides[9:11], *own, *after, carried, carried_products, *before)
    _carry(carry_gradients, arguments, rows, heads=sizes["heads"], n=sizes["n"], chunks=chunks, dim=dim)
    launch(
        scan_gradients, (rows * chunks,), weights, *tensors, *strides, d_scores, d_decays, carried, carried_products,
        **sizes, TURN=_turn(sizes, 64), DECAYS=decays, maxnreg=MOST_REGISTERS,
    )  # fmt: skip
    return d_scores, d_values, *before, d_decays


def _rows(tensors: Sequence[Tensor], batch: int) -> tuple[list[Tensor], list[int]]:
    """The tensors as (B, H, ...), in the same memory, and of each the strides over batch, heads and positions."""
    tensors = [x[(None,) * (2 - batch)] if batch < 2 else x.flatten(0, batch - 2) for x in tensors]
    return tensors, [stride for x in tensors for stride in x.stride()[:3]]


def _sizes(values: Tensor) -> dict[str, int]:
    """The sizes of values (B, H, N, D), as kernel arguments."""
    _, heads, n, dim = values.shape
    channels = triton.next_power_of_2(dim)
    chunks = triton.cdiv(n, CHUNK)
    return {"heads": heads, "n": n, "chunks": chunks, "DIM": dim, "CHANNELS": channels, "CHUNK": CHUNK}


def _turn(sizes: dict[str, int], channels: int) -> int:
    """Positions a turn, fewer of more than `channels` channels: what does not fit into registers goes to memory."""
    return max(2, min(TURN, TURN * channels // sizes["CHANNELS"]))


def _carry(kernel: Any, arguments: Sequence[Any], rows: int, *, dim: int, **sizes: int) -> None:
    channels = min(CARRIED, triton.next_power_of_2(dim))
    grid = (rows, triton.cdiv(dim, channels))
    launch(kernel, grid, *arguments, **sizes, DIM=dim, CHANNELS=channels, CHUNK=CHUNK, TURN=TURN)


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, num_warps: int = 1, **sizes: Any) -> None:
    """Launches a kernel; a product and a sum may be one instruction, and Triton 3.9 warns where that is not said."""
    kernel[grid](*arguments, **sizes, num_warps=num_warps, enable_fp_fusion=True)


def _check(scores: Tensor, values: Tensor) -> None:
    if scores.dtype != torch.float32 or values.dtype not in (torch.float32, torch.bfloat16):
        other = values.dtype if scores.dtype == torch.float32 else scores.dtype
        raise ValueError(f"method 'triton' computes in float32, not {other}; use method='blocked'")
    if not values.is_cuda and not isinstance(scan_outputs, InterpretedFunction):
        raise ValueError(f"method 'triton' needs a CUDA device, not {values.device}; use method='auto'")
