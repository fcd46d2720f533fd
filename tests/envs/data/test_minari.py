"""Minari datasets: what is read is what was recorded, and what is damaged is refused."""

import json
import os

import h5py
import minari_sets as sets
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from minari_sets import ID, refused, small

from aaren_rl.envs import DataError, UsageError, make_env
from aaren_rl.envs.data.download import write_pin
from aaren_rl.envs.data.minari.read import minari_id, read_minari
from aaren_rl.envs.data.minari.spec import read_spec
from aaren_rl.envs.data.minari.write import write_minari


def test_the_ids_of_tasks():
    assert minari_id("halfcheetah-expert") == "mujoco/halfcheetah/expert-v0"
    with pytest.raises(DataError, match=r"no medium-replay dataset; it has mujoco/ant/simple-v0, .*expert-v0"):
        minari_id("ant-medium-replay")


@pytest.mark.faults(36)
@pytest.mark.parametrize("name", ["../x-v0", "/tmp/x-v0", "a:b-v0", "x", "a//b-v0", "x-v0\n", "a/-v0/..", "x" * 999])
def test_36_ids_that_are_none_touch_nothing(name, tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    for call in (lambda: read_minari(name), lambda: write_minari(name, small(), env_id=None)):
        with pytest.raises(UsageError, match=r"is not a Minari id.{,100}$"):
            call()
    assert list(tmp_path.iterdir()) == []


def test_observations_actions_and_rewards_line_up(data):
    """The stored actions, played from the stored seeds, give the rows that were read."""
    episodes, spec = read_minari(ID)
    with h5py.File(data / "main_data.hdf5") as file:
        seeds = [int(file[f"episode_{e}"].attrs["seed"]) for e in range(4)]
    env = make_env("Hopper-v5", **spec.env_kwargs)
    for seed, episode in zip(seeds, episodes, strict=True):
        observation, terminated = env.reset(seed=seed)[0], False
        for t in range(len(episode)):
            np.testing.assert_array_equal(episode.observations[t], observation.astype(np.float32))
            observation, reward, terminated, _, _ = env.step(episode.actions[t])
            assert episode.rewards[t] == np.float32(reward)
        assert episode.terminated == terminated
    env.close()
    assert episodes.terminated.tolist() == [True, True, True, False] and episodes.lengths[3] == 5
    assert (episodes.source, episodes.dataset, episodes.env_id) == ("minari", ID, "Hopper-v5")
    assert episodes.path == str(data / "main_data.hdf5") and episodes.notes == ("algorithm_name: random",)
    assert (spec.env_kwargs, spec.reference_returns, spec.max_episode_steps) == ({}, (-20.0, 3000.0), 1000)
    assert (spec.action_low, spec.action_high) == ((-1.0,) * 3, (1.0,) * 3)


@pytest.mark.faults(1)
def test_1_what_is_missing(data, tmp_path, monkeypatch):
    for name, text in (("metadata.json", "No such file"), ("main_data.hdf5", "does not exist")):
        (data / name).rename(tmp_path / name)
        refused(data / name, text)
        (tmp_path / name).rename(data / name)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    refused(tmp_path, "does not exist", "datasets download", "MINARI_DATASETS_PATH", download=False)


def resized(key, change):
    return lambda group: group[key].resize(len(group[key]) + change, axis=0)


def valued(key, index, value):
    return lambda group: group[key].__setitem__(index, value)


def replaced(key, change):
    def replace(group):
        values = group[key][()]
        del group[key]
        group[key] = change(values)

    return replace


@pytest.mark.faults(2, 5, 7, 8, 11)
@pytest.mark.parametrize(
    ("spoil", "parts"),
    [
        (lambda group: group.move("truncations", "x"), ["missing episode_1/truncations", "Minari's layout"]),
        (lambda group: group.file.move("episode_2", "episode_7"), ["missing episode_2"]),
        (valued("rewards", [2, 3], np.nan), ["episode_1/rewards", "2 values", "NaN", "step 2;"]),
        *((resized(key, -1), [f"episode_1/{key}", "rewards"]) for key in ("observations", "actions", "terminations")),
        *((resized(key, 1), [f"episode_1/{key}", "rewards"]) for key in ("observations", "truncations")),
        (replaced("actions", lambda values: values[:, :2]), ["episode_1/actions", "2)", "3)"]),
        (replaced("rewards", lambda values: values[:0]), ["episode_1/rewards", "(0,)"]),
        (valued("truncations", 3, True), ["episode_1 has", "step 3", "split"]),
        (valued("actions", (2, 1), 1.5), ["1.5]", "[-1, 1]", "--clip-actions"]),
    ],
)
def test_what_is_refused(data, spoil, parts):
    with sets.episode(data) as group:
        spoil(group)
    refused(*parts)


@pytest.mark.faults(3, 4)
def test_3_truncated_and_4_changed(data):
    path = data / "main_data.hdf5"
    write_pin(path, "0" * 64)
    refused(path, "SHA-256")
    (data / "main_data.hdf5.sha256").unlink()
    os.truncate(path, path.stat().st_size // 2)
    refused(path, "truncated")


def described(key, **space):
    return {f"{key}_space": json.dumps(space)}


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"total_steps": 3}, "counts 3"),
        ({"total_episodes": 5}, "counts 5"),
        ({"data_format": "arrow"}, "data_format is 'arrow'; only hdf5"),
        (described("observation", type="Box", shape=[2], low=[-1, -1], high=[1, 1]), "episode_0/observations"),
        (described("action", type="Box", shape=[2], low=[-1, -1], high=[1, 1]), "episode_0/actions"),
        (described("action", type="Dict", subspaces={}), "metadata.json:action_space is 'Dict'"),
        (described("observation", type="Box", shape=[64, 64, 3], low=0, high=255), "is 'Box' of shape [64, 64, 3]"),
        (described("action", type="Box", shape=[3], low=[0], high=[1]), "no bounds"),
        (described("action", type="Box", shape=[1], low=[2], high=[1]), "no bounds"),
        (described("action", type="Box", shape=[1], low=["x"], high=[1]), "no bounds"),
    ],
)
def test_metadata_that_do_not_fit(data, changes, shown):
    with sets.metadata(data) as values:
        values.update(changes)
    refused(shown)


