"""HDF5 files of unknown origin: what must pass before a number is read or memory is taken, and reading numbers."""

import math
import os
import subprocess
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ...errors import DataError, EnvsError, one_line
from ...processes import start_child
from ..download import verify_pin

Bounds = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]

_FETCH = "get the file again; a local dataset is made again if you delete it"

# gzip reaches about 1000:1 on constant data, so an honest file never promises more than that.
_MAX_EXPANSION = 1000
_EXPANSION_SLACK_BYTES = 64 * 2**20

# In D4RL's files and Minari's, and as large as what is read of them.
_UNUSED = {"next_observations", "infos", "metadata"}

# What h5py raises on a file whose structure is damaged depends on where the damage is.
_HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)

# Reading is far faster than this, even where others keep the machine busy.
_SECONDS, _BYTES_PER_SECOND = 60, 2**20
_READ_ALL = f"import sys; from {__name__} import read_all; read_all(sys.argv[1])"


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
    nothing, did = subprocess.DEVNULL, "crashes"
    child = start_child(_READ_ALL, [path], flags=["-P"], stdout=nothing, stderr=nothing)
    try:
        code = child.wait(_SECONDS + size // _BYTES_PER_SECOND)
    except subprocess.TimeoutExpired:
        child.kill()
        code, did = child.wait(), "does not finish"
    if code not in (0, 1):  # 1: an error of Python's, which the reader names
        raise DataError(f"{path}: the HDF5 library {did} on it, so it is damaged; {_FETCH}")


def read_all(path: str) -> None:
    """Read what any reader here would; what is wrong with the file otherwise is for that reader to say."""
    with suppress(DataError), open_hdf5(Path(path)) as file:
        dict(file.attrs)
        _read_group(file, depth=2)


def _read_group(group: h5py.Group, depth: int) -> None:
    for key in set(group) - _UNUSED:
        with suppress(*_HDF5_ERRORS, EnvsError):
            entry = plain_entry(group, key, h5py.HLObject)
            if isinstance(entry, h5py.Dataset):
                check_size([entry])
                entry[()]
            elif depth:
                _read_group(entry, depth - 1)


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


def check_shapes(datasets: Iterable[h5py.Dataset], shapes: Iterable[tuple[int | None, ...]], steps: int) -> None:
    """Raises DataError where an array has no numbers or another shape than `steps` go with; None: any number."""
    for data, wanted in zip(datasets, shapes, strict=True):
        pairs = zip(wanted, data.shape, strict=False)
        if data.ndim != len(wanted) or not data.size or any(w not in (None, found) for w, found in pairs):
            shown = str(wanted).replace("None", "any number")
            raise DataError(f"{place_of(data)} has shape {data.shape}; {steps:,} rewards go with {shown}; {_FETCH}")


def check_size(datasets: Collection[h5py.Dataset], taken: int = 0) -> int:
    """The bytes of datasets of one file as float32, with those `taken` before; DataError: it cannot hold as much."""
    path = next(iter(datasets)).file.filename
    # HDF5 takes memory for whole chunks, which may be larger than the dataset.
    sizes = [max(math.prod(data.shape), math.prod(data.chunks) if data.chunks else 0) for data in datasets]
    claimed, size = taken + 4 * int(sum(sizes)), os.path.getsize(path)
    if claimed > _MAX_EXPANSION * size + _EXPANSION_SLACK_BYTES:
        raise DataError(f"{path}: claims {claimed:,} bytes in a file of {size:,}, so it is damaged; {_FETCH}")
    return claimed


def read_float32(data: h5py.Dataset, n_rows: int) -> npt.NDArray[np.float32]:
    """The first rows of a dataset as float32 (HDF5 converts as it goes); DataError: a value is not finite."""
    array = np.empty((n_rows, *data.shape[1:]), np.float32)
    data.read_direct(array, source_sel=np.s_[:n_rows])
    if not np.isfinite((array.min(), array.max())).all():
        bad = np.argwhere(~np.isfinite(array))
        value = "NaN" if np.isnan(array[tuple(bad[0])]) else "infinite or beyond float32"
        where = f"step {bad[0][0]}" + (f", column {bad[0][1]}" if array.ndim == 2 else "")
        raise DataError(
            f"{place_of(data)} has {len(bad):,} values that are not finite, the first ({value}) at {where}; repair the "
            "file or get it again"
        )
    return array


def read_flags(data: h5py.Dataset) -> npt.NDArray[np.bool_]:
    """A dataset of zeros and ones; DataError: it has other values."""
    values = data[()]
    flags: npt.NDArray[np.bool_] = values != 0
    if not np.array_equal(values, flags):
        raise DataError(f"{place_of(data)} has values other than 0 and 1; {_FETCH}")
    return flags


def is_discrete(actions: h5py.Dataset) -> bool:
    """Whether actions are integers, one for every step: (N,) or (N, 1)."""
    return actions.dtype.kind in "biu" and actions.shape[1:] in ((), (1,))


def check_kind(actions: h5py.Dataset, discrete: bool) -> None:
    """Raises DataError if actions are not of the environment's kind; the message has the first such action."""
    if is_discrete(actions) == discrete or not actions.size:
        return
    values = actions[()]
    if discrete:
        odd = np.argwhere(~np.isfinite(values) | (values != np.rint(values)))
        step = int(odd[0][0]) if len(odd) else 0
        wanted = f"integers, one for every step; store them as int64 of shape ({len(values)},)"
    else:
        step, wanted = 0, "vectors of real numbers; store them as float32"
    told = f"{values.dtype} of shape {values.shape} ({one_line(values[step], 60)} at step {step})"
    raise DataError(f"{place_of(actions)} are {told}, but the environment takes {wanted}")


def shape_of_actions(actions: h5py.Dataset, steps: int, columns: int | None) -> tuple[int | None, ...]:
    """The shape that `check_shapes` wants; `columns` of actions that are no integers, None: any number."""
    return (steps, *actions.shape[1:]) if is_discrete(actions) else (steps, columns)


def read_actions(actions: h5py.Dataset, n_rows: int) -> npt.NDArray[Any]:
    """Discrete actions as int64 (N,), others as `read_float32`."""
    return actions[()].reshape(-1).astype(np.int64) if is_discrete(actions) else read_float32(actions, n_rows)


def hold_to_choices(path: Path, actions: npt.NDArray[np.int64], n_actions: int, start: int) -> None:
    """Raises DataError if an action is not one of the `n_actions` from `start` on; the message has the first one."""
    odd = np.flatnonzero((actions < start) | (actions >= start + n_actions))
    if odd.size:
        raise DataError(
            f"{path}:actions has {actions[odd[0]]} at step {odd[0]}, but the environment takes {start} to "
            f"{start + n_actions - 1}; choose the environment it was recorded on, or renumber its actions"
        )


def hold_to_bounds(path: Path, actions: npt.NDArray[np.float32], bounds: Bounds, clip: bool, notes: list[str]) -> None:
    """Raises DataError where actions (N, A) are out of bounds, (A,); with `clip` changes them in place and notes it."""
    low, high = bounds
    least, most = actions.min(axis=0), actions.max(axis=0)
    if np.all(least >= low) and np.all(most <= high):
        return
    found, allowed = (f"[{a.min():.6g}, {b.max():.6g}]" for a, b in ((least, most), (low, high)))
    if not clip:
        raise DataError(f"{path}:actions range over {found}, outside {allowed}; pass --clip-actions to clip them")
    np.clip(actions, low, high, out=actions)
    notes.append(f"clipped actions from {found} to {allowed}")
