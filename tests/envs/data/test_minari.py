"""Minari datasets: what is read is what was recorded, and nothing that a dataset names is imported."""

import json
import os
import shutil
import subprocess
import sys

import gymnasium as gym
import h5py
import minari_sets as sets
import numpy as np
import pytest
from gymnasium.envs.mujoco.inverted_pendulum_v5 import InvertedPendulumEnv
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from minari_sets import ID

from aaren_rl.envs import DataError, Episodes, SimulationError, UnknownTaskError, UsageError, make_env
from aaren_rl.envs.data.download.pins import write_pin
from aaren_rl.envs.data.minari.read import minari_id, read_minari
from aaren_rl.envs.data.minari.spec import read_spec
from aaren_rl.envs.data.minari.write import write_minari


@pytest.fixture
def data(minari_recorded, tmp_path, monkeypatch):
    """The `data` folder of a copy to spoil."""
    root = tmp_path / "datasets"
    shutil.copytree(minari_recorded, root)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    return root / ID / "data"


def refused(*parts, error=DataError, **options):
    with pytest.raises(error) as caught:
        read_minari(ID, progress=False, **options)
    message = str(caught.value)
    assert caught.value.exit_code == (3 if error is DataError else 2)
    assert "\n" not in message and "; " in message
    for part in parts:
        assert str(part) in message
    return message


def small(seed=0, observation_dim=11, action_dim=3, lengths=(4, 1, 7)):
    rng, n = np.random.default_rng(seed), sum(lengths)
    return Episodes(
        rng.standard_normal((n, observation_dim)).astype(np.float32),
        rng.uniform(-1, 1, (n, action_dim)).astype(np.float32),
        rng.standard_normal(n).astype(np.float32),
        np.cumsum([0, *lengths]),
        np.arange(len(lengths)) % 2 == 0,
    )


def test_tasks_and_ids():
    assert minari_id("hopper-medium") == "mujoco/hopper/medium-v0"
    assert minari_id("halfcheetah-expert") == "mujoco/halfcheetah/expert-v0"
    with pytest.raises(DataError, match=r"no medium-replay dataset; it has mujoco/ant/simple-v0, .*expert-v0"):
        minari_id("ant-medium-replay")
    with pytest.raises(UnknownTaskError):
        minari_id("hoper-medium")


