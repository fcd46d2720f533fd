"""Where observations lie: as float32, or as float64 where that counts; in memory, or mapped from the disk."""

import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ResourcesError
from ..files import cache_dir
from ..system import free_bytes
from .statistics import is_far, moments

Fill = Callable[[npt.NDArray[Any]], object]  # reads the first rows into an array of them

# Over the bytes of a dataset as float32: its returns, its places and the temporary copies of training.
_MARGIN = 1.3
_FIRST_ROWS = 65536  # enough to see whether a column of float64 moves


def is_too_large(claimed: int) -> bool:
    """Whether a dataset of so many bytes does not fit into memory, but on the disk."""
    free = free_bytes()
    if free is None or _MARGIN * claimed <= free:
        return False
    folder = next(path for path in (cache_dir(), *cache_dir().parents) if path.is_dir())
    return claimed < shutil.disk_usage(folder).free / 2


def allocate(shape: tuple[int, ...], dtype: npt.DTypeLike, mapped: bool) -> npt.NDArray[Any]:
    """An array to fill; `mapped`: from a file without a name, which is gone with the last use of the array.

    ResourcesError: the file cannot be made, or the disk is full.
    """
    if not mapped:
        return np.empty(shape, dtype)
    folder, size = cache_dir(), int(np.prod(shape)) * np.dtype(dtype).itemsize
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # a full disk would kill the process where it writes to the map
                os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, dtype, "w+", shape=shape)
    except OSError as error:
        raise ResourcesError(
            f"{folder}: no memory map of {size / 1e9:,.1f} GB can be written there ({error.strerror}); free space, or "
            "name another folder in AAREN_RL_CACHE"
        ) from error


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
