"""A small real data set, made once a session: uniform actions in Hopper-v4, in D4RL's layout."""

import os
import resource
import signal
from contextlib import contextmanager
from pathlib import Path

# With -n there is a process a core: more threads than one each would only wait for one another.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import minari_sets
import numpy as np
import pytest
import torch
from small_run import quick

from aaren_rl.envs import make_env
from aaren_rl.envs.data.episodes import Episode, join
from aaren_rl.envs.data.files import write_hdf5
from aaren_rl.envs.local.behavior import RECIPES, Recipe
from aaren_rl.envs.simulation import play_episode

STEPS = 1200

# Triton decides when it is imported whether its kernels are interpreted: the only way to run them without a GPU.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# A shell starts background jobs with SIGINT ignored, and what the tests start would inherit that: those that interrupt
# a process would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Of -n auto. A worker with torch and MuJoCo takes half a GiB."""
    return min(os.cpu_count() or 1, 8)


@pytest.fixture(scope="session")
def hopper_file(tmp_path_factory) -> Path:
    """About 50 short episodes, 1,200 steps."""
    rng, made = np.random.default_rng(0), list[Episode]()
    with make_env("Hopper-v4") as env:
        while (n := sum(map(len, made))) < STEPS:
            made.append(play_episode(env, lambda _: rng.uniform(-1, 1, 3).astype(np.float32), n, 1000))
    path = tmp_path_factory.mktemp("data") / "hopper.hdf5"
    write_hdf5(path, join(made), {})
    return path


@pytest.fixture(scope="session")
def trained_run(hopper_file, tmp_path_factory) -> Path:
    """The folder of a Decision-Aaren run of a few updates on that set; not to be written to."""
    return quick(tmp_path_factory.mktemp("runs"), hopper_file, "--updates 5 --eval-every 5")


@pytest.fixture(scope="session")
def minari_recorded(tmp_path_factory) -> Path:
    """A Minari folder with the dataset `minari_sets.ID`; copy it before changing it."""
    root = tmp_path_factory.mktemp("minari")
    minari_sets.record(root)
    return root


@pytest.fixture
def places(tmp_path, monkeypatch) -> Path:
    """A folder to work in with those of data sets in it, nobody at their servers, a hopper-medium of a few steps."""
    for name, value in (("D4RL_DATASET_DIR", "d4rl"), ("MINARI_DATASETS_PATH", "minari"), ("AAREN_RL_CACHE", "cache")):
        monkeypatch.setenv(name, str(tmp_path / value))
    for name, value in {"D4RL_BASE_URL": "http://127.0.0.1:1", "HF_HUB_OFFLINE": "1", "no_proxy": "*"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d4rl").mkdir()
    monkeypatch.setitem(RECIPES["hopper"], "medium", Recipe((40_000,), 50, "test"))
    return tmp_path


@pytest.fixture
def full_disk():
    """`with full_disk():` no file grows beyond so many bytes."""

    @contextmanager
    def limited(size=100_000):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited
