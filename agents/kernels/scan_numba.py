"""The scan's CPU kernels, compiled by Numba on first use and kept in its cache.

The states stay in the processor's first cache while one pass goes over the values. Sums are float64 at no cost: the
pass waits for memory. Rows (batch, head) are shared among torch's threads; `group` neighboring ones, whose values lie
side by side in memory at every position, are gone through together. Where these are fewer than threads, they are cut
into stretches: at starts, which nothing passes, so that no stretch waits for the one before.
"""

import functools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numba
import numpy as np
import numpy.typing as npt
import torch
from numba.extending import overload
from torch import Tensor

from . import Array, Tensors, compiled

Index: TypeAlias = npt.NDArray[np.int64]
Arrays: TypeAlias = tuple[Array, ...]
Offset = np.uint64
EMPTY = torch.finfo(torch.float64).min  # the maximum of no scores
SHARED = 1 << 15  # elements from which a call is worth more than one thread


def _widen(number: Any) -> Any:  # a float, or bits in int16: Numba has no bfloat16
    """In a kernel: the number itself, or the float32 with these bfloat16 bits."""
    raise NotImplementedError("compiled code only")


def _narrow(number: Any, kept: Array) -> Any:
    """In a kernel: what to write for a float into `kept`: itself, or the bits of the nearest bfloat16."""
    raise NotImplementedError("compiled code only")


@overload(_widen, strict=False)
def _compiled_widen(number: Any) -> Callable[..., Any]:  # Numba's types
    if isinstance(number, numba.types.Integer):
        return lambda number: np.uint32(np.uint32(np.uint16(number)) << np.uint32(16)).view(np.float32)
    return lambda number: number


@overload(_narrow, strict=False)
def _compiled_narrow(number: Any, kept: Any) -> Callable[..., Any]:
    if not isinstance(kept.dtype, numba.types.Integer):
        return lambda number, kept: number

    def rounded(number, kept):  # type: ignore[no-untyped-def]  # noqa: ANN001,ANN202
        single = np.float32(number)
        bits = single.view(np.uint32)
        up = np.uint32(bits + np.uint32(0x7FFF) + np.uint32((bits >> np.uint32(16)) & np.uint32(1)))
        return np.int16(np.uint16(up >> np.uint32(16)) if single == single else np.uint16(0x7FC0))

    return rounded


@compiled("contract", "reassoc", "nsz")
def _decay(decays: Array, at: Index, stride: Index, row: int, k: int) -> float:
    """The log-decay of a row's position k; 0 where there are none."""
    return float(decays[at[5, row] + k * stride[5]]) if len(decays) > 0 else 0.0


@compiled("contract", "reassoc", "nsz")
def _forward(pieces: Index, group: int, given: Arrays, at: Index, stride: Index, out: Arrays, sums: Arrays) -> None:
    (scores, values, mask, starts, decays), (outputs, weights), (m, u, w) = given, out, sums
    dim = w.shape[1]
    for piece in range(len(pieces)):
        begin, state, cut, end = pieces[piece]
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
                    most[i] += _decay(decays, at, stride, row, k)
                    shrink, p = 1.0, 1.0
                    if score > most[i]:
                        shrink, most[i] = math.exp(most[i] - score), score
                    else:
                        p = math.exp(score - most[i])
                    total[i] = total[i] * shrink + p
                    inverse = 1.0 / total[i]
                    weights[row, k] = p * inverse
                    for d in range(dim):
                        summed = w[state + i, d] * shrink + p * _widen(values[value + Offset(d)])
                        w[state + i, d] = summed
                        outputs[output + Offset(d)] = summed * inverse
        for i in range(group):  # to assign to a slice takes seconds to compile
            m[state + i], u[state + i] = most[i], total[i]


@compiled("contract", "reassoc", "nsz")
def _scale(row: Array, factor: float) -> None:
    """row *= factor; zeros for a factor of 0, so that NaN of a sequence stays in it."""
    for d in range(len(row)):
        row[d] = row[d] * factor if factor != 0.0 else 0.0


