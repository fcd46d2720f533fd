"""A small real data set, made once a session: uniform actions in Hopper-v4, in D4RL's layout."""

import os
import resource
import signal
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# With -n there is a process a core: more threads than one each would only wait for one another.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import h5py
import minari_sets
import numpy as np
import pytest
import torch
from small_run import quick

from aaren_rl.envs import make_env

STEPS = 1200
MOST_WORKERS = 8

# Triton decides when it is imported whether its kernels are interpreted: the only way to run them without a GPU.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# A shell starts background jobs with SIGINT ignored, and what the tests start would inherit that: those that interrupt
# a process would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Of -n auto. A worker with torch and MuJoCo takes half a GiB."""
    return min(os.cpu_count() or 1, MOST_WORKERS)


@pytest.fixture(scope="session")
def hopper_file(tmp_path_factory) -> Path:
    """About 50 short episodes, 1,200 steps."""
    env, rng = make_env("Hopper-v4"), np.random.default_rng(0)
    steps: dict[str, list[Any]] = defaultdict(list)
    while len(steps["rewards"]) < STEPS:
        observation, ended = env.reset(seed=len(steps["rewards"]))[0], False
        while not ended:
            steps["observations"].append(observation.astype(np.float32))
            steps["actions"].append(rng.uniform(-1, 1, 3).astype(np.float32))
            observation, reward, ended, _, _ = env.step(steps["actions"][-1])
            steps["rewards"].append(np.float32(reward))
            steps["terminals"].append(ended)
            steps["timeouts"].append(False)
    env.close()
    path = tmp_path_factory.mktemp("data") / "hopper.hdf5"
    with h5py.File(path, "w") as file:
        file.update({name: np.array(column) for name, column in steps.items()})
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
