"""Observations of a dataset: flattened, in the type they need; means and deviations of columns, without a copy."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...base.ranges import FAR
from .storage import allocate, blocks

Fill = Callable[[npt.NDArray[Any]], object]  # reads the first rows into an array of them

# A column whose spread is below this share of its size, or below the last number, holds rounding noise, not a signal.
_NOISE = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-12}
_LEAST_STD = 1e-12
_FIRST_ROWS = 65536  # enough to see whether a column of float64 moves
_AT_ONCE = 8192  # rows of a temporary copy


class Statistics(NamedTuple):
    """Of each observation column, (O,): its mean and standard deviation (ddof 0), and whether it is constant.

    The deviation of a constant column is 1: divided by the customary 1e-6, a small departure from it in a rollout
    (Ant's contact forces, zero in D4RL's files) would reach the network a million times too large.
    """

    mean: npt.NDArray[Any]
    std: npt.NDArray[Any]
    constant: npt.NDArray[np.bool_]


def statistics(
    observations: npt.NDArray[Any],
    rows: npt.NDArray[np.int64] | None = None,
    weights: npt.NDArray[np.float64] | None = None,
) -> Statistics:
    """Of observations (N, O), or of some `rows` of them, each with a weight; mean and deviation are of their type."""
    mean, std = moments(observations, rows, weights)
    dtype = observations.dtype
    constant = std < np.maximum(_LEAST_STD, _NOISE[dtype] * np.abs(mean))
    return Statistics(mean.astype(dtype), np.where(constant, 1.0, std).astype(dtype), constant)


def moments(
    values: npt.NDArray[Any],
    rows: npt.NDArray[np.int64] | None = None,
    weights: npt.NDArray[np.float64] | None = None,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean and standard deviation (ddof 0) of each column of (N, O), or of some `rows` of it, both (O,), in float64.

    `weights` (N,), of the rows taken, tell how much each counts; None: all the same.
    """
    count = len(values) if rows is None else len(rows)
    weights = np.ones(count) if weights is None else weights
    sums = [np.zeros(values.shape[1]), np.zeros(values.shape[1])]
    mean = np.zeros(values.shape[1])
    for power in (1, 2):
        start = 0
        for block in blocks(values, rows):
            for part in np.array_split(block, -(-len(block) // _AT_ONCE)):
                sums[power - 1] += weights[start : start + len(part)] @ (part - mean) ** power
                start += len(part)
        mean = sums[0] / weights.sum()
    return mean, np.sqrt(sums[1] / weights.sum())


def is_far(mean: npt.NDArray[np.float64], std: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Of each column, (O,), whether it lies so many of its deviations from zero that float32 loses what it is about."""
    return np.abs(mean) > FAR * std


def read_observations(
    fill: Fill, shape: tuple[int, int], stored: npt.DTypeLike, mapped: bool = False
) -> npt.NDArray[Any]:
    """Observations (N, O) as float32, or all in float64 if float32 would lose what a column is about.

    Degrees, times or ticks may lie many of their deviations from zero. `stored` is the type that they come in.
    """
    observations = allocate(shape, np.float32, mapped)
    fill(observations)
    if np.can_cast(stored, np.float32) or not (far := is_far(*moments(observations))).any():
        return observations
    first = np.empty((min(len(observations), _FIRST_ROWS), shape[1]))
    fill(first)
    low, high = observations[:, far].min(axis=0), observations[:, far].max(axis=0)
    if np.array_equal(low, high) and np.array_equal(first[:, far].min(axis=0), first[:, far].max(axis=0)):
        return observations  # constant columns
    del observations
    exact = allocate(shape, np.float64, mapped)
    fill(exact)
    return exact


def narrowed(observations: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Observations (N, O) in memory as `read_observations` reads them."""

    def fill(out: npt.NDArray[Any]) -> None:
        out[...] = observations[: len(out)]

    return read_observations(fill, observations.shape, observations.dtype)