@pytest.mark.faults(10)
def test_10_an_unfinished_episode(data):
    n_steps = read_minari(ID).episodes.n_steps
    for number in (1, 3):
        with sets.episode(data, number) as group:
            group["terminations"][-1] = group["truncations"][-1] = False
            group["observations"][-1] = np.nan  # it is behind the last step, and not read
    episodes = read_minari(ID).episodes
    assert (len(episodes), episodes.n_steps, episodes.terminated.tolist()) == (3, n_steps - 5, [True, False, True])
    assert "dropped 5 steps of an unfinished last episode" in episodes.notes
    assert "took 1 episodes without a mark at their end for cut by a time limit" in episodes.notes
    with sets.episode(data, 3) as group:
        for number in (0, 1, 2):
            del group.file[f"episode_{number}"]
        group.file.move("episode_3", "episode_0")
    with sets.metadata(data) as values:
        values.update(total_episodes=1, total_steps=5)
    refused("unfinished")


@pytest.mark.faults(11)
def test_11_actions_are_held_to_the_datasets_own_bounds(data):
    with sets.episode(data) as group:
        group["actions"][2, 1] = 1.5
    episodes = read_minari(ID, clip_actions=True).episodes
    assert episodes.actions.max() == 1 and "clipped actions from" in episodes.notes[-1]
    with sets.metadata(data) as values:
        values.update(described("action", type="Box", shape=[3], low=[-1, -1, -1], high=[1, 2, 1]))
    assert read_minari(ID).episodes.actions.max() == 1.5


@pytest.mark.parametrize(("low", "high"), [(1, 1), (None, 3), ("x", 3), (float("nan"), 3), (None, None)])
def test_reference_scores_that_are_none(data, low, high):
    with sets.metadata(data) as values:
        values.update(ref_min_score=low, ref_max_score=high)
    episodes, spec = read_minari(ID)
    assert spec.reference_returns is None
    assert any("left out reference scores" in note for note in episodes.notes) == (high is not None)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=json_values, choice=st.randoms(use_true_random=False))
def test_any_metadata_are_read_or_refused(minari_recorded, tmp_path, value, choice):
    values = json.loads((minari_recorded / ID / "data" / "metadata.json").read_text())
    key = choice.choice(sorted(values))
    if key.endswith(("spec", "space")) and choice.random() < 0.9:
        inner = json.loads(values[key])
        inner[choice.choice(sorted(inner))] = value
        value = json.dumps(inner)
    path = tmp_path / "metadata.json"
    path.write_text(json.dumps({**values, key: value}))
    try:
        read_spec(path)
    except DataError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000, '{"env_spec": "{"}', '{"env_spec": 3}'])
def test_metadata_that_are_no_json(tmp_path, text):
    path = tmp_path / "metadata.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"metadata\.json.* is not .*JSON.*; "):
        read_spec(path)