@compiled("contract", "reassoc", "nsz")
def _backward(pieces: Index, group: int, given: Arrays, at: Index, stride: Index, out: Arrays, sums: Arrays) -> None:
    (weights, values, outputs, d_outputs, starts), (d_scores, d_values, d_decays), (g, c) = given, out, sums
    dim, faded = g.shape[1], len(d_decays) > 0
    for piece in range(len(pieces)):
        begin, state, cut, end = pieces[piece]
        along, keep = c[state : state + group].copy(), np.ones(group)
        for k in range(end - 1, cut - 1, -1):
            # Heads downwards as well: memory that is read in one direction comes ahead of time, twice as fast.
            for i in range(group - 1, -1, -1):
                row = begin + i
                value, output = Offset(at[0, row] + k * stride[0]), Offset(at[1, row] + k * stride[1])
                up, down = Offset(at[2, row] + k * stride[2]), Offset(at[4, row] + k * stride[4])
                weight, shrink, own, other = weights[row, k], keep[i], 0.0, 0.0
                for d in range(dim):
                    x = numba.float64(_widen(d_outputs[up + Offset(d)]))
                    total = g[state + i, d] * shrink + x
                    g[state + i, d] = total
                    own += total * _widen(values[value + Offset(d)])
                    other += outputs[output + Offset(d)] * x
                    d_values[down + Offset(d)] = _narrow(weight * total, d_values)
                along[i] = along[i] * shrink + other
                # A masked value may be anything, NaN included.
                d_scores[row, k] = weight * (own - along[i]) if weight > 0.0 else 0.0
                keep[i] = 0.0 if starts[at[3, row] + k * stride[3]] else 1.0 - weight
                if faded:
                    d_decays[row, k] = 0.0
                    if k > 0 and keep[i] > 0.0:
                        before, past = Offset(at[1, row] + (k - 1) * stride[1]), 0.0
                        for d in range(dim):
                            past += outputs[before + Offset(d)] * g[state + i, d]
                        d_decays[row, k] = keep[i] * (past - along[i])
                if keep[i] == 0.0:
                    along[i] = 0.0
                    _scale(g[state + i], 0.0)
        for i in range(group):
            c[state + i] = along[i] * keep[i]
            _scale(g[state + i], keep[i])


def forward(
    state: Tensors, scores: Tensor, values: Tensor, mask: Tensor, starts: Tensor, log_decay: Tensor | None
) -> Tensors:
    """Outputs (..., N, D), every position's weight for itself (..., N), and the state after the last, in float64.

    The outputs of bfloat16 values are float32: rounded, they would round the gradient of every earlier score.

    Args:
        state: (m, u, w) before, (...), (...) and (..., D), float64.
        scores: (..., N), float32 or float64.
        values: (..., N, D), float32, float64 or bfloat16; any strides but the channels', which lie side by side.
        mask: bool (..., N), False where a position does not count.
        starts: bool (..., N), True where a sequence begins.
        log_decay: (..., N), of the scores' type, 0 where a position does not count; None: there are no decays.
    """
    outputs = torch.empty_like(values, dtype=torch.promote_types(values.dtype, torch.float32))  # in the values' order
    weights = torch.empty(scores.shape, dtype=torch.float64)
    given = (scores, values, mask, starts, outputs)
    flat, at, stride = _flat(values.dim() - 2, *given, *(() if log_decay is None else (log_decay,)))
    n, dim = values.shape[-2:]
    group, stretches, pieces = _cut(values, starts)
    # A stretch's own. What those after the first begin with is not read: they begin with a start.
    m, u, w = (part.expand(stretches, *part.shape).clone(memory_format=torch.contiguous_format) for part in state)
    decays = flat[0][:0] if log_decay is None else flat[5]
    after = m.view(-1).numpy(), u.view(-1).numpy(), w.view(-1, dim).numpy()
    arrays = (*flat[:4], decays), at, stride, (flat[4], weights.view(-1, n).numpy()), after
    _share(_forward, values.numel(), pieces, group, *arrays)
    return outputs, weights, m[-1], u[-1], w[-1]


