"""Minari datasets that are written: Minari reads them, and nothing half written stays."""

import re

import gymnasium as gym
import h5py
import minari_sets
import numpy as np
import pytest
from minari_sets import ID, small

from aaren_rl.envs import DataError, SimulationError, UsageError, load_task
from aaren_rl.envs.data.files import write_hdf5
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
    assert (spec.recorded.env_kwargs, spec.reference[1:], read.env_id) == (kwargs, (1.0, 2.0), "Hopper-v5")
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


@pytest.mark.faults
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, full_disk):
    old = tmp_path / "set.hdf5"
    old.write_bytes(b"old")
    with full_disk(), pytest.raises(OSError):
        write_hdf5(old, small(lengths=(4000,)), {})
    assert old.read_bytes() == b"old" and [*tmp_path.iterdir()] == [old]


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
            load_task("mine", f"minari:{ID}")
    finally:
        del gym.registry["OwnModel-v0"]


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (DataError, "observations has 11 columns, the environment has 17", {"env_id": "HalfCheetah-v5"}),
        (UsageError, "JSON", {"env_kwargs": {"frame_skip": np.int64(4)}}),
        (DataError, "not written: .*env_spec.kwargs has .*reset_noise", {"env_kwargs": {"reset_noise_scale": np.nan}}),
        (SimulationError, "unexpected keyword argument 'x'", {"env_kwargs": {"x": 1}}),
        (UsageError, "final_observations", {"final_observations": np.zeros((2, 11))}),
    ],
)
def test_writing_checks_the_environment(tmp_path, monkeypatch, error, message, options):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with pytest.raises(error, match=message):
        write_minari(ID, small(), **{"env_id": "Hopper-v5", **options})
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
