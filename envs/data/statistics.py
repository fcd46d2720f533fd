"""Means and deviations of observation columns, in float64 and without a second copy of the data."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

# Rows per step of the reductions below: float64 copies of a million rows at once would double the memory.
_BLOCK_ROWS = 65536

# A column whose spread is below this share of its size, or below the last number, holds rounding noise, not a signal.
_NOISE = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-12}
_LEAST_STD = 1e-12
# Deviations from zero from which on the distance of float32 numbers is more than 1e-4 of a deviation.
_FAR = 1e3


def row_blocks(n_rows: int, block: int = _BLOCK_ROWS) -> Iterator[slice]:
    """Consecutive slices of `n_rows` rows, small enough for temporary copies."""
    return (slice(start, min(start + block, n_rows)) for start in range(0, n_rows, block))


class Statistics(NamedTuple):
    """Of each observation column, (O,): its mean and standard deviation (ddof 0), and whether it is constant.

    The deviation of a constant column is 1: divided by the customary 1e-6, a small departure from it in a rollout
    (Ant's contact forces, zero in D4RL's files) would reach the network a million times too large.
    """

    mean: npt.NDArray[Any]
    std: npt.NDArray[Any]
    constant: npt.NDArray[np.bool_]


def moments(
    values: npt.NDArray[Any], rows: npt.NDArray[np.int64] | None = None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean and standard deviation (ddof 0) of each column of (N, O), or of some `rows` of it, both (O,), in float64."""
    count = len(values) if rows is None else len(rows)
    parts = [block if rows is None else rows[block] for block in row_blocks(count)]
    total, squares = np.zeros((2, values.shape[1]))
    for part in parts:
        total = np.concatenate([total[None], values[part]]).sum(axis=0)
    mean = total / count
    for part in parts:
        squares += np.square(values[part] - mean).sum(axis=0)
    return mean, np.sqrt(squares / count)


def is_far(mean: npt.NDArray[np.float64], std: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Of each column, (O,), whether it lies so many of its deviations from zero that float32 loses what it is about."""
    return np.abs(mean) > _FAR * std


def statistics(observations: npt.NDArray[Any], rows: npt.NDArray[np.int64] | None = None) -> Statistics:
    """Of observations (N, O), or of some `rows` of them; mean and deviation are of their type."""
    mean, std = moments(observations, rows)
    dtype = observations.dtype
    constant = std < np.maximum(_LEAST_STD, _NOISE[dtype] * np.abs(mean))
    return Statistics(mean.astype(dtype), np.where(constant, 1.0, std).astype(dtype), constant)
