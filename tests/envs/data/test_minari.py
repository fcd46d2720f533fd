"""Minari datasets: what is read is what was recorded; what is damaged, or names foreign code, is refused."""

import json
import re
import shutil
import sys
from types import SimpleNamespace

import gymnasium as gym
import h5py
import minari_sets as sets
import numpy as np
import pytest
from checks import replayed, same
from gymnasium.envs.mujoco.inverted_pendulum_v5 import InvertedPendulumEnv
from gymnasium.envs.registration import EnvSpec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from minari_sets import ID, refused, small

from aaren_rl.base.errors import ResourcesError
from aaren_rl.envs import AarenRLError, DataError, SimulationError, UsageError, load_task, make_env
from aaren_rl.envs.data.files import write_hdf5
from aaren_rl.envs.data.minari import read_minari, read_spec, write_minari
from aaren_rl.envs.tasks.table import is_plain_argument


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """Where datasets are written; the fixture `data` has another."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


@pytest.mark.faults
@pytest.mark.parametrize("name", ["../x-v0", "/tmp/x-v0", "a:b-v0", "x.y", "a//b-v0", "x-v0\n", "a/-v0/..", "x" * 999])
def test_ids_that_are_none_touch_nothing(name, tmp_path):
    for call in (lambda: read_minari(name), lambda: write_minari(name, small(), env_id=None)):
        with pytest.raises(UsageError, match=r"is not a Minari id.{,100}$"):
            call()
    with pytest.raises(UsageError, match="has no version; write x-v0"):
        write_minari("x", small(), env_id=None)
    assert list(tmp_path.iterdir()) == []


def test_observations_actions_and_rewards_line_up(data):
    """The stored actions, played from the stored seeds, give the rows that were read."""
    episodes, spec = read_minari(ID)
    with h5py.File(data / "main_data.hdf5") as file:
        seeds = [int(file[f"episode_{e}"].attrs["seed"]) for e in range(4)]
    env = make_env("Hopper-v5", **spec.recorded.env_kwargs)
    for seed, episode in zip(seeds, episodes, strict=True):
        replayed(env, episode, seed)
    env.close()
    assert episodes.terminated.tolist() == [True, True, True, False] and episodes.lengths[3] == 5
    assert (episodes.source, episodes.dataset, episodes.env_id) == ("minari", ID, "Hopper-v5")
    assert episodes.path == str(data / "main_data.hdf5") and episodes.notes == ("algorithm_name: random",)
    assert (spec.recorded.env_kwargs, spec.recorded.max_episode_steps) == ({}, 1000)
    assert spec.reference[1:] == (-20.0, 3000.0)
    assert spec.acted == {"action_dim": 3, "action_low": (-1.0,) * 3, "action_high": (1.0,) * 3}


@pytest.mark.faults
def test_what_is_refused(data):
    """The rules are those of all files; the metadata add the bounds of actions."""
    with sets.episode(data) as group:
        group["actions"][2, 1] = 1.5
    refused("1.5]", "[-1, 1]", "--clip-actions")
    with sets.episode(data) as group:
        group["truncations"][3] = True
    refused("episode_1: ", "step 3", "split")
    with sets.episode(data) as group:
        group["observations"].resize(len(group["observations"]) + 1, axis=0)
    refused("episode_1/observations", "rewards")


def described(key, **space):
    return {f"{key}_space": json.dumps(space)}


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"total_steps": 3}, "metadata.json counts 3"),
        ({"data_format": "arrow"}, "data_format is 'arrow'; only hdf5"),
        (described("observation", type="Box", shape=[2], low=[-1, -1], high=[1, 1]), "observations has 11 columns"),
        (described("action", type="Dict", subspaces={}), "action_space is 'Dict'"),
        (described("observation", type="Box", shape=[64, 64, 3], dtype="uint8"), "are images (uint8 of"),
        (described("observation", type="Box", shape=[3, 2]), "its space is of (26, 3, 2), flat of (26, 6)"),
        (described("action", type="MultiDiscrete", nvec=[2, 2]), "numpy.ravel_multi_index(actions.T, nvec)"),
        (described("action", type="Box", shape=[1], low=[2], high=[1]), "no bounds"),
    ],
)
def test_metadata_that_do_not_fit(data, changes, shown):
    with sets.metadata(data) as values:
        values.update(changes)
    refused(shown)


def test_what_minari_says_itself_is_not_asked_for(data):
    with sets.metadata(data) as values:
        values["total_episodes"] = 9
    assert read_minari(ID).episodes.notes[-1] == "has 4 episodes, metadata.json counts 9"
    for options, said in (({"columns": "actions=a"}, "--columns"), ({"env_kwargs": {"x": 1}}, "unexpected")):
        with pytest.raises(AarenRLError, match=said):
            load_task("mine", f"minari:{ID}", **options)
    with sets.metadata(data) as values:
        del values["env_spec"]
    with pytest.raises(UsageError, match=r"--max-episode-steps: episodes of .* stay as recorded"):
        load_task("mine", f"minari:{ID}", max_episode_steps=5)


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


def test_metadata_that_are_no_json(tmp_path):
    path = tmp_path / "metadata.json"
    for text in ("", "[1]", "[" * 100_000, '{"env_spec": "{"}', '{"env_spec": 3}'):
        path.write_text(text)
        with pytest.raises(DataError, match=r"metadata\.json: cannot be used .*; get the dataset again"):
            read_spec(path)


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module that must not be imported."""
    (tmp_path / "evil_module.py").write_text("Env = Wrapper = object\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    assert "evil_module" not in sys.modules


@pytest.mark.faults
def test_a_foreign_entry_point_is_not_imported(data, evil):
    with sets.metadata(data) as values:  # without them minari makes the environment to ask it for them
        del values["observation_space"], values["action_space"]
    for env_id in ("Unknown-v0", "evil_module:Hopper-v5", ["Hopper-v5"]):
        with sets.spec(data) as spec:
            spec.update(id=env_id, entry_point="evil_module:Env")
        refused("metadata.json:env_spec", "evil_module:Env", "not imported")


@pytest.mark.faults
def test_wrappers_and_the_environment_to_evaluate_in(data, evil):
    for name, module in (("Evil", "evil_module"), ("NormalizeObservation", "gymnasium.wrappers")):
        with sets.spec(data) as spec:
            spec["additional_wrappers"] = [{"name": name, "entry_point": f"{module}:Wrapper", "kwargs": {}}]
        refused("metadata.json:env_spec", name, "not imported", "--env-id")
    read_minari(ID)
    with sets.spec(data) as spec:
        spec["additional_wrappers"] = [
            {"name": "RecordEpisodeStatistics", "entry_point": "x:y", "kwargs": {}},
            {"name": "TimeLimit", "entry_point": "x:y", "kwargs": {"max_episode_steps": 77}},
        ]
    with sets.spec(data, "eval_env_spec") as spec:
        spec["entry_point"] = "evil_module:Env"
    episodes, read = read_minari(ID)
    assert "left out wrappers that only watch: RecordEpisodeStatistics" in episodes.notes
    assert read.recorded.max_episode_steps == 77 and "evil_module" in read.evaluated.notes[-1]


@pytest.mark.faults
def test_arguments_that_name_files_or_modules():
    odd = ("../x", "evil_module:Env", ["a", ["/etc/passwd"]], "model.xml", float("inf"))
    assert [value for value in ("value", [1, 0.5, None, ["a"]], *odd) if not is_plain_argument("x", value)] == [*odd]
    assert not any(is_plain_argument(key, "value") for key in ("xml_file", "env_id", "not a name"))


def test_plain_arguments_are_returned(data):
    kwargs = {"healthy_z_range": [0.7, 5.0], "terminate_when_unhealthy": False, "reset_noise_scale": 0.01}
    with sets.spec(data) as spec:
        spec["kwargs"] = {**kwargs, "render_mode": "human"}
    episodes, read = read_minari(ID)
    assert read.recorded.env_kwargs == kwargs and "left out the environment's render_mode" in episodes.notes
    make_env("Hopper-v5", **kwargs).close()
    with sets.spec(data) as spec:
        spec["kwargs"] = {"xml_file": "x"}
    refused("metadata.json:env_spec.kwargs", "xml_file")


def test_only_the_wrappers_that_the_registry_adds_are_its_own(tmp_path, evil):
    """Another in the place of a registered one changed what was recorded."""
    write_minari(ID, small(observation_dim=5), env_id="aaren_rl/Hopper-P-v4")
    assert load_task("mine", f"minari:{ID}")[0].env_id == "aaren_rl/Hopper-P-v4"
    with sets.spec(tmp_path / ID / "data") as spec:
        spec["additional_wrappers"] = [{"name": "Evil", "entry_point": "evil_module:Wrapper", "kwargs": {}}]
    refused("Evil", "not imported", "--env-id")


def test_an_environment_of_your_own(tmp_path, monkeypatch):
    with monkeypatch.context() as registered:  # a class, which JSON cannot hold
        registered.setitem(gym.registry, "Mine-v0", EnvSpec("Mine-v0", InvertedPendulumEnv, max_episode_steps=9))
        write_minari(ID, small(observation_dim=4, action_dim=1), env_id="Mine-v0")
        episodes, spec = read_minari(ID)
    assert (episodes.env_id, spec.recorded.max_episode_steps, spec.acted["action_high"]) == ("Mine-v0", 9, (3.0,))
    refused("Mine-v0", "inverted_pendulum_v5:InvertedPendulumEnv", "not imported", "--register")


def test_written_datasets_are_read_by_minari_and_here(tmp_path):
    import minari

    episodes, kwargs = small(), {"reset_noise_scale": 0.01}
    more = {"description": "by hand", "reference_returns": (1, 2)}
    folder = write_minari(ID, episodes, env_id="Hopper-v5", env_kwargs=kwargs, **more)
    assert folder == tmp_path / ID and [*folder.parent.iterdir()] == [folder]
    read, spec = read_minari(ID)
    same(read, episodes)
    assert (spec.recorded.env_kwargs, spec.reference[1:], read.env_id) == (kwargs, (1.0, 2.0), "Hopper-v5")
    assert re.fullmatch("description: the observation behind .* repeats the one before; by hand", *read.notes)
    dataset = minari.load_dataset(ID)
    assert (dataset.total_episodes, dataset.total_steps) == (3, 12)
    assert dataset.env_spec == gym.spec("Hopper-v5").__class__.from_json(dataset.env_spec.to_json())
    for stored, episode in zip(dataset, episodes, strict=True):
        np.testing.assert_array_equal(stored.observations, [*episode.observations, episode.observations[-1]])
        np.testing.assert_array_equal(stored.actions, episode.actions)
        np.testing.assert_array_equal(stored.rewards, episode.rewards)
        assert stored.terminations[-1] == episode.terminated and stored.truncations[-1] != episode.terminated
        assert not stored.terminations[:-1].any() and not stored.truncations[:-1].any()


def test_nothing_is_overwritten():
    path = write_minari(ID, small(), env_id=None) / "data" / "main_data.hdf5"
    before = path.read_bytes()
    assert read_minari(ID).episodes.env_id is None
    with pytest.raises(UsageError, match="already exists"):
        write_minari(ID, small(), env_id=None)
    assert path.read_bytes() == before


@pytest.mark.faults
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, full_disk):
    old = tmp_path / "set.hdf5"
    old.write_bytes(b"old")
    with full_disk(), pytest.raises(OSError):
        write_hdf5(old, small(lengths=(4000,)), {})
    assert old.read_bytes() == b"old" and [*tmp_path.iterdir()] == [old]


