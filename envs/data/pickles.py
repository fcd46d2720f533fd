"""Pickled trajectories, as kzl/decision-transformer has them, read by another process that runs none of their code.

A pickle names functions to call. Here a name is looked up in a table of nine, none of which is the library's own:
arrays, dtypes and scalars are put together from their bytes by the functions below, and another name ends the reading.
"""

import pickle
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.errors import AarenRLError, DataError, one_line
from ...base.processes import run_child
from .arrays import from_columns
from .episodes import Episodes
from .hdf5.d4rl import read_hdf5, write_hdf5

_CONVERT = f"import sys; from {__name__} import convert; sys.exit(convert(*sys.argv[1:]))"
_ALLOWED = "arrays, numbers, lists, tuples and dicts are read; save the data as those, or use numpy.savez"
_SECONDS, _BYTES_PER_SECOND = 60, 2**20
_MEMORY_BYTES, _MEMORY_PER_BYTE = 4 * 2**30, 8  # of the process, whatever a pickle claims
_DTYPE = re.compile(r"[biuf][1-8]")


class _Refused(pickle.UnpicklingError):
    """What a pickle would have to call is not in the table."""


class _DType:
    def __init__(self, code: str, *_: object) -> None:
        if not (isinstance(code, str) and (_DTYPE.fullmatch(code) or code in ("O", "O8"))):
            raise _Refused(f"numpy.dtype of {one_line(repr(code), 30)}")
        self.code = code

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] == ">":  # the other values are of structures, which are not read
            self.code = f">{self.code}"

    def array(self, content: bytes, shape: Any, order: str) -> npt.NDArray[Any]:  # noqa: ANN401
        if self.code.startswith("O"):
            raise _Refused("numpy.ndarray of Python objects")
        return np.frombuffer(content, np.dtype(self.code)).reshape(shape, order="F" if order == "F" else "C")


class _Array:
    """An array whose state comes after it."""

    def __init__(self, *_: object) -> None:
        self.content: npt.NDArray[Any] | list[Any] = []

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, content = state
        if not isinstance(dtype, _DType):
            raise _Refused("numpy.ndarray without a dtype")
        if dtype.code.startswith("O") and isinstance(content, list):  # of arrays or dicts, one each
            self.content = content
        else:
            self.content = dtype.array(_bytes(content), shape, "F" if fortran else "C")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:  # noqa: ANN401
        return np.array([np.asarray(row) for row in self.content] if isinstance(self.content, list) else self.content)


def _bytes(content: object) -> bytes:
    if not isinstance(content, bytes | bytearray):
        raise _Refused("numpy.ndarray without bytes")
    return bytes(content)


def _from_buffer(content: object, dtype: _DType, shape: Any, order: str) -> npt.NDArray[Any]:  # noqa: ANN401
    return dtype.array(_bytes(content), shape, order)


def _scalar(dtype: _DType, content: object) -> Any:  # noqa: ANN401
    return dtype.array(_bytes(content), (1,), "C")[0]


def _latin1(text: str, codec: str) -> bytes:  # how protocol 2 spells bytes
    if codec != "latin1":
        raise _Refused(f"_codecs.encode to {one_line(codec, 30)}")
    return text.encode("latin1")


_KNOWN: dict[tuple[str, str], Callable[..., Any] | str] = {
    ("numpy", "ndarray"): "ndarray",  # an argument alone
    ("numpy", "dtype"): _DType,
    ("_codecs", "encode"): _latin1,
}
for _core in ("numpy.core", "numpy._core"):
    _KNOWN[f"{_core}.multiarray", "_reconstruct"] = _Array
    _KNOWN[f"{_core}.multiarray", "scalar"] = _scalar
    _KNOWN[f"{_core}.numeric", "_frombuffer"] = _from_buffer


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401  as the base class has it
        if (found := _KNOWN.get((module, name))) is None:
            raise _Refused(f"{one_line(f'{module}.{name}', 80)}, which is not run")
        return found


def convert(source: str, target: str, max_episode_steps: str) -> int:
    """Body of the other process: the pickle `source` to `target` in D4RL's layout; returns its exit code."""
    with suppress(ImportError, ValueError, OSError):  # where the system has no such limit
        import resource

        limit = _MEMORY_BYTES + _MEMORY_PER_BYTE * Path(source).stat().st_size
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        with open(source, "rb") as stream:
            value = _Reader(stream).load()
        write_hdf5(target, _episodes(value, int(max_episode_steps) or None), {})
    except _Refused as error:
        return _tell(f"holds {one_line(error)}; {_ALLOWED}")
    except AarenRLError as error:
        return _tell(str(error))
    except MemoryError:
        return _tell(f"needs more memory than data of its size; {_ALLOWED}")
    # What a damaged pickle raises depends on where the damage is.
    except Exception as error:
        return _tell(f"is not a readable pickle ({one_line(error, 80) or type(error).__name__}); {_ALLOWED}")
    return 0


def _tell(message: str) -> int:
    print(message, file=sys.stderr)
    return DataError.exit_code


def _episodes(value: Any, max_episode_steps: int | None) -> Episodes:  # noqa: ANN401
    if isinstance(value, Mapping):
        return Episodes(**from_columns(value, max_episode_steps=max_episode_steps))
    return Episodes.from_trajectories(value.content if isinstance(value, _Array) else value)


def read_pickle(path: Path, *, max_episode_steps: int | None = None, **limits: Any) -> Episodes:  # noqa: ANN401
    """Read pickled trajectories, a list of dicts or one dict of columns, as `Episodes.from_trajectories` takes them.

    Another process reads them, which makes arrays, numbers, lists, tuples and dicts and calls nothing else. `limits`
    are the fields of `assemble.Limits`. DataError: the file is missing, holds something else or is damaged; or as
    `from_trajectories`.
    """
    if not path.is_file():
        raise DataError(f"{path}: does not exist; check the path")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "made.hdf5")
        arguments = str(path.absolute()), str(made), str(max_episode_steps or 0)
        seconds = _SECONDS + path.stat().st_size // _BYTES_PER_SECOND
        code, said = run_child(_CONVERT, *arguments, seconds=seconds, keeps="stderr")
        if code != 0:
            told = one_line(said.decode(errors="replace").strip().rpartition("\n")[2], 500)
            ours = told if code == DataError.exit_code else ""
            raise DataError(f"{path}: {ours or 'cannot be read: it is damaged; save the data again'}")
        episodes = read_hdf5(made, max_episode_steps=max_episode_steps, **limits)
    return replace(episodes, path=str(path), dataset=path.stem)
