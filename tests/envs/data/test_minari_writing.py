"""Minari datasets that are written: Minari reads them, and nothing half written stays."""

import dataclasses
import re

import gymnasium as gym
import h5py
import minari_sets
import numpy as np
import pytest
from minari_sets import ID, small

from aaren_rl.base.errors import ResourcesError
from aaren_rl.envs import DataError, SimulationError, UsageError
from aaren_rl.envs.data.hdf5 import write_hdf5
from aaren_rl.envs.data.minari import read_minari, write_minari


@pytest.mark.faults
def test_written_datasets_are_read_by_minari_and_here(tmp_path, monkeypatch):
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    episodes, finals = small(), np.arange(33, dtype=np.float32).reshape(3, 11)
    kwargs, more = {"reset_noise_scale": 0.01}, {"description": "by hand", "reference_returns": (1, 2)}
    folder = write_minari(ID, episodes, env_id="Hopper-v5", env_kwargs=kwargs, final_observations=finals, **more)
    assert folder == tmp_path / ID and [*folder.parent.iterdir()] == [folder]
    read, spec = read_minari(ID)
    for name in ("observations", "actions", "rewards", "offsets", "terminated"):
        np.testing.assert_array_equal(getattr(read, name), getattr(episodes, name))
    assert (spec.recorded.env_kwargs, spec.reference_returns, read.env_id) == (kwargs, (1.0, 2.0), "Hopper-v5")
    assert read.notes == ("description: by hand",)
    dataset = minari.load_dataset(ID)
    assert (dataset.total_episodes, dataset.total_steps) == (3, 12)
    assert dataset.env_spec == gym.spec("Hopper-v5").__class__.from_json(dataset.env_spec.to_json())
    for stored, episode, final in zip(dataset, episodes, finals, strict=True):
        np.testing.assert_array_equal(stored.observations, [*episode.observations, final])
        np.testing.assert_array_equal(stored.actions, episode.actions)
        np.testing.assert_array_equal(stored.rewards, episode.rewards)
        assert stored.terminations[-1] == episode.terminated and stored.truncations[-1] != episode.terminated
        assert not stored.terminations[:-1].any() and not stored.truncations[:-1].any()


def test_a_repeated_last_observation_is_said_and_nothing_overwritten(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    path = write_minari(ID, small(), env_id=None, description="mine") / "data" / "main_data.hdf5"
    with h5py.File(path) as file:
        observations = file["episode_0/observations"][()]
    np.testing.assert_array_equal(observations[-1], observations[-2])
    episodes, before = read_minari(ID).episodes, path.read_bytes()
    assert re.fullmatch("description: the observation behind .* repeats the one before; mine", *episodes.notes)
    assert episodes.env_id is None
    with pytest.raises(UsageError, match="already exists"):
        write_minari(ID, small(), env_id=None)
    assert path.read_bytes() == before


def test_wrappers_that_an_environment_is_registered_with_are_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    episodes = small()
    episodes = dataclasses.replace(episodes, observations=episodes.observations[:, :5])
    write_minari(ID, episodes, env_id="aaren_rl/Hopper-P-v4")
    assert read_minari(ID).spec.env_id == "aaren_rl/Hopper-P-v4"
    with minari_sets.spec(tmp_path / ID / "data") as described:  # as a version with other modules wrote it
        described["additional_wrappers"][0]["entry_point"] = "aaren_rl.envs.memory.positions:Positions"
    assert read_minari(ID).spec.env_id == "aaren_rl/Hopper-P-v4"
    with minari_sets.spec(tmp_path / ID / "data") as described:  # other arguments make another task
        described["additional_wrappers"][0]["kwargs"] = {"count": 4}
    with pytest.raises(DataError, match="Positions"):
        read_minari(ID)


class Fine(gym.Env):
    """Its bound 0.1 is less than the float32 next to it."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (11,))
    action_space = gym.spaces.Box(-0.1, 0.1, (3,), np.float64)


def test_bounds_in_float64(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.setitem(gym.registry, "Fine-v0", gym.envs.registration.EnvSpec("Fine-v0", Fine))
    episodes = small()
    episodes.actions[:] = np.float32(0.1)
    write_minari(ID, episodes, env_id="Fine-v0")
    np.testing.assert_array_equal(read_minari(ID).episodes.actions, episodes.actions)


@pytest.mark.faults
def test_17_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, full_disk):
    """In Minari's layout and in D4RL's."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    old, episodes = tmp_path / "set.hdf5", small(lengths=(4000,))
    old.write_bytes(b"old")
    with full_disk():
        with pytest.raises(ResourcesError, match=r"random-v0: cannot be written \(File too large\); free disk space"):
            write_minari(ID, episodes, env_id="Hopper-v5")
        with pytest.raises(OSError):
            write_hdf5(old, episodes, {})
    assert old.read_bytes() == b"old" and [path for path in tmp_path.rglob("*") if path.is_file()] == [old]


def test_what_the_registry_passes_on_is_read_again(tmp_path, monkeypatch):
    """A file and a dict, which a dataset must not name, are the registered environment's own."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    own = {"xml_file": "hopper.xml", "default_camera_config": {"distance": 3.0}, "reset_noise_scale": 0.01}
    gym.register("OwnModel-v0", gym.spec("Hopper-v5").entry_point, kwargs=own)
    try:
        write_minari(ID, small(), env_id="OwnModel-v0", env_kwargs={"reset_noise_scale": 0.02})
        assert read_minari(ID).spec.recorded.env_kwargs == {"reset_noise_scale": 0.02}
        with minari_sets.spec(tmp_path / ID / "data") as described:
            described["kwargs"]["xml_file"] = "walker2d.xml"
        with pytest.raises(DataError, match="xml_file"):
            read_minari(ID)
    finally:
        del gym.registry["OwnModel-v0"]


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (DataError, "observations have 11 columns, those of HalfCheetah-v5", {"env_id": "HalfCheetah-v5"}),
        (UsageError, "JSON", {"env_kwargs": {"frame_skip": np.int64(4)}}),
        (DataError, "not written, .*: env_spec.kwargs has 'reset_noise", {"env_kwargs": {"reset_noise_scale": np.nan}}),
        (SimulationError, "unexpected keyword argument 'x'", {"env_kwargs": {"x": 1}}),
        (UsageError, "final_observations", {"final_observations": np.zeros((2, 11))}),
    ],
)
def test_writing_checks_the_environment(tmp_path, monkeypatch, error, message, options):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with pytest.raises(error, match=message):
        write_minari(ID, small(), **{"env_id": "Hopper-v5", **options})
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
