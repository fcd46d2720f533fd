"""Observations that are no vectors, no bounds and no time limit: trainings, and acting on what an environment gives."""

from functools import partial
from typing import Any

import gymnasium as gym
import h5py
import minari_sets
import numpy as np
import pytest
from checks import Drawn, hdf5
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Text, Tuple
from policies import onnx_policy_of
from small_run import SMALL

from aaren_rl.envs import load_task, make_env
from aaren_rl.envs.data.minari import write_minari
from aaren_rl.envs.load import MARGIN
from aaren_rl.evaluate import main as evaluate
from aaren_rl.train import train_policy
from aaren_rl.vector import VectorPolicy

ROOMS = {**SMALL, "env_id": "Rooms-v0"}
SEEN = Dict(place=Box(-1, 1, (2, 2)), room=Discrete(3, start=1))


@pytest.fixture
def file(tmp_path, monkeypatch) -> Any:
    """90 steps as the environment gives them, a dataset for each key; actions from -3 to 5."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    rooms = partial(Drawn, SEEN, Box(-np.inf, np.inf, (2,)))  # without bounds and without a time limit
    monkeypatch.setitem(gym.registry, "Rooms-v0", EnvSpec("Rooms-v0", rooms, disable_env_checker=True))
    rng, n = np.random.default_rng(0), 90
    seen = {"observations/place": rng.uniform(-1, 1, (n, 2, 2)), "observations/room": rng.integers(1, 4, n)}
    actions = np.linspace([-3.0, 0], [5.0, 1], n)
    rest = {"actions": actions, "rewards": np.ones(n), "terminals": np.arange(n) % 9 == 8}
    return hdf5(tmp_path / "rooms.hdf5", seen | rest)


def test_a_policy_acts_on_what_its_environment_gives(file, tmp_path):
    task, episodes = load_task("rooms", str(file), env_id="Rooms-v0")
    wide = MARGIN * np.array([8.0, 1.0])
    np.testing.assert_allclose([task.action_low, task.action_high], [np.array([-3, 0]) - wide, np.array([5, 1]) + wide])
    assert (task.horizon, task.env_kwargs) == (1000, {"max_episode_steps": 1000})
    told = {note.split(":")[0] for note in episodes.notes}
    assert told >= {"Rooms-v0 has no time limit", "Rooms-v0 has unbounded actions"}
    policy = train_policy("rooms", source=str(file), env_kwargs={"price": 2.5}, out=tmp_path, **ROOMS).policy
    card = policy.card
    assert card.env_kwargs == {"price": 2.5, "max_episode_steps": 1000} and card.observation_space["type"] == "Dict"
    SEEN.seed(5)
    single = [SEEN.sample() for _ in range(2)]
    flat = np.stack([gym.spaces.flatten(SEEN, one) for one in single])
    together = {key: np.stack([one[key] for one in single]) for key in SEEN}
    exported = onnx_policy_of(policy, card)
    for acting in (policy, exported):
        expected, _ = acting.act(flat, np.zeros(2), acting.initial_state(2, 3.0))
        for observation in (together, single):
            found, _ = acting.act(observation, np.zeros(2), acting.initial_state(2, 3.0))
            np.testing.assert_array_equal(found, expected)
        vector = VectorPolicy(acting, n_envs=2, target_return=3.0)
        np.testing.assert_array_equal(vector.act(together, np.zeros(2))[0], expected)
        with pytest.raises(ValueError, match=r"observation: 'room' is missing.*act takes a batch"):
            acting.act({"place": together["place"]}, np.zeros(2), acting.initial_state(2, 3.0))
        with pytest.raises(ValueError, match=r"observation/room: has 9 in row 1; its space is 1 to 3"):
            acting.act({**together, "room": [1, 9]}, np.zeros(2), acting.initial_state(2, 3.0))


def test_columns_without_names_are_in_the_order_of_the_environment(file, tmp_path, capsys):
    with h5py.File(file, "a") as data:
        room = np.eye(3)[data["observations/room"][:] - 1]
        flat = np.concatenate([data["observations/place"][:].reshape(90, 4), room], 1)
        del data["observations"]
        data["observations"] = flat
    train_policy("rooms", source=str(file), out=tmp_path, **ROOMS)
    assert "rooms: Rooms-v0 flattens place, room; the columns of observations must be in" in capsys.readouterr().out
    alone = train_policy("alone", source=str(file), out=tmp_path, **SMALL).folder  # without an environment
    assert evaluate([str(alone), "--env-id", "Rooms-v0", "--episodes", "1", "--target-return", "1"]) == 0
    assert "Rooms-v0 flattens place (4), room (3); the columns of the data must" in capsys.readouterr().err


def test_some_parts_of_observations_in_the_data_and_in_the_environment(file, tmp_path):
    policy = train_policy("rooms", source=str(file), observation_keys="place", out=tmp_path, **ROOMS).policy
    card = policy.card
    assert card.env_kwargs["observation_keys"] == ["place"] and [*card.observation_space["subspaces"]] == ["place"]
    with h5py.File(file) as data:
        mean = data["observations/place"][:81].reshape(81, 4).mean(0)
    np.testing.assert_allclose(card.observation_mean, mean, atol=0.3)
    env = make_env(card.env_id, **card.env_kwargs)
    action, _ = policy.act(env.reset(seed=0)[0][None], np.zeros(1), policy.initial_state(1, 3.0))
    assert env.observation_space.shape == (4,) and action.shape == (1, 2)
    env.close()


def test_minaris_evaluation_environment_is_played(file, tmp_path):
    episodes = minari_sets.small(observation_dim=7, action_dim=2)
    write_minari("mine/rooms-v0", episodes, env_id="Rooms-v0")
    with minari_sets.spec(tmp_path / "minari" / "mine" / "rooms-v0" / "data", "eval_env_spec") as spec:
        spec["kwargs"] = {"price": 100.0}
    task, read = load_task("rooms", "minari:mine/rooms-v0")
    assert (task.env_id, task.env_kwargs["price"]) == ("Rooms-v0", 100.0)
    assert "evaluated in the dataset's eval_env_spec, Rooms-v0(price=100.0)" in read.notes
    assert load_task("rooms", "minari:mine/rooms-v0", env_id="Rooms-v0")[0].env_kwargs == {"max_episode_steps": 1000}


GRID = Dict(image=Box(0, 255, (7, 7, 3), np.uint8), direction=Discrete(4), mission=Text(9))  # as MiniGrid's


SYMBOLS = {"Discrete": Discrete(4), "Tuple": Tuple([Discrete(2), Discrete(4)]), "MultiDiscrete": MultiDiscrete([2, 3])}
SPACES = {**SYMBOLS, "Dict": GRID}  # as benchmarks of memory have them


@pytest.mark.parametrize(("space", "size"), [("Discrete", 4), ("Tuple", 6), ("MultiDiscrete", 5), ("Dict", 151)])
def test_symbols_and_small_grids_are_read_and_played(space, size, tmp_path, monkeypatch):
    """A grid of 7 x 7 x 3 is no image; a text beside it is left out by the keys of the others."""
    spec = EnvSpec("Symbols-v0", lambda space: Drawn(SPACES[space], Discrete(4)), disable_env_checker=True)
    monkeypatch.setitem(gym.registry, "Symbols-v0", spec)
    env, rng = gym.make("Symbols-v0", space=space), np.random.default_rng(0)
    seen = [env.reset(seed=seed)[0] for seed in range(45)]
    keys: dict[str, Any] = {"observation_keys": ["direction", "image"]} if space == "Dict" else {}
    if keys:
        columns = {f"observations/{key}": np.stack([one[key] for one in seen]) for key in keys["observation_keys"]}
    elif space == "Tuple":
        columns = {f"observations/_index_{i}": np.array([one[i] for one in seen]) for i in range(2)}
    else:
        columns = {"observations": np.stack(seen)}
    columns |= {"actions": rng.integers(4, size=45), "rewards": np.ones(45), "terminals": np.arange(45) % 9 == 8}
    source, how = str(hdf5(tmp_path / "symbols.hdf5", columns)), {"env_kwargs": {"space": space}, **keys}
    policy = train_policy("symbols", source=source, env_id="Symbols-v0", out=tmp_path, **how, **SMALL).policy
    parts = {key: seen[0][key] for key in keys["observation_keys"]} if keys else seen[0]
    observed = Dict({key: GRID[key] for key in ("image", "direction")}) if keys else env.observation_space
    flat = gym.spaces.flatten(observed, parts)[None]
    assert policy.card.model["observation_dim"] == size == flat.shape[1]
    batch = [parts] if space == "Tuple" else np.array([parts])
    if keys:
        batch = {key: part[None] for key, part in parts.items()}
    acts = [policy.logits(one, np.zeros(1), policy.initial_state(1, 9.0))[0] for one in (flat, batch)]
    np.testing.assert_array_equal(*acts)