def test_a_disk_without_room_is_told_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=9))
    with pytest.raises(ResourcesError, match="free disk space"):
        write_minari("mine/set-v0", small(), env_id=None)
    assert not any(tmp_path.rglob("*.hdf5"))


def test_what_the_registry_passes_on_is_read_again(tmp_path, monkeypatch):
    """A file and a dict, which a dataset must not name, are the registered environment's own."""
    own = {"xml_file": "hopper.xml", "default_camera_config": {"distance": 3.0}, "reset_noise_scale": 0.01}
    registered = EnvSpec("OwnModel-v0", gym.spec("Hopper-v5").entry_point, kwargs=own)
    monkeypatch.setitem(gym.registry, "OwnModel-v0", registered)
    write_minari(ID, small(), env_id="OwnModel-v0", env_kwargs={"reset_noise_scale": 0.02})
    assert read_minari(ID).spec.recorded.env_kwargs == {"reset_noise_scale": 0.02}
    with sets.spec(tmp_path / ID / "data") as described:
        described["kwargs"]["xml_file"] = "walker2d.xml"
    refused("xml_file")


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (DataError, "observations has 11 columns, the environment has 17", {"env_id": "HalfCheetah-v5"}),
        (UsageError, "JSON", {"env_kwargs": {"frame_skip": np.int64(4)}}),
        (DataError, "not written: .*env_spec.kwargs has .*reset_noise", {"env_kwargs": {"reset_noise_scale": np.nan}}),
        (SimulationError, "unexpected keyword argument 'x'", {"env_kwargs": {"x": 1}}),
    ],
)
def test_writing_checks_the_environment(tmp_path, error, message, options):
    with pytest.raises(error, match=message):
        write_minari(ID, small(), **{"env_id": "Hopper-v5", **options})
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
