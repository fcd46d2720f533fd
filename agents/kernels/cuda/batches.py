"""Training batches in Triton: stretches of a data set's steps, found and normalised as they are written.

One launch instead of two dozen; what is drawn stays torch's. `train/contexts/batches.py` says what a batch is.

Shape suffixes: N steps in the data set, B rows, T steps a row, S stretches, O observation, A action.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import MOST_REGISTERS, launch
from .rows import Pointer

ROWS = 32  # steps of a program
SCANNED = 1024  # stretches at once, of the one program that adds them up


class Source(NamedTuple):
    """A data set: contiguous, float32 but for times and ends, int64."""

    observations: Tensor  # (N, O)
    actions: Tensor  # (N, A)
    returns_to_go: Tensor  # (N,)
    timesteps: Tensor  # (N,)
    end: Tensor  # of the step's episode, (N,)
    mean: Tensor  # of the observations, (O,), as their deviation
    std: Tensor
    middle: Tensor  # of the actions' range, (A,), as its half
    half: Tensor


class Found(NamedTuple):
    """The fields of `train/contexts/batches.py`'s Batch."""

    observations: Tensor
    actions: Tensor
    returns_to_go: Tensor
    timesteps: Tensor
    mask: Tensor
    starts: Tensor | None


@triton.jit  # type: ignore[untyped-decorator]
def add_lengths(
    begins: Pointer, uniform: Pointer, end: Pointer, after: Pointer, count: int, low: float, high: float,
    SCANNED: tl.constexpr,
) -> None:  # fmt: skip
    """Where each stretch ends if all lie end to end: lengths are log-uniform, cut where their episode ends."""
    total = tl.zeros((), tl.int64)
    for first in range(0, count, SCANNED):
        i = first + tl.arange(0, SCANNED)
        begin = tl.load(begins + i, mask=i < count, other=0)
        share = tl.load(uniform + i, mask=i < count, other=0.0)
        length = tl.floor(tl.exp(low + (high - low) * share) + 0.5).to(tl.int64)
        length = tl.where(i < count, tl.minimum(length, tl.load(end + begin) - begin), 0)
        tl.store(after + i, total + tl.cumsum(length, 0), mask=i < count)
        total += tl.sum(length, 0)


@triton.jit  # type: ignore[untyped-decorator]
def take_steps(
    observations: Pointer, actions: Pointer, returns: Pointer, times: Pointer, end: Pointer, mean: Pointer,
    std: Pointer, middle: Pointer, half: Pointer, begins: Pointer, after: Pointer, to_observations: Pointer,
    to_actions: Pointer, to_returns: Pointer, to_times: Pointer, mask: Pointer, starts: Pointer, total: int, count: int,
    T: tl.constexpr, SEEN: tl.constexpr, SEEN_UP: tl.constexpr, A: tl.constexpr, A_UP: tl.constexpr, ROWS: tl.constexpr,
    HALVINGS: tl.constexpr, PACKED: tl.constexpr,
) -> None:  # fmt: skip
    """Some steps of the batch, where they are in the data set, and their numbers.

    PACKED: of the stretch in which the step lies, by `after`; else of its row's window, filled up with its first step.
    """
    place, o, a = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, SEEN_UP), tl.arange(0, A_UP)
    there = place < total
    if PACKED:
        stretch, beyond = tl.zeros((ROWS,), tl.int32), tl.zeros((ROWS,), tl.int32) + count
        for _ in range(HALVINGS):
            halfway = (stretch + beyond) // 2
            later = tl.load(after + halfway, mask=stretch < beyond, other=0) > place
            stretch, beyond = (
                tl.where((stretch < beyond) & (later == 0), halfway + 1, stretch),
                tl.where((stretch < beyond) & later, halfway, beyond),
            )
        since = place - tl.load(after + stretch - 1, mask=there & (stretch > 0), other=0)
        step, real = tl.load(begins + stretch, mask=there, other=0) + since, there
        tl.store(starts + place, (since == 0).to(tl.uint8), mask=there)
    else:
        begin = tl.load(begins + place // T, mask=there, other=0)
        step = begin + place % T
        real = there & (step < tl.load(end + begin, mask=there, other=0))
        step = tl.where(real, step, begin)
    tl.store(mask + place, real.to(tl.uint8), mask=there)
    tl.store(to_returns + place, tl.load(returns + step, mask=there, other=0.0), mask=there)
    tl.store(to_times + place, tl.load(times + step, mask=there, other=0), mask=there)
    seen, sizes = there[:, None] & (o < SEEN)[None, :], o < SEEN
    number = tl.load(observations + step[:, None] * SEEN + o[None, :], mask=seen, other=0.0)
    number -= tl.load(mean + o, mask=sizes, other=0.0)[None, :]
    number /= tl.load(std + o, mask=sizes, other=1.0)[None, :]
    tl.store(to_observations + place[:, None] * SEEN + o[None, :], number, mask=seen)
    seen, sizes = there[:, None] & (a < A)[None, :], a < A
    number = tl.load(actions + step[:, None] * A + a[None, :], mask=seen, other=0.0)
    number -= tl.load(middle + a, mask=sizes, other=0.0)[None, :]
    number /= tl.load(half + a, mask=sizes, other=1.0)[None, :]
    tl.store(to_actions + place[:, None] * A + a[None, :], number, mask=seen)


def ends(begins: Tensor, uniform: Tensor, source: Source, low: float, high: float) -> Tensor:
    """Where each stretch ends if all lie end to end, int64 (S,).

    Args:
        begins: their first steps, int64 (S,).
        uniform: float32 in [0, 1), (S,); lengths are exp(low + (high - low) uniform), rounded.
        source: in which episodes end.
        low: logarithm of the least length.
        high: of the largest.
    """
    after = torch.empty_like(begins)
    launch(
        add_lengths, (1,), begins, uniform, source.end, after, len(begins), low, high, SCANNED=SCANNED, num_warps=8
    )  # fmt: skip
    return after


def take(source: Source, begins: Tensor, shape: tuple[int, int], after: Tensor | None = None) -> Found:
    """A batch of (B, T) steps.

    Args:
        source: the data set.
        begins: the first step of every row or, with `after`, of every stretch, int64.
        shape: B, which is 1 with `after`, and T.
        after: where each stretch ends if all lie end to end, int64 (S,); the last is at least T.
    """
    numbers = {"SEEN": source.observations.shape[1], "A": source.actions.shape[1]}
    padded = {f"{name}_UP": triton.next_power_of_2(size) for name, size in numbers.items()}
    floats = [source.mean.new_empty(*shape, *more) for more in ((numbers["SEEN"],), (numbers["A"],), ())]
    times, mask, starts = (begins.new_empty(shape, dtype=t) for t in (torch.int64, torch.bool, torch.bool))
    total, count = shape[0] * shape[1], 0 if after is None else len(after)
    launch(
        take_steps, (triton.cdiv(total, ROWS),), *source, begins, begins if after is None else after, *floats, times,
        mask.view(torch.uint8), starts.view(torch.uint8), total, count,
        T=shape[1], **numbers, **padded, ROWS=ROWS, HALVINGS=count.bit_length(), PACKED=after is not None,
        num_warps=4, maxnreg=MOST_REGISTERS,
    )  # fmt: skip
    return Found._make((*floats, times, mask, None if after is None else starts))
