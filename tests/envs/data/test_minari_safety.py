"""Minari datasets from elsewhere: nothing that one names is opened, unpacked without bounds or imported."""

import sys

import gymnasium as gym
import h5py
import minari_sets as sets
import numpy as np
import pytest
from gymnasium.envs.mujoco.inverted_pendulum_v5 import InvertedPendulumEnv
from minari_sets import ID, refused, small

from aaren_rl.envs import make_env
from aaren_rl.envs.data.minari.read import read_minari
from aaren_rl.envs.data.minari.write import write_minari
from aaren_rl.envs.tasks.environment import is_plain_argument


@pytest.mark.faults(37)
@pytest.mark.parametrize(
    ("part", "kind", "link"),
    [("", "soft link", h5py.SoftLink("/episode_0")), ("/rewards", "external link", h5py.ExternalLink("x.hdf5", "/x"))],
)
def test_37_links(data, part, kind, link):
    with sets.episode(data) as group:
        file, name = group.file, f"episode_1{part}"
        del file[name]
        file[name] = link
    refused(name, kind)


@pytest.mark.faults(38)
@pytest.mark.parametrize(("steps", "chunk", "claimed"), [(None, 10**8, "claims 1,20"), (10**11, 10**6, "claims 6,8")])
def test_38_bombs(data, steps, chunk, claimed):
    """A chunk that is larger than its array, and arrays of more steps than the file can hold."""
    with sets.episode(data) as group:
        for key in ["actions"] if steps is None else group.keys() - {"infos"}:
            shape = group[key].shape if steps is None else (steps + (key == "observations"), *group[key].shape[1:])
            options = {"maxshape": (None, *shape[1:]), "chunks": (chunk, *shape[1:]), "compression": "gzip"}
            del group[key]
            group.create_dataset(key, shape, np.float32, **options)
    refused(claimed, "in a file of")


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module that must not be imported."""
    (tmp_path / "evil_module.py").write_text("Env = Wrapper = object\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    assert "evil_module" not in sys.modules


@pytest.mark.faults(41)
@pytest.mark.parametrize(
    ("env_id", "entry"),
    [
        ("Hopper-v5", "evil_module:Env"),
        ("Hopper-v5", "os:system"),
        ("evil_module:Hopper-v5", "evil_module:Env"),
        ("Hopper-v5", None),
        (["Hopper-v5"], "gymnasium.envs.mujoco.hopper_v5:HopperEnv"),
    ],
)
def test_41_a_foreign_entry_point_is_not_imported(data, evil, env_id, entry):
    with sets.spec(data) as spec:
        spec.update(id=env_id, entry_point=entry)
    with sets.metadata(data) as values:  # without them minari makes the environment to ask it for them
        del values["observation_space"], values["action_space"]
    refused("metadata.json:env_spec", entry if isinstance(env_id, str) and entry else "", "not imported")


@pytest.mark.faults(41)
def test_41_wrappers_and_the_environment_to_evaluate_in(data, evil):
    with sets.spec(data) as spec:
        spec["additional_wrappers"] = [{"name": "Evil", "entry_point": "evil_module:Wrapper", "kwargs": {}}]
    refused("metadata.json:env_spec", "wrappers", "Evil", "not imported")
    with sets.spec(data) as spec:
        spec["additional_wrappers"] = [{"name": "RecordEpisodeStatistics", "entry_point": "x:y", "kwargs": {}}]
    with sets.spec(data, "eval_env_spec") as spec:
        spec["entry_point"] = "evil_module:Env"
    assert "left out wrappers that only watch: RecordEpisodeStatistics" in read_minari(ID).episodes.notes


@pytest.mark.faults(41)
def test_41_arguments_that_name_files_or_modules():
    assert is_plain_argument("x", "value") and is_plain_argument("x", [1, 0.5, None, ["a"]])
    for key in ("xml_file", "env_id", "not a name"):
        assert not is_plain_argument(key, "value"), key
    for value in ("../x", "evil_module:Env", ["a", ["/etc/passwd"]], "model.xml", float("inf")):
        assert not is_plain_argument("x", value), value


def test_41_plain_arguments_are_returned(data):
    kwargs = {"healthy_z_range": [0.7, 5.0], "terminate_when_unhealthy": False, "reset_noise_scale": 0.01}
    with sets.spec(data) as spec:
        spec["kwargs"] = {**kwargs, "render_mode": "human"}
    episodes, read = read_minari(ID)
    assert read.env_kwargs == kwargs and "left out the environment's render_mode" in episodes.notes
    make_env("Hopper-v5", **kwargs).close()
    for wrong in ({"xml_file": "x"}, [1]):
        with sets.spec(data) as spec:
            spec["kwargs"] = wrong
        refused("metadata.json:env_spec.kwargs", "xml_file" if wrong == {"xml_file": "x"} else "")


def test_an_environment_of_your_own(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    gym.register("Mine-v0", InvertedPendulumEnv, max_episode_steps=9)  # a class, which JSON cannot hold
    try:
        write_minari(ID, small(observation_dim=4, action_dim=1), env_id="Mine-v0")
        episodes, spec = read_minari(ID)
    finally:
        del gym.registry["Mine-v0"]
    assert (episodes.env_id, spec.max_episode_steps, spec.action_high) == ("Mine-v0", 9, (3.0,))
    refused("Mine-v0", "inverted_pendulum_v5:InvertedPendulumEnv", "not imported", "--register")
