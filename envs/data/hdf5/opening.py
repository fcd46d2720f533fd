"""Opening HDF5 files of unknown origin: every check that must pass before a number is read or memory is taken."""

import math
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import h5py
import numpy as np

from ...errors import DataError, one_line

_FETCH = "get the file again"

# gzip reaches about 1000:1 on constant data, so an honest file never promises more than that.
_MAX_EXPANSION = 1000
_EXPANSION_SLACK_BYTES = 64 * 2**20

# In D4RL's files, and as large as what is read of them.
_UNUSED = ("next_observations", "infos", "metadata")

# What h5py raises on a file whose structure is damaged depends on where the damage is.
_HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)


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


def checked_datasets(
    file: h5py.File, path: Path, required: tuple[str, ...], optional: tuple[str, ...]
) -> dict[str, h5py.Dataset]:
    """The named top-level datasets, after checks of their links, storage, type and total size.

    Raises:
        DataError: one is missing, is a link or virtual or stored outside the file, is not numeric, or all together
            claim far more bytes than the file can hold.
    """
    found = sorted(file.keys())
    missing = [key for key in required if key not in found]
    if missing:
        raise DataError(
            f"{path}: missing {', '.join(missing)} (found: {', '.join(map(ascii, found[:20])) or 'nothing'}); "
            "use a file in D4RL's layout"
        )
    datasets = {key: plain_dataset(file, path, key, "D4RL's layout") for key in (*required, *optional) if key in found}
    shapes = ", ".join(f"{key} {dataset.shape}" for key, dataset in datasets.items())
    check_size(path, sum(map(claimed_bytes, datasets.values())), shapes)
    return datasets


def plain_group(parent: h5py.Group, path: Path, key: str, layout: str) -> h5py.Group:
    """The group `key` of `parent`, which must lie in the file itself.

    `layout` ("D4RL's layout") says in the message what to use instead.

    Raises:
        DataError: it is missing, a link, or not a group.
    """
    name = _hard_name(parent, path, key, layout)
    group = parent[key]
    if not isinstance(group, h5py.Group):
        raise DataError(f"{path}:{name} is not a group; use a file in {layout}")
    return group


def plain_dataset(parent: h5py.Group, path: Path, key: str, layout: str) -> h5py.Dataset:
    """The dataset `key` of `parent`, which must hold real numbers in the file itself; `layout` as in `plain_group`.

    Raises:
        DataError: it is missing, a link or a group, virtual, stored outside the file, or not numeric.
    """
    name = _hard_name(parent, path, key, layout)
    dataset = parent[key]
    if not isinstance(dataset, h5py.Dataset):
        raise DataError(f"{path}:{name} is a group, not a dataset; use a file in {layout}")
    if dataset.is_virtual:
        raise DataError(
            f"{path}:{name} is a virtual dataset (its data lie in other files); copy the data into the file"
        )
    if dataset.external:
        raise DataError(f"{path}:{name} is kept in external storage; copy the data into the file itself")
    if dataset.dtype.kind not in "biuf" or dataset.shape is None:
        raise DataError(f"{path}:{name} holds {dataset.dtype}, not real numbers; use a file in {layout}")
    return dataset


def _hard_name(parent: h5py.Group, path: Path, key: str, layout: str) -> str:
    """The full name of an entry, after a check that it is there and no link to elsewhere."""
    name = f"{parent.name}/{key}".lstrip("/")
    link = parent.get(key, getlink=True)
    if link is None:
        raise DataError(f"{path}: missing {name}; use a file in {layout}")
    if not isinstance(link, h5py.HardLink):
        kind = "an external link" if isinstance(link, h5py.ExternalLink) else "a soft link"
        raise DataError(f"{path}:{name} is {kind}; copy the data into the file itself")
    return name


def claimed_bytes(dataset: h5py.Dataset) -> int:
    """How much memory reading a dataset may take."""
    item = max(dataset.dtype.itemsize, np.dtype(np.float32).itemsize)
    # HDF5 takes memory for whole chunks, which may be larger than the dataset.
    chunk = math.prod(dataset.chunks) if dataset.chunks else 0
    return int(item * max(math.prod(dataset.shape), chunk))


def check_size(path: Path, claimed: int, shapes: str) -> None:
    """Refuse a file whose datasets claim more bytes than it can hold or than the machine has.

    Raises:
        DataError: they do; `shapes` says in the message what is claimed.
    """
    size = path.stat().st_size
    if claimed > _MAX_EXPANSION * size + _EXPANSION_SLACK_BYTES:
        raise DataError(f"{path}: claims {claimed:,} bytes ({shapes}) in a file of {size:,}; do not trust it, {_FETCH}")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if claimed > memory:
        raise DataError(
            f"{path}: needs {claimed:,} bytes of memory ({shapes}), this machine has {memory:,}; use a smaller file"
        )


def read_all(path: str, seconds: int) -> None:
    """Body of the process that tries a file: reads what any reader here would, within so much processor time.

    What is wrong with the file is for the reader to say; here it only matters whether this process survives.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(DataError), open_hdf5(Path(path)) as file:
        _read_group(file, Path(path), depth=2)
        dict(file.attrs)


def _read_group(group: h5py.Group, path: Path, depth: int) -> None:
    for key in group:
        if isinstance(group.get(key, getlink=True), h5py.HardLink) and key not in _UNUSED:
            with suppress(*_HDF5_ERRORS, DataError):
                item = group[key]
                if isinstance(item, h5py.Group) and depth > 0:
                    _read_group(item, path, depth - 1)
                elif isinstance(item, h5py.Dataset):
                    data = plain_dataset(group, path, key, "any layout")
                    check_size(path, claimed_bytes(data), "")
                    data[()]
