"""A small real data set, made once a session: uniform actions in Hopper-v4, in D4RL's layout."""

from __future__ import annotations

import signal
from pathlib import Path

import h5py
import minari_sets
import numpy as np
import pytest

from aaren_rl.envs import make_env

STEPS = 1200

# A shell starts background jobs with SIGINT ignored, and what the tests start would inherit that: those that interrupt
# a process would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def hopper_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 50 short episodes, 1,200 steps."""
    env, rng = make_env("Hopper-v4"), np.random.default_rng(0)
    steps: list[tuple[np.ndarray, np.ndarray, float, bool]] = []
    while len(steps) < STEPS:
        observation, ended = env.reset(seed=len(steps))[0], False
        while not ended:
            action = rng.uniform(-1, 1, 3).astype(np.float32)
            after, reward, ended, _, _ = env.step(action)
            steps.append((observation, action, float(reward), ended))
            observation = after
    env.close()
    observations, actions, rewards, terminals = (np.array(column) for column in zip(*steps, strict=True))
    path = tmp_path_factory.mktemp("data") / "hopper.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"] = observations.astype(np.float32)
        file["actions"] = actions
        file["rewards"] = rewards.astype(np.float32)
        file["terminals"] = terminals
        file["timeouts"] = np.zeros(len(steps), bool)
    return path


@pytest.fixture(scope="session")
def trained_run(hopper_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a Decision-Aaren run of a few updates on that set; not to be written to."""
    from aaren_rl.train import main

    out = tmp_path_factory.mktemp("runs")
    small = "--env hopper-medium --width 16 --layers 1 --heads 2 --updates 5 --warmup-updates 1 --steps-per-update 160"
    scored = "--eval-every 5 --eval-episodes 1 --final-episodes 1 --threads 1"
    assert main([*small.split(), *scored.split(), "--source", str(hopper_file), "--out", str(out)]) == 0
    return out / "hopper-medium" / "decision-aaren" / "seed0"


@pytest.fixture(scope="session")
def minari_recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Minari folder with the dataset `minari_sets.ID`; copy it before changing it."""
    root = tmp_path_factory.mktemp("minari")
    minari_sets.record(root)
    return root
