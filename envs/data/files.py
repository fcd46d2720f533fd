"""Files of data, whatever their format, which their first bytes tell."""

import os
from pathlib import Path
from typing import Any

from ...base.errors import DataError
from .columns import CONVERT
from .download import verify_pin
from .episodes import Episodes
from .hdf5 import d4rl, opening
from .npz import read_npz

SUFFIXES = (".hdf5", ".h5", ".npz", ".pkl", ".pickle")
_HDF5_SUFFIXES = (".hdf5", ".h5", ".hdf", ".part", "")
_PICKLE_SUFFIXES = (".pkl", ".pickle")


def read_file(path: str | os.PathLike[str], **options: Any) -> Episodes:  # noqa: ANN401  those of both readers
    """Read an HDF5 or .npz file; options and errors are those of `read_hdf5`, and DataError for another format."""
    path = Path(path)
    return read_npz(path, **options) if _kind(path) == "npz" else d4rl.read_hdf5(path, **options)


def read_env_id(path: Path) -> str | None:
    """The environment that a file names, if any; raises DataError if it cannot be read."""
    return d4rl.read_env_id(path) if _kind(path) == "hdf5" else None


def check_file(path: Path) -> None:
    """Hold a file to its pin; HDF5 is tried first, as `opening.check_file` does. DataError: as the readers."""
    if _kind(path) == "hdf5":
        opening.check_file(path)
    else:
        verify_pin(path)


def _kind(path: Path) -> str:
    """The format, "hdf5" or "npz"; DataError: another one."""
    if path.is_file() and _is_pickle(path):
        raise DataError(
            f"{path}: is a pickle, which may run code when it is read; if you trust it, pickle.load it and give "
            "aaren_rl.Episodes.from_trajectories what it holds (docs/howto/own-data.md)"
        )
    begin = _begin(path)  # empty where there is nothing to read, which the reader says
    if begin.startswith(b"PK\x03\x04"):
        return "npz"
    if begin.startswith(b"\x93NUMPY"):
        raise DataError(f"{path}: is one array without a name; write all columns with numpy.savez; {CONVERT}")
    if begin and path.suffix.lower() == ".npz":
        raise DataError(f"{path}: is not a readable .npz file; write it with numpy.savez, or copy it again")
    if begin and path.suffix.lower() not in _HDF5_SUFFIXES and not begin.startswith(b"\x89HDF"):
        raise DataError(f"{path}: is neither an HDF5 nor an .npz file; {CONVERT}")
    return "hdf5"


def _is_pickle(path: Path) -> bool:
    """Whether a file's name or first bytes are those of a pickle."""
    return path.suffix.lower() in _PICKLE_SUFFIXES or _begin(path)[:1] == b"\x80"


def _begin(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(8)
    except OSError:
        return b""
