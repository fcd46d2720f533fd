"""Data of discrete actions and one-hot observations: what is read, written and recorded, and what is refused."""

import copy
import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from checks import columns, hdf5, refused, same
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete
from minari_sets import small

from aaren_rl.datasets import main as datasets
from aaren_rl.envs import DataError, Episodes, get_task, load_task, rollout
from aaren_rl.envs.data.columns import sizes
from aaren_rl.envs.data.episodes import join
from aaren_rl.envs.data.files import read_file, write_hdf5
from aaren_rl.envs.data.minari import write_minari
from aaren_rl.envs.local import cartpole, tmaze
from aaren_rl.envs.simulation import begin, play_episode, take
from aaren_rl.envs.tasks.environment import make_env, own_task
from aaren_rl.evaluate import main as evaluate
from aaren_rl.train.config import main as train

N, START, CHOICES = 60, -1, 3
ID = "test/odd/discrete-v0"


class Played(gym.Env[Any, Any]):
    """The reward is the action, which must be one of its integers where it is discrete."""

    def __init__(self, seen: gym.Space[Any], acted: gym.Space[Any]) -> None:
        self.observation_space, self.action_space = copy.deepcopy(seen), acted

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        return self.observation_space.sample(), float(action), bool(action == 1), False, {}


SEEN = Box(-1, 1, (4,), np.float32)
MADE = {
    "SeenBox-v0": (SEEN, Discrete(CHOICES, start=START)),
    "SeenDiscrete-v0": (Discrete(4, start=2), Discrete(CHOICES, start=START)),
    "Smooth-v0": (SEEN, Box(-1, 1, (1,))),
}


@pytest.fixture(autouse=True)
def minari_root(tmp_path, monkeypatch) -> Path:
    """Where datasets are written, with the environments registered."""
    for name, (seen, acted) in MADE.items():
        options: dict[str, Any] = {"max_episode_steps": 20, "disable_env_checker": True}
        made = EnvSpec(name, partial(Played, seen, acted), **options)
        monkeypatch.setitem(gym.registry, name, made)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def arrays(**changes: Any) -> dict[str, Any]:
    """Three episodes; None leaves an array out."""
    actions = np.random.default_rng(0).integers(START, START + CHOICES, N)
    good = {**columns(N, 4), "actions": actions, "terminals": np.arange(N) % 20 == 19}
    return {key: value for key, value in (good | changes).items() if value is not None}


def save(path: Path, **changes: Any) -> Path:
    return hdf5(path, arrays(**changes))


def discrete(seed: int = 0) -> Episodes:
    made = small(seed, observation_dim=4)
    rng = np.random.default_rng(seed)
    return dataclasses.replace(made, actions=rng.integers(START, START + CHOICES, made.n_steps))


@pytest.mark.parametrize("stored", [lambda actions: actions, lambda actions: actions.astype(np.int8)[:, None]])
@pytest.mark.parametrize("known", [True, False])
def test_integers_are_discrete_actions(stored, known, tmp_path):
    actions = arrays()["actions"]
    options = sizes(own_task("mine", "SeenBox-v0")) if known else {}
    episodes = read_file(save(tmp_path / "set.hdf5", actions=stored(actions)), **options)
    assert episodes.discrete and episodes.actions.dtype == np.int64
    np.testing.assert_array_equal(episodes.actions, actions)
    assert episodes.action_dim == 1
    np.testing.assert_array_equal(episodes.take([1]).actions, actions[20:40])


def at(step: int, value: Any, dtype: Any = np.int64) -> Any:
    """Good actions with one that is not."""
    actions = arrays()["actions"].astype(dtype)
    actions[step] = value
    return actions


