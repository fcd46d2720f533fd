"""The scan's forward pass on CUDA devices, parallel over chunks of 64 positions.

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
"""

from __future__ import annotations

from typing import TypeAlias

import torch
import triton
import triton.language as tl

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
