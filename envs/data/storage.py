"""Where the large arrays of a dataset lie, in memory or mapped from the disk, and how they are walked through."""

import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.errors import ResourcesError
from ...base.files import cache_dir

# Rows per step of reductions: float64 copies of a million rows at once would double the memory.
_BLOCK_ROWS = 65536

_AT_ONCE = 2**30  # bytes


def row_blocks(n_rows: int, block: int = _BLOCK_ROWS) -> Iterator[slice]:
    """Consecutive slices of `n_rows` rows, small enough for temporary copies."""
    return (slice(start, min(start + block, n_rows)) for start in range(0, n_rows, block))


class MappedArray(np.memmap[Any, Any]):
    """An array of `allocate`; views of it are, too, copies are not."""

    _mmap: mmap.mmap | None  # NumPy's
    file: int | None = None  # its descriptor
    begin = 0  # address of the first byte of the file

    def __array_finalize__(self, obj: Any) -> None:  # noqa: ANN401  as NumPy's
        super().__array_finalize__(obj)
        if self._mmap is not None:
            self.file, self.begin = getattr(obj, "file", None), getattr(obj, "begin", 0)


def has_room(size: int) -> bool:
    """Whether the disk has so many bytes to spare for a memory map."""
    folder = next(path for path in (cache_dir(), *cache_dir().parents) if path.is_dir())
    return os.access(folder, os.W_OK) and size < shutil.disk_usage(folder).free / 2


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
            array = MappedArray(file, dtype, "w+", shape=shape)
            array.file, array.begin = os.dup(file.fileno()), array.ctypes.data
        weakref.finalize(array._mmap, os.close, array.file)
        return array
    except OSError as error:
        raise ResourcesError(
            f"{folder}: no memory map of {size / 1e9:,.1f} GB can be written there ({error.strerror}); free space, or "
            "name another folder in AAREN_RL_CACHE"
        ) from error


def release(array: npt.NDArray[Any]) -> None:
    """Give back the memory of what was read of a mapped array; the system reads it again where it is used."""
    mapped: mmap.mmap | None = getattr(array, "_mmap", None)  # of np.memmap; None: a copy of one
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def gather(array: npt.NDArray[Any], rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """`array[rows]`, of rows (K,). Of a mapped array they are read: a map would take up to 2 MB of memory for each."""
    file: int | None = getattr(array, "file", None)
    if file is None or not rows.size or not hasattr(os, "preadv") or not array.flags.c_contiguous:
        return array[rows]
    found = np.empty((len(rows), *array.shape[1:]), array.dtype)
    size, offset = found.nbytes // len(rows), array.ctypes.data - getattr(array, "begin", 0)
    ends = [*(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
    start = 0
    for end in ends:  # of rows that follow each other
        if size * (end - start) > _AT_ONCE:  # more than the system reads in one call
            found[start:end] = array[rows[start] : rows[start] + end - start]
        elif os.preadv(file, [found[start:end].data], offset + size * int(rows[start])) != size * (end - start):
            raise OSError(f"{cache_dir()}: a memory map could not be read")
        start = end
    return found


def blocks(array: npt.NDArray[Any], rows: npt.NDArray[np.int64] | None = None) -> Iterator[npt.NDArray[Any]]:
    """An array by blocks of rows, or some `rows` of it by copies of as many; a mapped one takes no more memory."""
    for part in row_blocks(len(array) if rows is None else len(rows)):
        yield array[part] if rows is None else gather(array, rows[part])
        release(array)