BAD: dict[str, tuple[dict[str, Any], tuple[object, ...]]] = {
    "n": ({"actions": at(17, START + CHOICES)}, ("actions has 2 at step 17", "-1 to 1", "renumber its actions")),
    "far beyond n": ({"actions": at(0, 2**40)}, ("1099511627776 at step 0",)),
    "below start": ({"actions": at(59, START - 1)}, ("-2 at step 59", "-1 to 1")),
    "unsigned": ({"actions": at(5, 2**63 + 1, np.uint64)}, ("actions has",)),
    "a float": ({"actions": at(9, 0.5, np.float64)}, ("0.5 at step 9", "integers")),
    "NaN": ({"actions": at(11, np.nan, np.float32)}, ("nan at step 11", "integers")),
    "float columns": ({"actions": np.zeros((N, 1), np.float32)}, ("float32 of shape (60, 1)", "integers")),
    "one-hot integers": ({"actions": np.eye(3, dtype=np.int64)[[0] * N]}, ("int64 of shape (60, 3)", "integers")),
    "three axes": ({"actions": np.zeros((N, 1, 1), np.int64)}, ("int64 of shape (60, 1, 1)", "integers")),
    "columns": ({"observations": np.zeros((N, 5), np.float32)}, ("observations has 5 columns", "has 4")),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_one_line(name, tmp_path):
    changes, parts = BAD[name]
    path = save(tmp_path / "set.hdf5", **changes)
    refused(lambda: load_task("mine", str(path), env_id="SeenBox-v0"), path, *parts)


@pytest.mark.parametrize("shape", [(N,), (N, 1)])
def test_integers_in_a_continuous_environment(shape, tmp_path):
    path = save(tmp_path / "set.hdf5", actions=np.ones(shape, np.int64))
    parts = path, f"int64 of shape {shape}", "at step 0", "vectors of real numbers"
    refused(lambda: load_task("mine", str(path), env_id="Smooth-v0"), *parts)
    assert datasets(["info", str(path), "--env-id", "Smooth-v0"]) == 3


def test_minari_keeps_integers_and_their_space(minari_root, tmp_path):
    made, file, again = discrete(), tmp_path / "set.hdf5", tmp_path / "again.hdf5"
    write_hdf5(file, made, {"env_id": "SeenBox-v0"})
    assert datasets(["convert", str(file), f"minari:{ID}"]) == 0
    metadata = json.loads((minari_root / ID / "data" / "metadata.json").read_text())
    assert json.loads(metadata["action_space"]) == {"type": "Discrete", "dtype": "int64", "start": START, "n": CHOICES}
    task, episodes = load_task("mine", f"minari:{ID}")
    same(episodes, made)
    assert (task.n_actions, task.action_start) == (CHOICES, START)
    assert datasets(["convert", f"minari:{ID}", str(again)]) == 0
    same(read_file(again), made)


@pytest.mark.parametrize("stored", [np.int64, np.float32])
def test_the_user_says_what_kind_the_actions_of_a_minari_dataset_are(stored):
    made = Episodes.from_arrays(**arrays(actions=(np.arange(N) % 3).astype(stored)))
    write_minari(ID, made, env_id=None)
    assert load_task("mine", f"minari:{ID}")[1].discrete == (stored is np.int64)
    for kind in ("discrete", "continuous"):
        task, episodes = load_task("mine", f"minari:{ID}", actions=kind)
        assert (episodes.discrete, task.n_actions) == ((True, 3) if kind == "discrete" else (False, None))
    with pytest.raises(DataError, match="actions are continuous, the environment's discrete"):
        load_task("mine", f"minari:{ID}", actions="continuous", env_id="SeenBox-v0")


class Cycle:
    """Takes -1, 0, 0, 1 in turn."""

    def initial_state(self, batch_size: int, target_return: Any) -> int:
        return 0

    def act(self, observation: Any, reward: Any, state: int) -> tuple[Any, int]:
        return np.full(len(observation), [-1, 0, 0, 1][state % 4], np.int64), state + 1


def test_played_episodes_are_read_back_bit_for_bit():
    """FlattenObservation, which the environment's description then names, is no foreign wrapper."""
    taken = list[np.ndarray]()
    asked = {"episodes": 3, "target_return": 0.0, "seed": 5, "workers": 0}
    played = rollout(Cycle(), "SeenDiscrete-v0", **asked, on_action=lambda _, actions: taken.append(actions))
    assert played.lengths.tolist() == [4, 4, 4] and np.array(taken).T.tolist() == [[-1, 0, 0, 1]] * 3
    env = make_env("SeenDiscrete-v0")
    parts = [play_episode(env, lambda _, last=last: last, 5, 4) for last in (-1, 0, 1)]
    episodes = join(parts, dataset=ID, env_id="SeenDiscrete-v0")
    write_minari(ID, episodes, env_id="SeenDiscrete-v0")
    _, again = load_task("mine", f"minari:{ID}")
    same(again, episodes)


def trained(data: Path, options: str) -> Path:
    """The folder of a run on a file own.hdf5."""
    small = f"--width 8 --layers 1 --heads 2 --updates 2 --steps-per-update 40 --threads 1 --return-scale 10 {options}"
    assert train(["--source", str(data), "--out", str(data.parent), *small.split()]) == 0
    return data.parent / "own" / "decision-aaren" / "seed0"


@pytest.mark.filterwarnings("ignore:.*smaller than the available range")
def test_train_and_evaluate_where_actions_do_not_begin_at_0(tmp_path, capsys):
    rng = np.random.default_rng(0)
    data = save(tmp_path / "own.hdf5", observations=np.eye(4)[rng.integers(4, size=N)])
    run = str(trained(data, "--env-id SeenDiscrete-v0 --eval-every 2 --eval-episodes 1 --final-episodes 1"))
    assert evaluate([run, "--episodes", "2", "--temperature", "2"]) == 0
    capsys.readouterr()
    assert evaluate([run, "--env-id", "SeenBox-v0", "--episodes", "1"]) == 0
    assert evaluate([run, "--env-id", "Smooth-v0", "--episodes", "1"]) == 4
    assert "Discrete(3, start=-1)" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:.*smaller than the available range")
def test_an_environment_with_more_choices_than_the_data_and_a_changed_card(tmp_path, capsys):
    """Trained without an environment on -1 and 0, it takes these where -1, 0 and 1 are; not where 0 is the first."""
    data = save(tmp_path / "own.hdf5", actions=np.arange(N) % 2 - 1)
    run = trained(data, "")
    played = [str(run), "--episodes", "1", "--target-return", "1", "--env-id"]
    assert evaluate([*played, "SeenBox-v0"]) == 0
    capsys.readouterr()
    assert evaluate([*played, "CartPole-v1"]) == 4 and "Discrete(2, start=-1)" in capsys.readouterr().err
    card = run / "policy" / "config.json"
    card.write_text(card.read_text().replace('"return_scale": ', '"return_scale": 1'))
    assert evaluate([*played, "SeenBox-v0"]) == 4
    assert "config.json" in capsys.readouterr().err


def test_cartpole_falls_less_and_less(monkeypatch):
    monkeypatch.setattr(cartpole, "_STEPS", 600)
    task = get_task("cartpole-medium-replay")
    episodes = cartpole.make_episodes(task, False)
    early, late = (part.mean() for part in np.array_split(episodes.returns, 2))
    assert early < late and 8 <= episodes.returns.min() < 15 and episodes.returns.max() == 500
    assert episodes.discrete and set(episodes.actions) == {0, 1} and not episodes[-1].terminated
    same(episodes, cartpole.make_episodes(task, False))


def test_the_discrete_t_maze_is_the_other_with_two_actions():
    task = get_task("tmaze-discrete-30")
    assert (task.env_id, task.n_actions, task.horizon, task.data_horizon) == ("aaren_rl/TMazeDiscrete-v0", 2, 30, 200)
    plain, found = (tmaze.make_episodes(get_task(name), False) for name in ("tmaze", "tmaze-discrete"))
    np.testing.assert_array_equal(plain.observations, found.observations)
    np.testing.assert_array_equal(plain.rewards, found.rewards)
    last = plain.offsets[1:] - 1
    np.testing.assert_array_equal(plain.actions[last, 0] > 0, found.actions[last] == 1)
    env, other = make_env(task.env_id, length=5), make_env("aaren_rl/TMaze-v0", length=5)
    for seed in range(6):
        cue = begin(env, seed=seed)[0][0]
        assert cue == begin(other, seed=seed)[0][0]
        turn = 2.0 * (seed % 2) - 1
        rewards = [(take(env, np.int64(seed % 2))[1], take(other, np.array([turn]))[1]) for _ in range(5)]
        assert all(a == b for a, b in rewards) and rewards[-1][0] == (cue == turn)
