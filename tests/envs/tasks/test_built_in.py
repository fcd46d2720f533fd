"""Built-in tasks: their names, their data, their environments, and a policy of one that is scored on another."""

import hashlib
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from small_run import SMALL, scores

from aaren_rl.datasets import main as datasets
from aaren_rl.envs import BUILT_IN, UnknownTaskError, UsageError, get_task, load_episodes, load_task, make_env
from aaren_rl.envs.local import behavior as local_sets
from aaren_rl.envs.local.behavior import action_noise_variance
from aaren_rl.envs.tasks.table import normalized_score
from aaren_rl.evaluate import main as evaluate
from aaren_rl.policies.folder import read_card
from aaren_rl.train import train_policy

SHA = "066e9efa"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AAREN_RL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "d4rl"))
    return tmp_path / "cache" / "datasets" / str(local_sets.RECIPE_VERSION)


def test_corridors_are_named_by_their_steps():
    task = get_task("tmaze-10000")
    assert (task.horizon, task.env_kwargs) == (10_000, {"length": 10_000})
    assert (task.dataset, task.data_horizon) == ("tmaze", 200)
    assert get_task("tmaze-2").horizon == 2 and get_task("tmaze-1000000").horizon == 1_000_000
    assert normalized_score("tmaze-50", [0.0, 1.0, 0.5]).tolist() == [0, 100, 50]
    for name in ("tmaze-1", "tmaze-x", "tmaze-", "tmaze-02", "tmaze-1000001", "tmaze-10000000"):
        with pytest.raises(UnknownTaskError, match=f"'{name}'; a corridor of N steps is tmaze-N or .* 2 to 1,000,000"):
            get_task(name)
    with pytest.raises(UnknownTaskError, match="did you mean hopper-p-medium"):
        get_task("hoper-p-medium")


def test_data_of_the_t_maze_are_the_same_everywhere_and_as_described(cache, capsys):
    episodes = load_episodes("tmaze-30")
    assert (episodes.dataset, episodes.source, episodes.path) == ("tmaze", "local", str(cache / "tmaze-local.hdf5"))
    assert capsys.readouterr() == ("", "")
    arrays = episodes.observations, episodes.actions, episodes.rewards, episodes.offsets.astype(np.int64)
    assert hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:8] == SHA
    lengths, first, last = episodes.lengths, episodes.offsets[:-1], episodes.offsets[1:] - 1
    assert len(episodes) == 1500 and (lengths.min(), lengths.max()) == (20, 200) and episodes.terminated.all()
    corridor = np.setdiff1d(np.arange(episodes.n_steps), last)
    assert 0.29 < np.abs(episodes.actions[corridor]).max() <= np.float32(0.3)
    cue, turn = episodes.observations[first, 0], episodes.actions[last, 0]
    assert {*cue} == {*turn} == {-1.0, 1.0} and 650 < (cue > 0).sum() < 850
    assert (episodes.rewards[last] == (cue == turn)).all() and 700 < episodes.rewards.sum() < 800
    made = Path(episodes.path).stat().st_mtime_ns
    assert load_task("tmaze")[1].path == episodes.path and Path(episodes.path).stat().st_mtime_ns == made


def test_gymnasium_makes_it_by_the_module_that_registers():
    made = "gymnasium.make('aaren_rl.envs.tasks.environment:aaren_rl/TMaze-v0', length=5)"
    code = f"import gymnasium; env = {made}; print(env.spec.id)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "aaren_rl/TMaze-v0\n"
    with pytest.raises(ValueError, match="at least 2, not 1"):
        gym.make("aaren_rl/TMaze-v0", length=1)


@pytest.mark.parametrize(("family", "velocities"), [("hopper", 6), ("walker2d", 9)])
def test_position_only_tasks_leave_the_velocities_out(family, velocities, monkeypatch):
    monkeypatch.setitem(local_sets.RECIPES[family], "medium", local_sets.Recipe((None,), 300, "test"))
    task, full = get_task(f"{family}-p-medium"), get_task(f"{family}-medium")
    shown, whole = load_episodes(task.name, progress=False), load_episodes(full.name, "local", progress=False)
    np.testing.assert_array_equal(shown.observations, whole.observations[:, :-velocities])
    assert shown.observation_dim == task.observation_dim and action_noise_variance(shown) is None
    for name in ("actions", "rewards", "offsets", "terminated"):
        np.testing.assert_array_equal(getattr(shown, name), getattr(whole, name))
    assert (task.reference, task.target_returns) == (full.reference, full.target_returns)
    env, other = make_env(task.env_id), make_env(full.env_id)
    env.reset(seed=3), other.reset(seed=3)
    action = env.action_space.sample()
    observation = env.step(action)[0]
    assert observation.tolist() == other.step(action)[0][:-velocities].tolist() and observation in env.observation_space
    data = env.unwrapped.data
    assert observation.tolist() == data.qpos[1:].tolist() and len(data.qvel) == velocities
    assert env.spec.max_episode_steps == task.horizon
    assert gym.make(gym.make(task.env_id).spec).observation_space == env.observation_space


@pytest.mark.parametrize("source", ["d4rl", "minari"])
def test_only_what_is_made_here_is_their_data(source):
    with pytest.raises(UsageError, match=r"tmaze-9: .* has no such data, because they are made locally; leave"):
        load_task("tmaze-9", source)
    with pytest.raises(UsageError, match="--local-steps 2000: the dataset of tmaze has a fixed size"):
        load_episodes("tmaze", local_steps=2000)
    with pytest.raises(UsageError, match="tmaze-9 is simulated on aaren_rl/TMaze-v0"):
        load_task("tmaze-9", "mine.hdf5", env_id="Pendulum-v1")


def test_the_datasets_command_knows_them(cache, capsys):
    assert datasets(["verify", "tmaze"]) == 3 and "datasets download" in capsys.readouterr().err
    assert datasets(["download", "tmaze-5000"]) == 0 == datasets(["verify", "tmaze"])
    capsys.readouterr()
    assert datasets(["list"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert {*BUILT_IN} <= {*rows} and "kB" in rows["tmaze"] and "can be made" in rows["hopper-p-medium"]
    assert datasets(["info", "tmaze"]) == 0 and "success in percent, chance is 50" in capsys.readouterr().out


def test_a_policy_of_one_corridor_is_scored_in_another(tmp_path, capsys):
    folder = train_policy("tmaze", out=tmp_path, target_return=0.5, **SMALL).folder
    card = read_card(folder)
    assert (card.env, card.env_id, card.env_kwargs, card.source) == ("tmaze", "aaren_rl/TMaze-v0", {}, "local")
    assert card.action_error_floor is None and card.action_error > 0 and card.model["max_timestep"] == 200
    (score,) = scores(folder, "--env tmaze-7 --episodes 3 --held-out", tmp_path / "scores.json")
    assert (score["env"], score["dataset"], score["lengths"]) == ("tmaze-7", "tmaze", [7, 7, 7])
    assert score["target_return"] == 0.5  # as in training
    assert score["reference"] == "success in percent, chance is 50" and score["data_returns"] == card.data_returns
    assert score["normalized_score_mean"] == pytest.approx(100 * score["return_mean"])
    capsys.readouterr()
    for task, code, said in (
        ("hopper-medium", 2, "takes a built-in task, without --env-id; --env-id Hopper-v4 plays it"),
        ("hopper-p-medium", 4, "3 observations and 1 actions, aaren_rl/Hopper-P-v4 has"),
        ("tmaze-1", 2, "a corridor of N steps"),
    ):
        assert evaluate([str(folder), "--env", task]) == code
        assert said in capsys.readouterr().err