def backward(kept: Tensors, starts: Tensor, d_outputs: Tensor, g: Tensor, c: Tensor, decays: bool) -> Tensors:
    """Gradients of scores (..., N) and values (..., N, D), g (..., D) and c (...) before the first position, and
    gradients of log-decays (..., N), all but the first one's, or (0,).

    Args:
        kept: values (..., N, D), as `forward` takes them, and its outputs (..., N, D) and weights (..., N).
        starts: bool (..., N).
        d_outputs: (..., N, D), of the values' type, channels side by side.
        g: (..., D), float64, after the last position; `scan/fused.py` says what it is.
        c: (...), float64, likewise.
        decays: whether their gradients are wanted.
    """
    values, outputs, weights = kept
    d_scores = torch.empty(weights.shape, dtype=outputs.dtype)
    d_decays = torch.empty_like(d_scores) if decays else d_scores.new_empty(0)
    d_values = torch.empty_like(values)
    flat, at, stride = _flat(values.dim() - 2, values, outputs, d_outputs, starts, d_values)
    n, dim = values.shape[-2:]
    group, stretches, pieces = _cut(values, starts)
    g, c = (torch.cat((part.new_zeros(stretches - 1, *part.shape), part.unsqueeze(0))) for part in (g, c))
    of_weights, of_scores, of_decays = (x.view(-1, n).numpy() for x in (weights, d_scores, d_decays))
    before = g.view(-1, dim).numpy(), c.view(-1).numpy()
    arrays = (of_weights, *flat[:4]), at, stride, (of_scores, flat[4], of_decays), before
    _share(_backward, values.numel(), pieces, group, *arrays)
    # Nothing passes a start: all but the first stretch's g and c are zero.
    return d_scores, d_values, g.sum(0), c.sum(0), d_decays


def _flat(batch: int, *tensors: Tensor) -> tuple[list[Array], Index, Index]:
    """Their memory as flat arrays, the offset of every row in each (tensors, rows), and its stride over positions.

    bfloat16 is given as its bits. All have the same batch dimensions, so many.
    """
    arrays = []
    for x in tensors:
        extent = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
        flat = x.detach().as_strided((extent,), (1,))
        arrays.append((flat.view(torch.int16) if x.dtype == torch.bfloat16 else flat).numpy())
    at = _offsets(tensors[0].shape[:batch], tuple(x.stride()[:batch] for x in tensors))
    return arrays, at, np.array([x.stride(batch) for x in tensors])


@functools.lru_cache(256)  # a model's layouts are few, and come again at every call
def _offsets(batch: torch.Size, strides: tuple[tuple[int, ...], ...]) -> Index:
    return np.array(strides, np.int64) @ np.indices(batch).reshape(len(batch), math.prod(batch))


def _cut(values: Tensor, starts: Tensor) -> tuple[int, int, Index]:
    """How many rows are gone through together, into how many stretches these are cut, and all pieces of work.

    A piece is (the first of its rows, the first of its states, its first position, the one behind its last). Rows are
    cut where they are fewer than the threads, at the starts of all of them that are nearest to equal parts. Heads side
    by side stay together: a thread each for some of them takes longer than one for all, whose memory every thread
    would have to read.
    """
    *batch, n, _ = values.shape
    rows = math.prod(batch)
    group = batch[-1] if len(batch) > 1 and values.stride(-3) < values.stride(-2) else 1
    threads = _threads(n, values.numel())
    stretches = threads if rows < group * threads else 1
    begins, numbers = np.arange(0, rows, group)[:, None], np.arange(stretches)
    cuts = np.zeros((len(begins), stretches + 1), np.int64)
    cuts[:, -1] = n
    if stretches > 1:
        for own, common in zip(cuts, starts.reshape(len(begins), group, n).all(1).numpy(), strict=True):
            if len(at := np.flatnonzero(common)):
                own[1:-1] = at[np.abs(at - n * numbers[1:, None] // stretches).argmin(1)]
    parts = np.broadcast_arrays(begins, begins + rows * numbers, cuts[:, :-1], cuts[:, 1:])
    return group, stretches, np.stack(parts, -1).reshape(-1, 4)


def _threads(parts: int, elements: int) -> int:
    """How many threads share the parts of a work; one where there is too little to do."""
    return min(torch.get_num_threads(), parts) if elements >= SHARED else 1


def _share(kernel: Callable[..., None], elements: int, pieces: Index, *others: Any) -> None:
    """Runs the kernel, which is compiled without Python's lock, over all pieces, on several threads if it pays."""
    threads = _threads(len(pieces), elements)
    own, *parts = np.split(pieces, [len(pieces) * k // threads for k in range(1, threads)])
    running = [_pool(threads).submit(kernel, part, *others) for part in parts]
    kernel(own, *others)
    for other in running:
        other.result()


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads - 1, thread_name_prefix="kernel")


if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
