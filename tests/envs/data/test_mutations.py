"""200 damaged files: each is read equal, read with a note, or refused in one line with exit code 3; none is misread."""

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checks
import h5py
import numpy as np
import pytest

from aaren_rl.base.errors import AarenRLError
from aaren_rl.envs.data.files import read_file

N = 120
ENDS = {"terminals": np.isin(np.arange(N), [29, 89]), "timeouts": np.isin(np.arange(N), [59, 119])}
COLUMNS: dict[str, Any] = {**checks.columns(N), **ENDS}
CHANGES: dict[str, Callable[[Any], Any]] = {
    "float64": lambda values: values.astype(np.float64),
    "text": lambda values: values.astype("S8"),
    "one row less": lambda values: values[:-1],
    "backwards": lambda values: values.T if values.ndim > 1 else values[None],
}


def hdf5(path: Path, columns: dict[str, Any]) -> None:
    with h5py.File(path, "w", libver="latest") as file:  # whose headers have checksums
        for key, value in columns.items():
            file.create_dataset(key, data=value, chunks=True, compression="gzip", fletcher32=value.dtype.kind != "S")


def npz(path: Path, columns: dict[str, Any]) -> None:
    np.savez_compressed(path, **columns)


WRITERS = {"set.hdf5": hdf5, "set.npz": npz}


def damaged(seed: int, good: Path, path: Path) -> str:
    """A copy of a good file with bytes flipped or cut, or one with entries dropped, renamed or of another type."""
    rng, columns = np.random.default_rng(seed), dict(COLUMNS)
    kind, key = ("flip", "cut", "drop", "rename", "type")[seed % 5], str(rng.choice(list(columns)))
    if kind in ("flip", "cut"):
        shutil.copy(good, path)
        if kind == "cut":
            os.truncate(path, int(rng.integers(path.stat().st_size)))
            return kind
        content = bytearray(path.read_bytes())
        for at in rng.integers(len(content), size=rng.integers(1, 9)):
            content[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
        return kind
    values = columns.pop(key)
    if kind == "rename":
        columns[f"{key}_x"] = values
    elif kind == "type":
        columns[key] = CHANGES[str(rng.choice(list(CHANGES)))](values)
    WRITERS[path.name](path, columns)
    return f"{kind} {key}"


@pytest.mark.slow
def test_damaged_files(tmp_path: Path) -> None:
    found, good = Counter[str](), {}
    for name, write in WRITERS.items():
        write(tmp_path / name, COLUMNS)
        good[name] = read_file(tmp_path / name)
        assert good[name].sha256() == good["set.hdf5"].sha256() and not good[name].notes
    (tmp_path / "damaged").mkdir()
    for seed in range(200):
        name = list(WRITERS)[seed % 2]
        what = damaged(seed, tmp_path / name, path := tmp_path / "damaged" / name)
        try:
            episodes = read_file(path)
        except AarenRLError as error:
            assert error.exit_code == 3 and "\n" not in str(error) and "; " in str(error), (seed, what, error)
            found["refused"] += 1
        else:
            equal = episodes.sha256() == good[name].sha256()
            assert equal or episodes.notes, (seed, name, what)
            found["equal" if equal else "noted"] += 1
    assert min(found[kind] for kind in ("refused", "equal", "noted")) > 5, found
