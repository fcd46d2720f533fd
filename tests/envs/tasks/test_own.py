"""Data of environments outside the table: sizes, bounds and scores come from the environment and the user."""

import os
import re
import shutil
import subprocess
import sys

import gymnasium as gym
import h5py
import minari_sets
import numpy as np
import pytest
import torch
from checks import fails
from gymnasium.envs.registration import EnvSpec
from small_run import SMALL, scores, typed

from aaren_rl import load_policy
from aaren_rl.envs import DataError, Reference, UsageError, load_task, make_env, normalized_score
from aaren_rl.envs.data.episodes import join
from aaren_rl.envs.data.files import write_hdf5
from aaren_rl.envs.simulation import play_episode
from aaren_rl.envs.tasks.environment import own_task
from aaren_rl.policies.folder import read_card
from aaren_rl.train.config import main as train
from aaren_rl.train.data import StepData

TYPED = typed({**SMALL, "updates": 4, "eval_every": 4})


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    """Ten episodes of uniform torques in Pendulum-v1, whose actions lie in [-2, 2]."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("own") / "pendulum_random.hdf5"
    with make_env("Pendulum-v1") as env:
        made = [play_episode(env, lambda _: rng.uniform(-2, 2, 1).astype(np.float32), seed, 200) for seed in range(10)]
    write_hdf5(path, join(made), {})
    return path


def test_the_task_is_the_environments(pendulum):
    task, episodes = load_task("mine", pendulum, env_id="Pendulum-v1")
    assert (task.observation_dim, task.action_dim, task.horizon) == (3, 1, 200)
    assert (task.action_low, task.action_high) == ((-2.0,), (2.0,))
    assert len(episodes) == 10 and episodes.actions.max() > 1.5
    assert task.target_returns == (episodes.returns.max(),) and task.reference is None
    # Actions are scaled for the model.
    index, mask = torch.arange(400).unsqueeze(0), torch.ones(1, 400, dtype=torch.bool)
    data = StepData(episodes, 1.0, action_low=-2.0, action_high=6.0)
    np.testing.assert_allclose(data.rows(index, mask).actions[0], (episodes.actions[:400] - 2) / 4, atol=1e-6)


class Scaled(gym.Wrapper):
    """Pendulum with a velocity and rewards of other units, which may raise at a step; counts what is closed."""

    closed = 0

    def __init__(self, env, rewards=1.0, fail_at=-1):
        super().__init__(env)
        self.factor, self.rewards, self.fail_at, self.steps = np.array([1, 1, 1000], np.float32), rewards, fail_at, 0
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))

    def reset(self, *, seed=None, options=None):
        observation, info = self.env.reset(seed=seed, options=options)
        return observation * self.factor, info

    def step(self, action):
        self.steps += 1
        if self.steps == self.fail_at:
            raise RuntimeError("no power")
        observation, reward, *ended = self.env.step(action)
        return observation * self.factor, reward * self.rewards, *ended

    def close(self):
        Scaled.closed += 1


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({}, [r"observations 2 of the environment are about [\d.e+]+ times those of the data"]),
        ({"rewards": 1e-3}, ["observations 2 of", r"rewards of the environment are about 0\.00\d+ times"]),
        ({"fail_at": 3}, []),
    ],
)
def test_other_units_are_told_column_by_column(pendulum, kwargs, said, monkeypatch):
    """Where the environment fails an evaluation will say it. It is closed in any case."""
    monkeypatch.setattr(Scaled, "closed", 0)
    scaled = EnvSpec("Scaled-v0", lambda **given: Scaled(gym.make("Pendulum-v1").env, **given), max_episode_steps=200)
    monkeypatch.setitem(gym.registry, scaled.id, scaled)
    notes = load_task("mine", pendulum, env_id="Scaled-v0", env_kwargs=kwargs)[1].notes
    told = [note for note in notes if note.endswith("those of the data: other units or scaling?")]
    assert len(told) == len(said) and all(re.match(*pair) for pair in zip(said, told, strict=True))
    assert Scaled.closed == 2  # one asked for its spaces, one played
    assert not any("units" in note for note in load_task("mine", pendulum, env_id="Pendulum-v1")[1].notes)


def test_train_and_evaluate(pendulum, tmp_path, capsys, monkeypatch):
    trained_on = []

    def made(*given, **more):
        trained_on.append(StepData(*given, **more))
        return trained_on[-1]

    monkeypatch.setattr("aaren_rl.train.data.StepData", made)
    own = ["--env-id", "Pendulum-v1", "--source", str(pendulum), "--out", str(tmp_path), "--target-return", "-200"]
    assert train([*own, *TYPED]) == 0
    printed = capsys.readouterr().out
    assert "no score" in printed and "a file of yours" in printed and "Pendulum-v1" in printed
    assert 0.75 < trained_on[0].scaled_actions(torch.arange(400)).abs().max() <= 1
    run = tmp_path / "pendulum_random" / "decision-aaren" / "seed0"
    assert load_policy(run).action_high.tolist() == [2.0] and load_policy(run).action_low.tolist() == [-2.0]
    card = read_card(run)
    assert (card.horizon, card.action_high, card.reference, card.target_return) == (200, [2.0], None, -200.0)
    assert "normalized" not in (run / "metrics.jsonl").read_text()
    (score,) = scores(run, "--episodes 2", tmp_path / "scores.json")
    assert score["normalized_score_mean"] is None and score["length_mean"] == 200 and score["return_mean"] < 0
    references = ["--env", "swing", "--ref-min-score", "-1200", "--ref-max-score", "-150"]
    assert train([*own, *TYPED, *references]) == 0
    assert "given by the user" in capsys.readouterr().out
    run = tmp_path / "swing" / "decision-aaren" / "seed0"
    (score,) = scores(run, "--episodes 2", tmp_path / "scores.json")
    expected = normalized_score(Reference("", -1200.0, -150.0), score["return_mean"])
    assert score["normalized_score_mean"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--env-id", "Pendulum-v1"], 2, "--source PATH"),
        (["--env-id", "Pendulum-v1", "--env", "hopper-medium", "--source", "FILE"], 2, "Hopper-v4"),
        (["--env-id", "Pendulum-v1", "--env", "../x", "--source", "FILE"], 2, "letters"),
        (["--env-id", "Pendulumm-v1", "--source", "FILE"], 5, "Pendulumm"),
        (["--env-id", "os:Pendulum-v1", "--source", "FILE"], 5, "module to import"),
        (["--env-id", "CartPole-v1", "--source", "FILE"], 3, "float32 of shape (2000, 1)"),
        (["--env-id", "Blackjack-v1", "--source", "FILE"], 3, "float32 of shape (2000, 1)"),
        (["--env-id", "Hopper-v4", "--source", "FILE"], 3, "3 columns, the environment has 11"),
        (["--env-id", "Pendulum-v1", "--source", "FILE", "--ref-min-score", "1"], 2, "both or none"),
        (["--env-id", "Pendulum-v1", "--source", "FILE", "--ref-min-score", "1", "--ref-max-score", "0"], 2, "rise"),
        (["--env", "hopper-medium", "--ref-min-score", "0", "--ref-max-score", "1"], 2, "--env-id"),
        (["--env-id", "Pendulum-v1", "--source", "FILE", "--local-steps", "2000"], 2, "is for --source local"),
        (["--env", "hopper-medium", "--source", "local", "--local-steps", "999"], 2, "at least 1,000"),
        (["--source", "FILE", "--clip-actions"], 2, "--clip-actions: without an environment"),
        (["--register", "my_envs.py"], 2, "expected the name of a module"),
        (["--register", "leaving_env"], 2, "--register leaving_env: SystemExit: 3"),
        (["--env-id", "Forgotten-v0", "--source", "FILE"], 5, "is it your own? --register MODULE imports the module"),
    ],
)
def test_what_is_refused(pendulum, tmp_path, monkeypatch, capsys, arguments, code, message):
    (tmp_path / "leaving_env.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    given = [str(pendulum) if argument == "FILE" else argument for argument in arguments]
    error = fails(capsys, train, [*given, "--out", str(tmp_path / "runs")], code)
    assert message in error and ("is it your own" in error) == (
        "is it your own" in message
    )  # not where a shipped name is mistyped
    assert not list(tmp_path.rglob("config.yaml"))


def test_environments_without_a_time_limit(monkeypatch):
    endless = EnvSpec("OwnEndless-v0", "gymnasium.envs.classic_control:PendulumEnv")
    monkeypatch.setitem(gym.registry, endless.id, endless)
    assert own_task("mine", endless.id).horizon == 0
    task = own_task("mine", endless.id, max_episode_steps=7)
    assert task.horizon == 7 and make_env(task.env_id, **task.env_kwargs).spec.max_episode_steps == 7


@pytest.mark.slow
def test_minari_by_id_and_by_the_tables_name(minari_recorded, tmp_path, monkeypatch, capsys):
    """A recorded Hopper-v5 set under a name of its own, and again under that of Minari's hopper-medium."""
    for name in (minari_sets.ID, "mujoco/hopper/medium-v0"):
        shutil.copytree(minari_recorded / minari_sets.ID, tmp_path / "minari" / name)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert train(["--source", f"minari:{minari_sets.ID}", "--out", str(tmp_path), *TYPED]) == 0
    assert "Minari" in capsys.readouterr().out
    card = read_card(tmp_path / "test-hopper-random-v0" / "decision-aaren" / "seed0")
    assert (card.env_id, card.source, card.reference) == ("Hopper-v5", "minari", "Minari's reference returns")
    assert card.reference_returns == [-20.0, 3000.0] and card.horizon == 1000
    pinned = f"minari:{minari_sets.ID}"
    given = ["minari", "minari:test/hopper/random", "minari:mine/set-v3", ["minari:test/hopper/random", "a.hdf5"]]
    assert [card.same_source(source) for source in given] == [pinned, pinned, *given[2:]]
    task, episodes = load_task("hopper-medium", "minari")
    assert (task.env_id, episodes.dataset, task.target_returns[0]) == ("Hopper-v5", "mujoco/hopper/medium-v0", 3600.0)
    mine = f"minari:{minari_sets.ID}"
    task, episodes = load_task("mine", mine, env_id="Hopper-v4")
    assert task.env_id == "Hopper-v4"
    assert "recorded on Hopper-v5; Hopper-v4, of --env-id, is played" in episodes.notes[-1]
    with pytest.raises(UsageError, match="Hopper-v4"):
        load_task("hopper-medium", mine)
    reference = Reference("mine", 0.0, 10.0)
    assert load_task("mine", mine, reference=reference)[0].reference == reference
    assert load_task("hopper-medium", "minari", reference=reference)[0].reference == reference
    longest = int(episodes.lengths.max())
    with pytest.raises(DataError, match=f"ends at {longest - 1}; pass --max-episode-steps {longest}$"):
        load_task("mine", mine, max_episode_steps=longest - 1)


def test_returns_that_are_too_large_are_the_datas(pendulum, tmp_path, capsys):
    large = tmp_path / "large.hdf5"
    shutil.copy(pendulum, large)
    with h5py.File(large, "r+") as file:
        file["rewards"][:] = 3e38
    own = ["--env-id", "Pendulum-v1", "--source", str(large), "--out", str(tmp_path / "runs")]
    reach = "large: returns-to-go divided by --return-scale 1e+15 reach inf"
    error = fails(capsys, train, [*own, *TYPED], 3)
    assert reach in error and "--learning-rate" not in error


SCRIPT = """
import os
from aaren_rl.envs import make_env
env = make_env("Hopper-v4")
env.reset(seed=0)
print(env.step(env.action_space.sample())[1], os.environ["MUJOCO_GL"])
"""
IMPORTED = "import os, aaren_rl.envs.local.reacher; print(os.environ['MUJOCO_GL'])"


@pytest.mark.parametrize("script", [SCRIPT, IMPORTED])
def test_simulation_runs_without_the_renderer_that_is_chosen(script):
    """It cannot be imported here; the variable stays for whoever draws."""
    environment = {**os.environ, "MUJOCO_GL": "nonsense"}
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "") and "nonsense" in ran.stdout
