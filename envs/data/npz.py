"""NumPy's .npz files: arrays by name, whose sizes are known before their numbers are read. Nothing is unpickled."""

import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ...base.errors import DataError, one_line
from .assemble import KNOWN_NAMES, Limits, Table, assemble
from .columns import CONVERT
from .episodes import Episodes
from .storage import release, row_blocks

# What zipfile and NumPy raise on a damaged file depends on where the damage is.
_ERRORS = (OSError, ValueError, EOFError, KeyError, RuntimeError, SyntaxError, zipfile.BadZipFile, zlib.error)
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class NpyColumn:
    """An array in a .npz as a `columns.Column`."""

    def __init__(self, archive: zipfile.ZipFile, path: Path, name: str) -> None:
        self.place, self._archive, self._name = f"{path}:{name}", archive, f"{name}.npy"
        with self._opened() as (_, header):
            self.shape, self._fortran, self.dtype = header
        self.claims = math.prod(self.shape)

    @contextmanager
    def _opened(self) -> Iterator[tuple[IO[bytes], tuple[tuple[int, ...], bool, np.dtype[Any]]]]:
        with self._archive.open(self._name) as stream:
            version = np.lib.format.read_magic(stream)
            if version not in _HEADERS:
                raise ValueError(f"version {version} of NumPy's format")
            yield stream, _HEADERS[version](stream)

    def values(self) -> npt.NDArray[Any]:
        array = np.empty(self.shape, self.dtype, order="F" if self._fortran else "C")
        flat = array.reshape(-1, order="F" if self._fortran else "C")
        with self._opened() as (stream, _):
            for rows in row_blocks(len(flat)):
                flat[rows] = self._next(stream, len(flat[rows]))
        return array

    def read_into(self, out: npt.NDArray[Any]) -> None:
        """As `columns.Column.read_into`; block by block, as a copy in another type would double the memory."""
        with np.errstate(over="ignore"):  # infinite then, which is reported
            if self._fortran and len(self.shape) > 1:
                out[...] = self.values()[: len(out)]
                return
            width = math.prod(self.shape[1:])
            with self._opened() as (stream, _):
                for rows in row_blocks(len(out)):
                    out[rows] = self._next(stream, width * len(out[rows])).reshape(-1, *self.shape[1:])
                    release(out)

    def _next(self, stream: IO[bytes], count: int) -> npt.NDArray[Any]:
        content = stream.read(count * self.dtype.itemsize)
        if len(content) < count * self.dtype.itemsize:
            raise EOFError(f"{self._name} ends early")
        return np.frombuffer(content, self.dtype)


def read_npz(path: Path, *, dataset: str | None = None, **limits: Any) -> Episodes:  # noqa: ANN401  `assemble.Limits`
    """Read a .npz with the columns of an HDF5 file in D4RL's layout; see `read_hdf5`.

    Raises:
        DataError: as `read_hdf5`, or an array that is needed holds Python objects, which would have to be unpickled.
        UsageError: `max_episode_steps` is less than 1.
    """
    held = Limits(**limits)
    with npz_columns(path) as columns:
        labels: dict[str, Any] = {"path": str(path), "file": path, "dataset": dataset or path.stem}
        way_out = f"write it with numpy.savez; {CONVERT}"
        return Episodes(**assemble([Table(str(path), columns)], held, way_out=way_out, **labels))


@contextmanager
def npz_columns(path: Path) -> Iterator[dict[str, NpyColumn]]:
    """The arrays of numbers of a .npz by name, to be read in the body.

    DataError: the file cannot be read, or an array of a known name does not hold numbers.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            columns: dict[str, NpyColumn] = {}
            for member in archive.namelist():
                name = member.removesuffix(".npy")
                if name == member:
                    continue
                column = NpyColumn(archive, path, name)
                if column.dtype.kind in "biuf":
                    columns[name] = column
                elif name in KNOWN_NAMES:
                    raise DataError(f"{column.place} holds {_kind(column.dtype)}; {CONVERT}")
            yield columns
    except PermissionError as error:
        raise DataError(f"{path}: no permission to read it; change the file's mode or owner") from error
    except _ERRORS as error:
        raise DataError(f"{path}: is not a readable .npz file ({one_line(error)}); write or copy it again") from error


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype.hasobject:
        return "Python objects (as arrays of different lengths do), which are pickled and may run code"
    return f"{dtype}, not real numbers"
