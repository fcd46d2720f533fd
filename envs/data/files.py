"""Files of data, whatever their format, which their first bytes tell."""

import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import DataError, one_line
from .assemble import Limits, assemble
from .columns import CONVERT, MEANING, Column, Table, Tree
from .download import verify_pin
from .episodes import Episodes
from .hdf5 import read_env_id as read_hdf5_env_id
from .hdf5 import read_hdf5
from .tables import TABLES, read_table

SUFFIXES = (".hdf5", ".h5", ".npz", *TABLES, ".pkl", ".pickle")
_HDF5_SUFFIXES = (".hdf5", ".h5", ".hdf", ".part", "")
_PICKLE_SUFFIXES = (".pkl", ".pickle")
_PER_STEP, _HEADER = 8, 2**12  # bytes of an entry of an archive with a number for each step, at most

# What zipfile and NumPy raise on a damaged file depends on where the damage is.
_NPZ_ERRORS = (OSError, ValueError, EOFError, KeyError, RuntimeError, SyntaxError, zipfile.BadZipFile, zlib.error)


def read_file(path: str | os.PathLike[str], **options: Any) -> Episodes:  # noqa: ANN401  those of both readers
    """Read an HDF5, .npz, CSV or parquet file, or a folder of parquet files; held to its pin, `FILE.sha256`, if any.

    Options and errors are those of `read_hdf5`, and DataError for another format.
    """
    path = Path(path)
    kind = _kind(path)
    verify_pin(path)
    return {"npz": read_npz, "table": read_table, "hdf5": read_hdf5}[kind](path, **options)


def read_env_id(path: Path) -> str | None:
    """The environment that a file names, if any; raises DataError if it cannot be read."""
    return read_hdf5_env_id(path) if _kind(path) == "hdf5" else None


def _kind(path: Path) -> str:
    """The format, "hdf5", "npz" or "table"; DataError: another one."""
    if path.suffix.lower() in TABLES or (path.is_dir() and any(path.glob("**/*.parquet"))):
        return "table"
    begin = _begin(path)  # empty where there is nothing to read, which the reader says
    if path.is_file() and (path.suffix.lower() in _PICKLE_SUFFIXES or begin[:1] == b"\x80"):
        raise DataError(
            f"{path}: is a pickle, which may run code when it is read; if you trust it, pickle.load it and give "
            "aaren_rl.Episodes.from_trajectories what it holds (docs/howto/own-data.md)"
        )
    if begin.startswith(b"PK\x03\x04"):
        return "npz"
    if begin.startswith(b"\x93NUMPY"):
        raise DataError(f"{path}: is one array without a name; write all columns with numpy.savez; {CONVERT}")
    if begin and path.suffix.lower() == ".npz":
        raise DataError(f"{path}: is not a readable .npz file; write it with numpy.savez, or copy it again")
    if begin and path.suffix.lower() not in _HDF5_SUFFIXES and not begin.startswith(b"\x89HDF"):
        raise DataError(f"{path}: is no HDF5, .npz, CSV or parquet file; {CONVERT}")
    return "hdf5"


def _begin(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(8)
    except OSError:
        return b""


def read_npz(path: Path, *, dataset: str | None = None, **limits: Any) -> Episodes:  # noqa: ANN401  `assemble.Limits`
    """Read a .npz with the columns of an HDF5 file in D4RL's layout; see `read_hdf5`. Nothing is unpickled.

    Raises:
        DataError: as `read_hdf5`, or an array that is needed holds Python objects, which would have to be unpickled.
        UsageError: `max_episode_steps` is less than 1.
    """
    held = Limits(**limits)
    try:
        columns = _npz_columns(path, {name for names in held.names.values() for name in np.atleast_1d(names)})
    except PermissionError as error:
        raise DataError(f"{path}: no permission to read it; change the file's mode or owner") from error
    except (*_NPZ_ERRORS, MemoryError) as error:
        raise DataError(f"{path}: is not a readable .npz file ({one_line(error)}); write or copy it again") from error
    way_out = f"write it with numpy.savez; {CONVERT}"
    tables, dataset = [Table(str(path), columns)], dataset or path.stem
    return Episodes(**assemble(tables, held, path=str(path), way_out=way_out, dataset=dataset))


def _npz_columns(path: Path, named: set[str]) -> dict[str, Tree]:
    columns, read = dict[str, Tree](), list[Column]()
    with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as archive:
        known = [name for name in archive.files if name in MEANING or name in named]
        for name in known:
            try:
                array = archive[name]
            except ValueError as error:
                if "allow_pickle" not in str(error):
                    raise
                raise DataError(
                    f"{path}:{name} holds Python objects (as arrays of different lengths do), which are pickled and "
                    f"may run code; {CONVERT}"
                ) from error
            if array.dtype.kind not in "biuf":
                raise DataError(f"{path}:{name} holds {array.dtype}, not real numbers; {CONVERT}")
            read.append(Column(f"{path}:{name}", array))
            columns[name] = read[-1]
        steps = max((column.shape[0] for column in read if column.shape), default=0)
        for name in sorted({*archive.files} - {*known}):
            columns[name] = {}  # not read, but named where a column is missing
            member = f"{name}.npy"
            if member not in archive.zip.namelist():
                continue
            if archive.zip.getinfo(member).file_size <= _PER_STEP * steps + _HEADER:
                try:
                    columns[name] = Column(f"{path}:{name}", archive[name])
                except ValueError:  # it would be unpickled
                    continue
    return columns
