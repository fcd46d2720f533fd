"""The sound files that bad inputs are made of."""

from __future__ import annotations

from pathlib import Path

import bad_inputs
import pytest
import torch


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> bad_inputs.World:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return bad_inputs.make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory; a name with ../ in it, taken for a path, would still lead into tmp_path."""
    threads = torch.get_num_threads()
    folder = tmp_path / "a" / "b" / "c"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder / "minari"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield folder
    torch.set_num_threads(threads)