@pytest.mark.faults(36)
@pytest.mark.parametrize(
    "name", ["../x-v0", "/tmp/x-v0", "a:b-v0", "x", "", "a//b-v0", "x-v0\n", "a/-v0/..", "x" * 999]
)
def test_36_ids_that_are_none_touch_nothing(name, tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    for call in (lambda: read_minari(name), lambda: write_minari(name, small(), env_id=None)):
        with pytest.raises(UsageError, match="is not a Minari id") as caught:
            call()
        assert len(str(caught.value)) < 300
    assert list(tmp_path.iterdir()) == []


def test_observations_actions_and_rewards_line_up(data):
    """The stored actions, played from the stored seeds, give the rows that were read."""
    read = read_minari(ID)
    episodes = read.episodes
    with h5py.File(data / "main_data.hdf5") as file:
        seeds = [int(file[f"episode_{e}"].attrs["seed"]) for e in range(4)]
        assert [len(file[f"episode_{e}/observations"]) for e in range(4)] == (episodes.lengths + 1).tolist()
    env = make_env("Hopper-v5", **read.spec.env_kwargs)
    for seed, episode in zip(seeds, episodes, strict=True):
        observation, terminated = env.reset(seed=seed)[0], False
        for t in range(len(episode)):
            np.testing.assert_array_equal(episode.observations[t], observation.astype(np.float32))
            observation, reward, terminated, _, _ = env.step(episode.actions[t])
            assert episode.rewards[t] == np.float32(reward)
        assert episode.terminated == terminated
    env.close()
    assert episodes.terminated.tolist() == [True, True, True, False] and episodes.lengths[3] == 5


def test_what_a_dataset_says_of_itself(data):
    read = read_minari(ID)
    episodes = read.episodes
    assert (episodes.source, episodes.dataset, episodes.env_id) == ("minari", ID, "Hopper-v5")
    assert episodes.path == str(data / "main_data.hdf5")
    assert episodes.notes == ("algorithm_name: random",)
    assert (read.spec.env_kwargs, read.spec.reference_returns, read.spec.max_episode_steps) == (
        {},
        (-20.0, 3000.0),
        1000,
    )
    assert read.spec.action_low == (-1.0,) * 3 and read.spec.action_high == (1.0,) * 3


def test_minari_is_not_imported_by_reading(data):
    code = (
        "import sys; from aaren_rl.envs.data.minari.read import read_minari; "
        f"read_minari({ID!r}); print('minari' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_absent(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    refused(tmp_path, "does not exist", "datasets download", "MINARI_DATASETS_PATH", download=False)


@pytest.mark.faults(1)
@pytest.mark.parametrize("name", ["metadata.json", "main_data.hdf5"])
def test_1_a_file_is_missing(data, name):
    (data / name).unlink()
    refused(data / name, "does not exist")


@pytest.mark.faults(2)
def test_2_missing_parts(data):
    with sets.episode(data) as group:
        group.move("truncations", "timeouts")
    refused("missing episode_1/truncations", "Minari's layout")


def test_2_episodes_that_are_not_numbered_from_0(data):
    with sets.episode(data, 0) as group:
        group.file.move("episode_2", "episode_7")
    refused("missing episode_2")


@pytest.mark.faults(3, 4)
def test_3_truncated_and_4_changed(data):
    path = data / "main_data.hdf5"
    write_pin(path, "0" * 64)
    refused(path, "SHA-256")
    (data / "main_data.hdf5.sha256").unlink()
    os.truncate(path, path.stat().st_size // 2)
    refused(path, "truncated")
    path.write_bytes(b"")
    refused(path, "0 bytes")


def test_3_metadata_that_are_no_json(data):
    path = data / "metadata.json"
    for text in ("", "[1]", "{", "[" * 100_000, '{"env_spec": "{"}', '{"env_spec": "3"}', '{"env_spec": 3}'):
        path.write_text(text)
        refused(path, "JSON")


@pytest.mark.parametrize(("key", "value", "shown"), [("total_steps", 3, "counts 3"), ("total_episodes", 5, "counts 5")])
def test_3_counts_that_are_not_the_files(data, key, value, shown):
    with sets.metadata(data) as values:
        values[key] = value
    refused(data / "main_data.hdf5", shown, "get it again")


@pytest.mark.faults(5, 6)
def test_5_and_6_values_that_are_not_finite(data):
    with sets.episode(data, 1) as group:
        group["rewards"][[2, 3]] = np.nan
    refused("episode_1/rewards", "2 values", "NaN", "step 2;")
    with sets.episode(data, 1) as group:
        group["rewards"][[2, 3]] = 0
        group["observations"][4, 7] = -np.inf
    refused("episode_1/observations", "infinite", "step 4, column 7")
    with sets.episode(data, 1) as group:
        group["observations"][4, 7] = 1e39
    refused("beyond float32", "step 4, column 7")


def test_the_observation_behind_the_last_step_is_not_read(data):
    before = read_minari(ID).episodes
    with sets.episode(data, 1) as group:
        group["observations"][-1] = np.nan
    np.testing.assert_array_equal(read_minari(ID).episodes.observations, before.observations)


@pytest.mark.faults(7)
@pytest.mark.parametrize("key", ["observations", "actions", "terminations", "truncations"])
@pytest.mark.parametrize("change", [-1, 1])
def test_7_other_lengths(data, key, change):
    with sets.episode(data) as group:
        rows, n = len(group[key]), len(group["rewards"])
        group[key].resize(rows + change, axis=0)
    refused(f"episode_1/{key}", rows + change, f"{n} rewards")


def test_7_other_columns_in_a_later_episode(data):
    with sets.episode(data) as group:
        actions = group["actions"][:, :2]
        del group["actions"]
        group["actions"] = actions
    refused("episode_1/actions", "2)", "3)")


@pytest.mark.parametrize(("key", "columns"), [("observation", 11), ("action", 3)])
def test_7_columns_that_are_not_the_spaces(data, key, columns):
    with sets.metadata(data) as values:
        values[f"{key}_space"] = json.dumps({"type": "Box", "shape": [2], "low": [-1, -1], "high": [1, 1]})
    refused(f"episode_0/{key}s has {columns} columns, its space in metadata.json 2")


@pytest.mark.faults(8)
def test_8_no_steps(data):
    with sets.episode(data) as group:
        for key in ("rewards", "actions", "terminations", "truncations"):
            group[key].resize(0, axis=0)
    refused("episode_1/rewards", "(0,)")


@pytest.mark.faults(9)
def test_9_one_step_episodes(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    write_minari(ID, small(lengths=(1, 1, 1)), env_id="Hopper-v5")
    assert read_minari(ID).episodes.lengths.tolist() == [1, 1, 1]


def test_10_an_unfinished_last_episode_is_left_out(data):
    n_steps = read_minari(ID).episodes.n_steps
    for number in (1, 3):
        with sets.episode(data, number) as group:
            group["terminations"][-1] = group["truncations"][-1] = False
    episodes = read_minari(ID).episodes
    assert (len(episodes), episodes.n_steps, episodes.terminated.tolist()) == (3, n_steps - 5, [True, False, True])
    assert "dropped 5 steps of an unfinished last episode" in episodes.notes
    assert "took 1 episodes without a mark at their end for cut by a time limit" in episodes.notes


@pytest.mark.faults(10)
def test_10_nothing_but_an_unfinished_episode(data):
    with sets.episode(data, 0) as group:
        group["terminations"][-1] = False
        for number in (1, 2, 3):
            del group.file[f"episode_{number}"]
        steps = len(group["rewards"])
    with sets.metadata(data) as values:
        values.update(total_episodes=1, total_steps=steps)
    refused("unfinished")


def test_10_an_end_before_the_end(data):
    with sets.episode(data) as group:
        group["truncations"][3] = True
    refused("episode_1/truncations", "step 3", "split")


@pytest.mark.faults(11)
def test_11_actions_are_held_to_the_datasets_own_bounds(data):
    with sets.episode(data) as group:
        group["actions"][2, 1] = 1.5
    refused("1.5]", "[-1, 1]", "--clip-actions")
    read = read_minari(ID, clip_actions=True)
    assert read.episodes.actions.max() == 1 and "clipped actions from" in read.episodes.notes[-1]
    with sets.metadata(data) as values:
        bounds = {"type": "Box", "shape": [3], "low": [-1, -1, -1], "high": [1, 2, 1]}
        values["action_space"] = json.dumps(bounds)
    assert read_minari(ID).episodes.actions.max() == 1.5


@pytest.mark.faults(12)
@pytest.mark.parametrize("dtype", [np.float16, np.float64, ">f4", np.int32])
def test_12_other_number_types(data, dtype):
    with sets.episode(data) as group:
        values = group["observations"][()].astype(dtype)
        del group["observations"]
        group["observations"] = values
    episode = read_minari(ID).episodes[1]
    np.testing.assert_array_equal(episode.observations, values[:-1].astype(np.float32))


def test_12_not_numbers_and_flags_that_are_not(data):
    with sets.episode(data) as group:
        flags = group["terminations"][()].astype(np.float32)
        del group["terminations"]
        group["terminations"] = flags
    assert len(read_minari(ID).episodes) == 4
    with sets.episode(data) as group:
        group["terminations"][0] = 0.5
    refused("episode_1/terminations", "0 and 1")
    with sets.episode(data) as group:
        del group["rewards"]
        group["rewards"] = [b"1"] * len(flags)
    refused("episode_1/rewards", "not real numbers")


SPACES = [
    ({"type": "Dict", "subspaces": {}}, "is Dict"),
    ({"type": "Discrete", "n": 4, "start": 0}, "is Discrete"),
    ({"type": "Tuple", "subspaces": []}, "is Tuple"),
    ({"type": "Box", "shape": [64, 64, 3], "low": 0, "high": 255}, "is Box of shape [64, 64, 3]"),
    ({"type": "Box", "shape": [3], "low": [0], "high": [1]}, "no bounds"),
    ({"type": "Box", "shape": [1], "low": [2], "high": [1]}, "no bounds"),
    ({"type": "Box", "shape": [1], "low": ["x"], "high": [1]}, "no bounds"),
]


@pytest.mark.parametrize("key", ["observation_space", "action_space"])
@pytest.mark.parametrize(("space", "shown"), SPACES)
def test_13_spaces_that_are_not_vectors(data, key, space, shown):
    with sets.metadata(data) as values:
        values[key] = json.dumps(space)
    refused(f"metadata.json:{key}", shown)


def test_13_groups_where_arrays_belong(data):
    with sets.episode(data) as group:
        del group["observations"]
        group.create_group("observations")
    refused("episode_1/observations", "group")


def test_13_other_formats(data):
    with sets.metadata(data) as values:
        values["data_format"] = "arrow"
    refused("data_format", "arrow", "hdf5")


@pytest.mark.faults(37)
@pytest.mark.parametrize("part", ["", "/rewards"])
@pytest.mark.parametrize("link", [h5py.SoftLink("/episode_0"), h5py.ExternalLink("other.hdf5", "/x")])
def test_37_links(data, part, link):
    with sets.episode(data) as group:
        name = f"episode_1{part}"
        del group.file[name]
        group.file[name] = link
    refused(name, "external link" if isinstance(link, h5py.ExternalLink) else "soft link")


@pytest.mark.faults(37)
def test_37_virtual_and_external_storage(data, tmp_path):
    secret = tmp_path / "secret"
    with sets.episode(data) as group:
        n = len(group["rewards"])
        secret.write_bytes(bytes(8 * n))
        del group["rewards"]
        group.create_dataset("rewards", (n,), np.float64, external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
    refused("episode_1/rewards", "external storage")
    layout = h5py.VirtualLayout((n,), np.float64)
    layout[:] = h5py.VirtualSource(str(secret), "x", shape=(n,))
    with sets.episode(data) as group:
        del group["rewards"]
        group.create_virtual_dataset("rewards", layout)
    refused("episode_1/rewards", "virtual")


@pytest.mark.faults(38)
def test_38_bombs(data):
    with sets.episode(data) as group:
        shape = group["actions"].shape
        del group["actions"]
        group.create_dataset("actions", shape, np.float32, maxshape=(None, 3), chunks=(10**8, 3), compression="gzip")
    refused("claims 1,20", "in a file of")
    with sets.episode(data) as group:
        for key, columns in (("observations", (11,)), ("actions", (3,)), ("rewards", ())):
            del group[key]
            n = 10**11 + (key == "observations")
            group.create_dataset(key, (n, *columns), np.float32, chunks=(10**6, *columns), compression="gzip")
        steps = 10**11 + sum(len(group.file[f"episode_{e}/rewards"]) for e in (0, 2, 3))
    with sets.metadata(data) as values:
        values["total_steps"] = steps
    refused("100,000,0", "claims", "in a file of")


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module that leaves a trace where it is imported."""
    (tmp_path / "evil_module.py").write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'trace')!r}).touch()\nEnv = object\nWrapper = object\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    assert not (tmp_path / "trace").exists() and "evil_module" not in sys.modules


@pytest.mark.faults(41)
@pytest.mark.parametrize("key", ["env_spec", "eval_env_spec"])
@pytest.mark.parametrize(
    ("env_id", "entry"),
    [
        ("Hopper-v5", "evil_module:Env"),
        ("Hopper-v5", "os:system"),
        ("Evil-v0", "evil_module:Env"),
        ("evil_module:Hopper-v5", "evil_module:Env"),
        ("Hopper-v5", None),
        (["Hopper-v5"], "gymnasium.envs.mujoco.hopper_v5:HopperEnv"),
        (None, None),
    ],
)
@pytest.mark.parametrize("spaces", [True, False])
def test_41_a_foreign_entry_point_is_not_imported(data, evil, key, env_id, entry, spaces):
    with sets.spec(data, key) as spec:
        spec.update(id=env_id, entry_point=entry)
    if not spaces:  # then minari makes the environment to ask it for them
        with sets.metadata(data) as values:
            del values["observation_space"], values["action_space"]
    refused(f"metadata.json:{key}", entry if isinstance(env_id, str) and entry else "", "not imported")


@pytest.mark.faults(41)
def test_41_wrappers(data, evil):
    with sets.spec(data) as spec:
        spec["additional_wrappers"] = [{"name": "Evil", "entry_point": "evil_module:Wrapper", "kwargs": {}}]
    refused("metadata.json:env_spec", "wrappers", "Evil", "not imported")
    with sets.spec(data) as spec:
        spec["additional_wrappers"] = [{"name": "RecordEpisodeStatistics", "entry_point": "x:y", "kwargs": {}}]
    assert "left out wrappers that only watch: RecordEpisodeStatistics" in read_minari(ID).episodes.notes


@pytest.mark.faults(41)
@pytest.mark.parametrize(
    "kwargs",
    [
        {"xml_file": "x"},
        {"model_path": "x"},
        {"env_id": "x"},
        {"x": "/etc/passwd"},
        {"x": "../x"},
        {"x": "evil_module:Env"},
        {"x": ["a", ["/etc/passwd"]]},
        {"x": "model.xml"},
        {"x": {}},
        {"healthy_z_range": [0.7, float("inf")]},  # a card could not be written
        {"not a name": 1},
        [1],
    ],
)
def test_41_arguments_that_name_files_or_modules(data, kwargs):
    with sets.spec(data) as spec:
        spec["kwargs"] = kwargs
    refused("metadata.json:env_spec.kwargs", "" if isinstance(kwargs, list) else next(iter(kwargs)))


def test_41_plain_arguments_are_returned(data):
    kwargs = {"healthy_z_range": [0.7, 5.0], "terminate_when_unhealthy": False, "reset_noise_scale": 0.01}
    with sets.spec(data) as spec:
        spec["kwargs"] = {**kwargs, "render_mode": "human"}
    read = read_minari(ID)
    assert read.spec.env_kwargs == kwargs and "left out the environment's render_mode" in read.episodes.notes
    make_env("Hopper-v5", **read.spec.env_kwargs).close()


def test_an_environment_of_your_own(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    gym.register("Mine-v0", InvertedPendulumEnv, max_episode_steps=9)  # a class, which JSON cannot hold
    try:
        write_minari(ID, small(observation_dim=4, action_dim=1), env_id="Mine-v0")
        read = read_minari(ID)
    finally:
        del gym.registry["Mine-v0"]
    assert (read.episodes.env_id, read.spec.max_episode_steps, read.spec.action_high) == ("Mine-v0", 9, (3.0,))
    refused("Mine-v0", "inverted_pendulum_v5:InvertedPendulumEnv", "not imported", "--register")


def test_reference_scores_that_are_none(data):
    for low, high in ((1, 1), (5, 2), (None, 3), ("x", 3), (float("nan"), 3), (False, True)):
        with sets.metadata(data) as values:
            values.update(ref_min_score=low, ref_max_score=high)
        read = read_minari(ID)
        assert read.spec.reference_returns is None and "left out reference scores" in read.episodes.notes[-1]
    with sets.metadata(data) as values:
        del values["ref_min_score"], values["ref_max_score"]
    assert read_minari(ID).spec.reference_returns is None


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


def test_written_datasets_are_read_by_minari_and_here(tmp_path, monkeypatch):
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    episodes, finals = small(), np.arange(33, dtype=np.float32).reshape(3, 11)
    kwargs = {"reset_noise_scale": 0.01}
    folder = write_minari(
        ID,
        episodes,
        env_id="Hopper-v5",
        env_kwargs=kwargs,
        description="by hand",
        reference_returns=(1, 2),
        final_observations=finals,
    )
    assert folder == tmp_path / ID and [path.name for path in folder.parent.iterdir()] == [folder.name]
    read = read_minari(ID)
    for name in ("observations", "actions", "rewards", "offsets", "terminated"):
        np.testing.assert_array_equal(getattr(read.episodes, name), getattr(episodes, name))
    assert (read.spec.env_kwargs, read.spec.reference_returns, read.episodes.env_id) == (
        kwargs,
        (1.0, 2.0),
        "Hopper-v5",
    )
    assert read.episodes.notes == ("description: by hand",)
    dataset = minari.load_dataset(ID)
    assert (dataset.total_episodes, dataset.total_steps) == (3, 12)
    assert dataset.env_spec == gym.spec("Hopper-v5").__class__.from_json(dataset.env_spec.to_json())
    for stored, episode, final in zip(dataset, episodes, finals, strict=True):
        np.testing.assert_array_equal(stored.observations, [*episode.observations, final])
        np.testing.assert_array_equal(stored.actions, episode.actions)
        np.testing.assert_array_equal(stored.rewards, episode.rewards)
        assert stored.terminations[-1] == episode.terminated and stored.truncations[-1] != episode.terminated
        assert not stored.terminations[:-1].any() and not stored.truncations[:-1].any()


def test_a_repeated_last_observation_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    folder = write_minari(ID, small(), env_id=None, description="mine")
    with h5py.File(folder / "data" / "main_data.hdf5") as file:
        observations = file["episode_0/observations"][()]
    np.testing.assert_array_equal(observations[-1], observations[-2])
    (note,) = read_minari(ID).episodes.notes
    assert note.startswith("description: the observation behind") and note.endswith("repeats the one before; mine")
    assert read_minari(ID).episodes.env_id is None


def test_an_existing_dataset_is_not_overwritten(data):
    before = (data / "main_data.hdf5").read_bytes()
    with pytest.raises(UsageError, match="is there already"):
        write_minari(ID, small(), env_id="Hopper-v5")
    assert (data / "main_data.hdf5").read_bytes() == before


def tree(path):
    """Every entry of an HDF5 file with what an array is like, its attributes included."""
    entries = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, entry: entries.update(
                {name: (dict(entry.attrs), *(getattr(entry, key, None) for key in ("shape", "dtype", "maxshape")))}
            )
        )
    return entries


@pytest.mark.filterwarnings("ignore:.*is set to None:UserWarning")
def test_written_as_minari_writes(tmp_path, monkeypatch):
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    episodes = small()
    write_minari("test/here-v0", episodes, env_id="Hopper-v5", description="x", reference_returns=(1, 2))
    ended = [np.arange(len(episode)) == len(episode) - 1 for episode in episodes]
    buffers = [
        minari.data_collector.EpisodeBuffer(
            observations=np.concatenate([episode.observations, episode.observations[-1:]]),
            actions=episode.actions,
            rewards=episode.rewards,
            terminations=end & episode.terminated,
            truncations=end & (not episode.terminated),
        )
        for episode, end in zip(episodes, ended, strict=True)
    ]
    options = {"env": "Hopper-v5", "description": "x", "ref_min_score": 1.0, "ref_max_score": 2.0}
    minari.create_dataset_from_buffers("test/there-v0", buffers, num_episodes_average_score=1, **options)
    here, there = (tmp_path / "test" / name / "data" for name in ("here-v0", "there-v0"))
    assert tree(here / "main_data.hdf5") == tree(there / "main_data.hdf5")
    first, second = (json.loads((data / "metadata.json").read_text()) for data in (here, there))
    for values in (first, second):
        values["env_spec"] = json.loads(values["env_spec"])
        values["action_space"] = json.loads(values["action_space"])
    for key in ("dataset_id", "description", "observation_space", "num_episodes_average_score"):
        first.pop(key, None), second.pop(key)  # the observations written are float32
    assert first == second
    minari.load_dataset("test/here-v0").update_dataset_from_buffer(buffers[:1])
    assert read_minari("test/here-v0").episodes.lengths.tolist() == [4, 1, 7, 4]


FULL_DISK = """
import resource, signal, sys
from aaren_rl.envs.errors import ResourcesError
from aaren_rl.envs.data.minari.read import read_minari
from aaren_rl.envs.data.minari.write import write_minari
episodes = read_minari(sys.argv[1]).episodes
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
try:
    write_minari("test/new-v0", episodes, env_id="Hopper-v5")
except ResourcesError as error:
    print(error)
"""


@pytest.mark.faults(17)
def test_17_nothing_half_written_stays(data):
    done = subprocess.run([sys.executable, "-c", FULL_DISK, ID], capture_output=True, text=True, check=True)
    assert "new-v0: cannot be written (File too large); make room" in done.stdout and done.stderr == ""
    assert not [path for path in data.parents[2].rglob("*new-v0*")]


def test_writing_checks_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with pytest.raises(DataError, match="observations have 11 columns, those of HalfCheetah-v5"):
        write_minari(ID, small(), env_id="HalfCheetah-v5")
    with pytest.raises(UsageError, match="JSON"):
        write_minari(ID, small(), env_id="Hopper-v5", env_kwargs={"frame_skip": np.int64(4)})
    with pytest.raises(SimulationError, match="unexpected keyword argument 'x'"):
        write_minari(ID, small(), env_id="Hopper-v5", env_kwargs={"x": 1})
    with pytest.raises(UsageError, match="final_observations"):
        write_minari(ID, small(), env_id="Hopper-v5", final_observations=np.zeros((2, 11)))
    assert list(tmp_path.iterdir()) == []
