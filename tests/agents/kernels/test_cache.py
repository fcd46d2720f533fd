"""Where compiled kernels are kept: nothing compiled of other files than today's is used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numba
import pytest
from checkout import ROOT

from aaren_rl.agents.kernels import scan_numba
from aaren_rl.agents.kernels.compiling import cache
from aaren_rl.agents.kernels.compiling.decorators import compiled

USER = """
from .compiling.decorators import compiled
from .shared import offset

@compiled()
def shifted(x):
    return x + offset()
"""
SHARED = """
from .compiling.decorators import inlined

@inlined
def offset():
    return {}
"""
CALL = "from kernels.user import shifted; print(shifted(1.0), sum(shifted.stats.cache_hits.values()))"


def call(folder: Path, offset: float, **environment: str) -> str:
    """What a new process gets from the kernel, and how often it found it compiled."""
    (folder / "kernels" / "shared.py").write_text(SHARED.format(offset))
    without = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    command, new = [sys.executable, "-B", "-c", CALL], {**without, "PYTHONPATH": str(folder), **environment}
    return subprocess.run(command, cwd=folder, env=new, capture_output=True, text=True, check=True, timeout=300).stdout


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with a copy of the kernels' compiling, and a kernel that calls one of another file."""
    source = ROOT / "agents" / "kernels" / "compiling"
    shutil.copytree(source, tmp_path / "kernels" / "compiling", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "kernels" / "__init__.py").touch()
    (tmp_path / "kernels" / "user.py").write_text(USER)
    return tmp_path


def test_a_change_of_what_a_kernel_calls_is_noticed(package: Path) -> None:
    assert call(package, 1.0) == "2.0 0\n"
    assert call(package, 1.0) == "2.0 1\n"  # kept
    assert call(package, 2.5) == "3.5 0\n"
    assert call(package, 1.0) == "2.0 1\n"  # both states are
    assert len(list((package / "kernels" / "__pycache__").glob(f"{cache.PREFIX}*"))) == 2


def test_a_chosen_folder_is_used_and_another_where_the_package_cannot_be_written_to(package: Path) -> None:
    chosen, user = package / "chosen", package / "user"
    assert call(package, 1.0, NUMBA_CACHE_DIR=str(chosen)) == "2.0 0\n"
    assert call(package, 1.0, NUMBA_CACHE_DIR=str(chosen)) == "2.0 1\n"
    assert len(list(chosen.glob(f"{cache.PREFIX}*/*/user.shifted-*.nbi"))) == 1
    (package / "kernels" / "__pycache__").write_text("not a folder")  # as root may write to any
    assert call(package, 1.0, XDG_CACHE_HOME=str(user)) == "2.0 0\n"
    assert call(package, 1.0, XDG_CACHE_HOME=str(user)) == "2.0 1\n"
    (user / "aaren_rl" / "kernels").rename(package / "moved")
    (user / "aaren_rl" / "kernels").touch()
    assert call(package, 1.0, XDG_CACHE_HOME=str(user)) == "2.0 0\n"  # nowhere: compiled anew


def test_the_kernels_are_kept_and_numbas_own_setting_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = cache.folder(numba.config.CACHE_DIR)
    assert folder is not None and folder.name == cache.PREFIX + cache.state_of(cache.KERNELS)
    kernel = scan_numba._forward
    assert kernel.stats.cache_path.startswith(str(folder))
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    compiled()(lambda x: x)
    assert numba.config.CACHE_DIR == str(tmp_path)


def test_the_state_is_of_names_contents_and_numba(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = package / "kernels"
    found = [cache.state_of(kernels)]
    (kernels / "new.py").write_text("x")
    found.append(cache.state_of(kernels))
    (kernels / "new.py").rename(kernels / "other.py")
    found.append(cache.state_of(kernels))
    (kernels / "other.py").write_text("y")
    found.append(cache.state_of(kernels))
    monkeypatch.setattr(numba, "__version__", "0.0.0")
    found.append(cache.state_of(kernels))
    assert len(set(found)) == 5
    (kernels / "__pycache__").mkdir()
    (kernels / "__pycache__" / "x.nbi").touch()
    assert cache.state_of(kernels) == found[-1]


def test_old_states_are_deleted(tmp_path: Path) -> None:
    now = time.time()
    for age in range(8):
        (tmp_path / f"{cache.PREFIX}{age}" / "kernels_x").mkdir(parents=True)
        os.utime(tmp_path / f"{cache.PREFIX}{age}", (now, now - age * cache.DAY / 4))
    (tmp_path / "other").mkdir()
    assert cache.make_folder([tmp_path], f"{cache.PREFIX}new") == tmp_path / f"{cache.PREFIX}new"
    # Those of the last day, and no others: they are more than four.
    assert {path.name for path in tmp_path.iterdir()} == {f"{cache.PREFIX}{x}" for x in (*range(4), "new")} | {"other"}
    assert cache.make_folder([tmp_path / "other" / "file"], "x") == tmp_path / "other" / "file" / "x"
