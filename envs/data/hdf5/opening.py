"""HDF5 files of unknown origin: what must pass before a number is read or memory is taken."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ....base.errors import AarenRLError, DataError, one_line
from ....base.processes import run_child
from ..columns import check_size
from ..download import verify_pin
from ..storage import MappedArray, release, row_blocks

_FETCH = "get the file again; a local dataset is made again if you delete it"

# In D4RL's files and Minari's, and as large as what is read of them.
_UNUSED = {"next_observations", "infos", "metadata"}

# What h5py raises on a file whose structure is damaged depends on where the damage is.
_HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)

# Reading is far faster than this, even where others keep the machine busy.
_SECONDS, _BYTES_PER_SECOND = 60, 2**20
_BLOCK_BYTES = 2**26
_READ_ALL = f"import sys; from {__name__} import read_all; read_all(sys.argv[1])"


class Hdf5Column:
    """A dataset of a file as a `columns.Column`; HDF5 converts its numbers as it reads them."""

    def __init__(self, data: h5py.Dataset) -> None:
        self.place, self.shape, self.dtype, self._data = place_of(data), data.shape, data.dtype, data
        # HDF5 takes memory for whole chunks, which may be larger than the dataset.
        self.claims = max(math.prod(data.shape), math.prod(data.chunks) if data.chunks else 0)

    def values(self) -> npt.NDArray[Any]:
        values: npt.NDArray[Any] = self._data[()]
        return values

    def read_into(self, out: npt.NDArray[Any]) -> None:
        mapped = isinstance(out, MappedArray)
        for rows in _whole_chunks(self._data, len(out)) if mapped else [np.s_[: len(out)]]:
            self._data.read_direct(out, rows, rows)
            release(out)


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open a file for reading; every failure in the body that comes from a damaged file becomes a DataError."""
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise DataError(f"{path}: {what}; check the path, or get the file and put it there")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty (0 bytes), so its download or copy did not finish; {_FETCH}")
    try:
        # Clusters mount data where file locks do not exist, and nothing here writes. Every chunk is read once and as a
        # whole, so a cache of chunks would serve nothing; with it, a million steps took 24 MiB more.
        with h5py.File(path, "r", locking="best-effort", rdcc_nbytes=0) as file:
            yield file
    except PermissionError as error:
        raise DataError(f"{path}: no permission to read it; change the file's mode or owner") from error
    except _HDF5_ERRORS as error:
        reason = one_line(error)
        cause = "the file is truncated" if "truncated" in reason else "not a readable HDF5 file"
        raise DataError(f"{path}: {cause} ({reason}); {_FETCH}") from error


def check_file(path: Path) -> None:
    """Hold a file to its pin; where it has none, have another process read it first, once.

    libhdf5 itself may crash, or never end, on a damaged file: that is a DataError, as is another file than the pinned.
    """
    if path.is_file() and not verify_pin(path):  # otherwise the reader says what is wrong
        state = path.stat()
        _try_once(str(path.absolute()), state.st_ino, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=1024)
def _try_once(path: str, _inode: int, size: int, _modified: int) -> None:
    code, _ = run_child(_READ_ALL, path, seconds=_SECONDS + size // _BYTES_PER_SECOND)
    if code not in (0, 1):  # 1: an error of Python's, which the reader names
        did = "does not finish" if code is None else "crashes"
        raise DataError(f"{path}: the HDF5 library {did} on it, so it is damaged; {_FETCH}")


def read_all(path: str) -> None:
    """Read what any reader here would; what is wrong with the file otherwise is for that reader to say."""
    with suppress(DataError), open_hdf5(Path(path)) as file:
        dict(file.attrs)
        _read_group(file, depth=3)


def _read_group(group: h5py.Group, depth: int) -> None:
    for key in set(group) - _UNUSED:
        with suppress(*_HDF5_ERRORS, AarenRLError):
            entry = plain_entry(group, key, h5py.HLObject)
            if isinstance(entry, h5py.Dataset):
                check_size([Hdf5Column(entry)], Path(group.file.filename))
                for rows in _whole_chunks(entry):
                    entry[rows]
            elif depth:
                _read_group(entry, depth - 1)


def _whole_chunks(data: h5py.Dataset, n_rows: int | None = None) -> Iterator[Any]:
    """Slices of the first rows, of whole chunks, that need little memory; all of what has no rows."""
    if not data.shape:
        return iter([()])
    chunk, row = (data.chunks or (1,))[0], max(1, data.nbytes // max(1, data.shape[0]))
    return row_blocks(data.shape[0] if n_rows is None else n_rows, chunk * max(1, _BLOCK_BYTES // (chunk * row)))


def plain_entry(parent: h5py.Group, key: str, kind: type, layout: str = "this layout") -> Any:  # noqa: ANN401  a `kind`
    """The group or the dataset of real numbers `key` of `parent`, which must lie in the file itself.

    Raises:
        DataError: it is missing, a link, of another kind, virtual, stored outside the file, or not numeric; use a file
            in `layout` ("D4RL's layout").
    """
    link, place, use = parent.get(key, getlink=True), place_of(parent, key), f"use a file in {layout}"
    if link is None:
        found = ", ".join(ascii(name) for name in sorted(parent)[:20]) or "nothing"
        raise DataError(f"{': missing '.join(place.rsplit(':', 1))} (found: {found}); {use}")
    if not isinstance(link, h5py.HardLink):
        which = "an external link" if isinstance(link, h5py.ExternalLink) else "a soft link"
        raise DataError(f"{place} is {which}; copy the data into the file itself")
    entry = parent[key]
    if not isinstance(entry, kind):
        raise DataError(f"{place} is a {type(entry).__name__.lower()}, not a {kind.__name__.lower()}; {use}")
    if isinstance(entry, h5py.Dataset):
        if entry.is_virtual or entry.external:
            where = "a virtual dataset" if entry.is_virtual else "kept in external storage"
            raise DataError(f"{place} is {where}, so its data are in other files; copy them into the file itself")
        if entry.dtype.kind not in "biuf" or entry.shape is None:
            raise DataError(f"{place} holds {entry.dtype}, not real numbers; {use}")
    return entry


def place_of(entry: h5py.HLObject, key: str = "") -> str:
    """An entry, or `key` inside it, as a message has it: FILE:NAME."""
    return f"{entry.file.filename}:{f'{entry.name}/{key}'.strip('/')}"
