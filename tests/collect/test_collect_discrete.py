"""Collecting where actions are discrete: DQN in SAC's place, and everything else as before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest
import torch

from aaren_rl.collect import levels as levels_module
from aaren_rl.collect.checkpoint import load_run
from aaren_rl.collect.command import main as collect
from aaren_rl.collect.config import read_config
from aaren_rl.collect.run import CollectRun
from aaren_rl.envs import load_task
from aaren_rl.envs.local.policy import EXPLORATION, BehaviorPolicy, uniform_choice

SMALL = (
    "--env-id Keys-v0 --steps 600 --checkpoint-every 200 --random-steps 100 --updates-per-step 0.05 --dataset-steps 300"
)

# An observation tells the last action, one of 5, 6 and 7; the last one is rewarded, and 5 may end the episode.
MODULE = """
import gymnasium as gym
import numpy as np


class Keys(gym.Env):
    observation_space = gym.spaces.Discrete(4)
    action_space = gym.spaces.Discrete(3, start=5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        assert self.action_space.contains(action)
        return int(action) - 4, float(action == 7), bool(action == 5 and self.np_random.random() < 0.2), False, {}


gym.register("Keys-v0", Keys, max_episode_steps=20)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    where = tmp_path_factory.mktemp("keys")
    (where / "keys_env.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(where))
        patch.setattr(levels_module, "core_count", lambda: 1)
        patch.setenv("PYTHONPATH", str(where))
        assert collect([*SMALL.split(), "--register", "keys_env", "--out", str(where)]) == 0
        yield where / "Keys-v0" / "seed0"
    del gym.registry["Keys-v0"]


def level(run: Path, name: str) -> dict[str, Any]:
    with h5py.File(run / "datasets" / f"Keys-v0-{name}.hdf5") as file:
        return {key: file[key][()] for key in file} | dict(file.attrs)


@pytest.mark.parametrize("name", ["random", "medium", "medium-replay", "expert"])
def test_data_hold_the_environments_own_integers(run: Path, name: str) -> None:
    data = level(run, name)
    actions, inside = data["actions"], ~(data["terminals"] | data["timeouts"])[:-1]
    assert actions.dtype == np.int64 and actions.ndim == 1 and {*actions} <= {5, 6, 7}
    np.testing.assert_array_equal(data["observations"][1:].argmax(1)[inside], actions[:-1][inside] - 4)
    np.testing.assert_array_equal(data["rewards"], actions == 7)
    assert (data["observations"].sum(1) == 1).all() and (actions[data["terminals"]] == 5).all()
    path = run / "datasets" / f"Keys-v0-{name}.hdf5"
    task, episodes = load_task("mine", str(path), env_id="Keys-v0")
    assert (task.n_actions, task.action_start) == (3, 5) and episodes.discrete
    assert ("DQN at" in data["policy"]) == (name in ("medium", "expert"))


def test_random_actions_are_uniform(run: Path) -> None:
    taken, counts = np.unique(level(run, "random")["actions"], return_counts=True)
    assert taken.tolist() == [5, 6, 7] and counts.min() > 0.2 * counts.sum()


def test_the_actor_file_acts_as_the_trained_network(run: Path) -> None:
    saved = load_run(run)
    assert saved is not None
    training = CollectRun(read_config(run / "config.yaml"), run, saved, torch.device("cpu"))
    policy = BehaviorPolicy(run / "actors" / f"{saved.steps}.safetensors")
    observations, rng = np.eye(4, dtype=np.float32)[[0, 1, 2, 3] * 500], np.random.default_rng(0)
    noise = rng.random((len(observations), 2))
    best, _ = training.model.predict(observations, deterministic=True)
    chosen = policy.choose(observations, noise)
    free = noise[:, 0] < EXPLORATION
    np.testing.assert_array_equal(chosen[~free], best[~free])
    np.testing.assert_array_equal(chosen[free], uniform_choice(noise, 3)[free])
    assert 0.05 < free.mean() < 0.15
    training.close()


def test_resume_goes_on_where_it_was(run: Path) -> None:
    before = load_run(run)
    assert collect([*SMALL.split(), "--out", str(run.parents[1]), "--resume", "--steps", "800"]) == 0
    after = load_run(run)
    assert before is not None and after is not None and (before.steps, after.steps) == (600, 800)
    np.testing.assert_array_equal(
        after.experience["actions"][: len(before.experience["actions"])], before.experience["actions"]
    )
    assert {*after.experience["actions"].ravel()} == {0, 1, 2} and after.trainer["updates"] > before.trainer["updates"]
