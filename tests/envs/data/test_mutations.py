"""200 damaged files: each is read equal, read with a note, or refused in one line with exit code 3; none is misread.

Columns that are missing, of other types or of other lengths: test_own_arrays.py.
"""

import os
import shutil
from collections import Counter
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


def damage(path: Path, seed: int) -> None:
    """Cuts a file somewhere, or flips bits of a few bytes."""
    rng = np.random.default_rng(seed)
    if seed % 5 == 0:
        return os.truncate(path, int(rng.integers(path.stat().st_size)))
    content = bytearray(path.read_bytes())
    for at in rng.integers(len(content), size=rng.integers(1, 5)):
        content[at] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)


@pytest.mark.slow
def test_damaged_files(tmp_path: Path) -> None:
    files, found = [tmp_path / "set.hdf5", tmp_path / "set.npz"], Counter[str]()
    with h5py.File(files[0], "w", libver="latest") as file:  # whose headers have checksums
        for key, value in COLUMNS.items():
            file.create_dataset(key, data=value, chunks=True, compression="gzip", fletcher32=True)
    np.savez_compressed(files[1], **COLUMNS)
    good = [read_file(file).sha256() for file in files]
    (tmp_path / "damaged").mkdir()
    for seed in range(200):
        damage(path := Path(shutil.copy(files[seed % 2], tmp_path / "damaged")), seed)
        try:
            episodes = read_file(path)
        except AarenRLError as error:
            assert error.exit_code == 3 and "\n" not in str(error) and "; " in str(error), (seed, error)
            found["refused"] += 1
        else:
            assert episodes.sha256() == good[0] == good[1] or episodes.notes, (seed, path)
            found["read"] += 1
    assert found["refused"] > found["read"] > 0, found
