"""The scan's CPU kernels, compiled by Numba on first use and kept in its cache.

The states stay in the processor's first cache while one pass goes over the values. Sums are float64 at no cost: the
pass waits for memory. Rows (batch, head) are shared among torch's threads; `group` neighbouring ones, whose values lie
side by side in memory at every position, are gone through together. Where these are fewer than threads, they are cut
into stretches: at starts, which nothing passes, so that no stretch waits for the one before.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .compiling.bfloat16 import Array, as_array, narrow, widen
from .compiling.decorators import compiled
from .compiling.threads import Kernel, count_parts, share
from .layout import flatten_batch, rows_of_channels

Index: TypeAlias = npt.NDArray[np.int64]
Offset = np.uint64
EMPTY = torch.finfo(torch.float64).min  # the maximum of no scores


@compiled()
def _cut(stretch: int, stretches: int, n: int, starts: Array, at: Index, stride: int) -> int:
    """Where a stretch of rows begins: at the start of all of them that is nearest to equal parts, at 0 without one.

    Args:
        stretch: from 0; the one after the last begins at N.
        stretches: of the rows.
        n: N, positions.
        starts: flat memory.
        at: where in it each of the rows begins, (rows,).
        stride: from a position to the next in it.
    """
    if stretch == 0 or stretch == stretches:
        return n if stretch else 0
    aim = n * stretch // stretches
    for away in range(n if stride else 0):  # without a stride one value stands for all: there are no starts
        for k in (aim - away, aim + away):
            common = 0 <= k < n
            for row in at:
                common = common and starts[row + k * stride]
            if common:
                return k
    return 0


@compiled()
def _piece(
    piece: int, group: int, stretches: int, shape: tuple[int, int], starts: Array, at: Index, stride: int
) -> tuple[int, int, int, int]:
    """The first of a piece's rows, of its states, and of its positions, and where these end; a piece is one stretch.

    Args:
        piece: from 0; those of the same rows are neighbours.
        group: rows of a piece.
        stretches: of the rows.
        shape: (rows, N), of all.
        starts: flat memory.
        at: (rows,), of all.
        stride: from a position to the next.
    """
    stretch, begin = piece % stretches, piece // stretches * group
    rows, n = shape
    own = at[begin : begin + group]
    cut, end = _cut(stretch, stretches, n, starts, own, stride), _cut(stretch + 1, stretches, n, starts, own, stride)
    return begin, stretch * rows + begin, cut, end


@compiled("contract", "reassoc", "nsz")
def _forward(
    first: int,
    last: int,
    group: int,
    stretches: int,
    scores: Array,
    values: Array,
    mask: Array,
    starts: Array,
    at: Index,
    stride: Index,
    outputs: Array,
    weights: Array,
    m: Array,
    u: Array,
    w: Array,
) -> None:
    dim = w.shape[1]
    for piece in range(first, last):
        begin, state, cut, end = _piece(piece, group, stretches, weights.shape, starts, at[3], stride[3])
        # Copies: the rows' numbers share a cache line, which threads that both write to it would take from each other.
        most, total = m[state : state + group].copy(), u[state : state + group].copy()
        for k in range(cut, end):
            for i in range(group):
                row = begin + i
                # Without a sign: Numba would allow for a negative index in every element, and use no vectors. Slices
                # need no sign either, but the references to them are counted, which takes a quarter of the time.
                value, output = Offset(at[1, row] + k * stride[1]), Offset(at[4, row] + k * stride[4])
                if starts[at[3, row] + k * stride[3]]:
                    most[i], total[i] = EMPTY, 0.0
                    w[state + i, :] = 0.0
                score = float(scores[at[0, row] + k * stride[0]])
                if score == -math.inf or not mask[at[2, row] + k * stride[2]]:
                    weights[row, k] = 0.0
                    inverse = 1.0 / total[i] if total[i] > 0 else 0.0
                    for d in range(dim):
                        outputs[output + Offset(d)] = w[state + i, d] * inverse
                else:
                    shrink, p = 1.0, 1.0
                    if score > most[i]:
                        shrink, most[i] = math.exp(most[i] - score), score
                    else:
                        p = math.exp(score - most[i])
                    total[i] = total[i] * shrink + p
                    inverse = 1.0 / total[i]
                    weights[row, k] = p * inverse
                    for d in range(dim):
                        summed = w[state + i, d] * shrink + p * widen(values[value + Offset(d)])
                        w[state + i, d] = summed
                        outputs[output + Offset(d)] = summed * inverse
        for i in range(group):  # to assign to a slice takes seconds to compile
            m[state + i], u[state + i] = most[i], total[i]


@compiled("contract", "reassoc", "nsz")
def _backward(
    first: int,
    last: int,
    group: int,
    stretches: int,
    weights: Array,
    values: Array,
    outputs: Array,
    d_outputs: Array,
    starts: Array,
    at: Index,
    stride: Index,
    d_scores: Array,
    d_values: Array,
    g: Array,
    c: Array,
) -> None:
    dim = g.shape[1]
    for piece in range(first, last):
        begin, state, cut, end = _piece(piece, group, stretches, weights.shape, starts, at[3], stride[3])
        along, keep = c[state : state + group].copy(), np.ones(group)
        for k in range(end - 1, cut - 1, -1):
            # Heads downwards as well: memory that is read in one direction comes ahead of time, twice as fast.
            for i in range(group - 1, -1, -1):
                row = begin + i
                value, output = Offset(at[0, row] + k * stride[0]), Offset(at[1, row] + k * stride[1])
                up, down = Offset(at[2, row] + k * stride[2]), Offset(at[4, row] + k * stride[4])
                weight, shrink, own, other = weights[row, k], keep[i], 0.0, 0.0
                for d in range(dim):
                    x = numba.float64(widen(d_outputs[up + Offset(d)]))
                    total = g[state + i, d] * shrink + x
                    g[state + i, d] = total
                    own += total * widen(values[value + Offset(d)])
                    other += outputs[output + Offset(d)] * x
                    d_values[down + Offset(d)] = narrow(weight * total, d_values)
                along[i] = along[i] * shrink + other
                # A masked value may be anything, NaN included.
                d_scores[row, k] = weight * (own - along[i]) if weight > 0.0 else 0.0
                keep[i] = 0.0 if starts[at[3, row] + k * stride[3]] else 1.0 - weight
        for i in range(group):
            c[state + i] = along[i] * keep[i]
            for d in range(dim):
                g[state + i, d] *= keep[i]


def forward(
    scores: Tensor, values: Tensor, m: Tensor, u: Tensor, w: Tensor, mask: Tensor, starts: Tensor
) -> tuple[Tensor, ...]:
    """Outputs (..., N, D), every position's weight for itself (..., N), and the state after the last, in float64.

    The outputs of bfloat16 values are float32: rounded, they would round the gradient of every earlier score.

    Args:
        scores: (..., N), float32 or float64.
        values: (..., N, D), float32, float64 or bfloat16, of any strides.
        m: (...), float64, as are u and w: the state before.
        u: (...).
        w: (..., D).
        mask: bool (..., N), False where a position does not count.
        starts: bool (..., N), True where a sequence begins.
    """
    values = rows_of_channels(values)
    outputs = torch.empty_like(values, dtype=torch.promote_types(values.dtype, torch.float32))  # in the values' order
    weights = torch.empty(scores.shape, dtype=torch.float64)
    flat, at, stride = _flat(scores, values, mask, starts, outputs)
    n, dim = values.shape[-2:]
    group, stretches = _split(values)
    # A stretch's own. What those after the first begin with is not read: they begin with a start.
    m, u, w = (part.expand(stretches, *part.shape) if stretches > 1 else part for part in (m, u, w))
    m, u, w = (part.clone(memory_format=torch.contiguous_format) for part in (m, u, w))
    arrays = (*flat[:4], at, stride, flat[4], weights.view(-1, n).numpy())
    state = m.view(-1).numpy(), u.view(-1).numpy(), w.view(-1, dim).numpy()
    _share(_forward, values, group, stretches, *arrays, *state)
    return outputs, weights, *((m, u, w) if stretches == 1 else (m[-1], u[-1], w[-1]))


def backward(
    weights: Tensor,
    values: Tensor,
    outputs: Tensor,
    d_outputs: Tensor,
    g: Tensor,
    c: Tensor,
    starts: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients of scores (..., N) and values (..., N, D), and g (..., D) and c (...) before the first position.

    Args:
        weights: (..., N), float64, from `forward`.
        values: (..., N, D).
        outputs: (..., N, D), from `forward`.
        d_outputs: (..., N, D), of the values' type.
        g: (..., D), float64, after the last position; `scan/fused.py` says what it is.
        c: (...), float64, likewise.
        starts: bool (..., N).
    """
    values, d_outputs = rows_of_channels(values), rows_of_channels(d_outputs)
    d_scores = torch.empty(weights.shape, dtype=outputs.dtype)
    d_values = torch.empty_like(values)
    flat, at, stride = _flat(values, outputs, d_outputs, starts, d_values)
    n, dim = values.shape[-2:]
    group, stretches = _split(values)
    if stretches > 1:
        g, c = (torch.cat((part.new_zeros(stretches - 1, *part.shape), part.unsqueeze(0))) for part in (g, c))
    else:
        g, c = (part.clone(memory_format=torch.contiguous_format) for part in (g, c))
    arrays = (weights.view(-1, n).numpy(), *flat[:4], at, stride, d_scores.view(-1, n).numpy(), flat[4])
    _share(_backward, values, group, stretches, *arrays, g.view(-1, dim).numpy(), c.view(-1).numpy())
    # Nothing passes a start: all but the first stretch's are zero.
    return d_scores, d_values, *((g, c) if stretches == 1 else (g.sum(0), c.sum(0)))


def _flat(*tensors: Tensor) -> tuple[list[Array], Index, Index]:
    """Their memory as flat arrays, the offset of every row in them (5, rows), and their strides over positions (5,)."""
    arrays = []
    for x in tensors:
        extent = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
        arrays.append(as_array(x.as_strided((extent,), (1,))))
    at, *strides = flatten_batch(tensors)
    return arrays, at.numpy(), torch.tensor(strides).numpy()


def _split(values: Tensor) -> tuple[int, int]:
    """How many rows are gone through together, and in how many stretches where these are fewer than the threads.

    Heads side by side stay together: a thread each for some of them takes longer than one for all, whose memory every
    thread would have to read.
    """
    *batch, n, _ = values.shape
    group = batch[-1] if len(batch) > 1 and values.stride(-3) < values.stride(-2) else 1
    threads = count_parts(n, values.numel())
    return group, threads if math.prod(batch) < group * threads else 1


def _share(kernel: Kernel, values: Tensor, group: int, stretches: int, *arrays: Array) -> None:
    """Runs the kernel over the stretches of all rows, none of which needs another, on several threads if it pays."""
    pieces = values.shape[:-2].numel() // group * stretches
    share(kernel, count_parts(pieces, values.numel()), pieces, group, stretches, *arrays)
