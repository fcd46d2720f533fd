"""A Minari dataset to spoil; D4RL's server on this machine, and an empty folder for its files."""

import resource
import shutil
from contextlib import contextmanager

import pytest
from d4rl_server import Server, image
from minari_sets import ID

from aaren_rl.envs.data import download as download_module


@pytest.fixture
def data(minari_recorded, tmp_path, monkeypatch):
    """The `data` folder of a copy to spoil."""
    root = tmp_path / "datasets"
    shutil.copytree(minari_recorded, root)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    return root / ID / "data"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    folder = tmp_path / "d4rl"
    monkeypatch.setenv("D4RL_DATASET_DIR", str(folder))
    monkeypatch.setenv("AAREN_RL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download_module, "_PAUSE_S", 0.001)
    return folder


@pytest.fixture
def server(tmp_path, folder, monkeypatch):
    with Server(image(tmp_path / "image.hdf5")) as server, server.serving():
        monkeypatch.setenv("D4RL_BASE_URL", server.base + "/")
        yield server


@pytest.fixture
def full_disk():
    """`with full_disk():` no file grows beyond 100,000 bytes."""

    @contextmanager
    def full_disk():
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return full_disk
