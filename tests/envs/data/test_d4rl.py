"""Files in D4RL's layout: what is read, what is written, and what is refused with one line that says why."""

import os

import h5py
import numpy as np
import pytest

from aaren_rl.envs import DataError, UsageError
from aaren_rl.envs.data.hdf5 import read_hdf5, write_hdf5

N = 60


def arrays(n=N, observation_dim=11, action_dim=3, **changes):
    """Episodes with both ends; None leaves an array out."""
    rng, steps = np.random.default_rng(0), np.arange(n)
    good = {
        "observations": rng.standard_normal((n, observation_dim)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (n, action_dim)).astype(np.float32),
        "rewards": rng.standard_normal(n).astype(np.float32),
        "terminals": steps % 20 == 14,
        "timeouts": steps % 10 == 9,
    }
    return {key: value for key, value in (good | changes).items() if value is not None}


@pytest.fixture
def save(tmp_path):
    def save(data, change=lambda file: None, **options):
        path = tmp_path / "set.hdf5"
        with h5py.File(path, "w") as file:
            for key, value in data.items():
                file.create_dataset(key, data=value, **options)
            change(file)
        return path

    return save


def refused(path, *parts, **kwargs):
    """Reading it ends in one line with these parts and a way out."""
    with pytest.raises(DataError) as caught:
        read_hdf5(path, **kwargs)
    message = str(caught.value)
    assert caught.value.exit_code == 3 and "\n" not in message
    assert message.startswith(str(path)) and "; " in message
    for part in parts:
        assert part in message


def test_a_good_file(save):
    data, attributes = arrays(), {"env_id": "Hopper-v4", "origin": "made\nby \x1b[31mme"}
    data["terminals"][9] = True  # and a timeout
    path = save(data, lambda file: file.attrs.update(attributes), compression="gzip")
    episodes = read_hdf5(path, dataset="hopper-medium", observation_dim=11, action_dim=3)
    assert episodes.lengths.tolist() == [10, 5, 5, 10, 5, 5, 10, 5, 5]
    assert episodes.terminated.tolist() == [True, True, False] + [False, True, False] * 2
    for key in ("observations", "actions", "rewards"):
        np.testing.assert_array_equal(getattr(episodes, key), data[key])
    assert (episodes.dataset, episodes.source, episodes.path) == ("hopper-medium", "file", str(path))
    # One line, without control characters.
    assert (episodes.env_id, episodes.notes) == ("Hopper-v4", ("origin: made by [31mme",))


@pytest.mark.faults
def test_1_missing_file(tmp_path):
    refused(tmp_path / "none.hdf5", "does not exist")
    refused(tmp_path, "is not a file")


def spoiled(key, index, value):
    """An array with other values."""
    array = arrays()[key].astype(np.float32)
    array[index] = value
    return {key: array}


@pytest.mark.faults
@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"rewards": None, "points": np.zeros(N)}, ["missing rewards", "found: ", "'points'"]),
        (spoiled("rewards", [7, 20], np.nan), [":rewards", "2 values", "NaN", "step 7;"]),
        (spoiled("observations", (5, 3), -np.inf), [":observations", "1 values", "infinite", "step 5, column 3"]),
        *(({key: arrays()[key][:-1]}, [f":{key}", "59", "60"]) for key in ("observations", "actions", "terminals")),
        ({"observations": np.zeros(N, int)}, [":observations", "integers", "one-hot"]),
        ({"rewards": np.zeros((N, 2))}, [":rewards", "(60, 2)"]),
        ({"observations": np.zeros((N, 0))}, [":observations", "(60, 0)"]),
        (arrays(n=0), ["(0,", "at least one step"]),
        ({"rewards": np.full(N, 1e39)}, [":rewards", "beyond float32", "step 0"]),
        ({"rewards": np.zeros(N, complex)}, [":rewards", "complex"]),
        ({"rewards": [b"1"] * N}, [":rewards", "not real numbers"]),
        *((spoiled("terminals", 3, value), [":terminals", "0 and 1"]) for value in (7, np.nan)),
    ],
)
def test_what_is_refused(save, changes, parts):
    refused(save(arrays(**changes)), *parts)


@pytest.mark.faults
def test_3_truncated_empty_and_foreign(save, tmp_path):
    path = save(arrays(n=5000))
    os.truncate(path, path.stat().st_size // 2)
    refused(path, "truncated", "get the file again")
    path.write_bytes(b"")
    refused(path, "0 bytes")
    path.write_bytes(b"<html>404 Not Found</html>" * 100)
    refused(path, "not a readable HDF5 file")


@pytest.mark.faults
@pytest.mark.parametrize("ends", [None, np.zeros(N, bool)])
def test_10_no_ends(save, ends):
    path = save(arrays(terminals=ends, timeouts=ends))
    refused(path, "terminals", "timeouts", "--max-episode-steps")
    episodes = read_hdf5(path, max_episode_steps=25)
    assert episodes.lengths.tolist() == [25, 25] and not episodes.terminated.any()
    cut = "ended 2 episodes after 25 steps, where the file has no end"
    assert episodes.notes == (cut, "dropped 10 steps of an unfinished last episode")
    assert read_hdf5(path, max_episode_steps=20).lengths.tolist() == [20, 20, 20]
    with pytest.raises(UsageError):
        read_hdf5(path, max_episode_steps=0)
    episodes = read_hdf5(save(arrays(timeouts=ends)), max_episode_steps=10)
    assert episodes.lengths.tolist() == [10, 5, 10, 10, 10, 10]
    assert episodes.terminated.tolist() == [False, True, False, True, False, True]


@pytest.mark.faults
def test_11_actions_out_of_range(save):
    data = arrays()
    data["actions"][[3, 4], [0, 1]] = 1.5, -2.0
    path = save(data)
    refused(path, ":actions", "[-2, 1.5]", "--clip-actions")
    episodes = read_hdf5(path, clip_actions=True)
    np.testing.assert_array_equal(episodes.actions, np.clip(data["actions"], -1, 1))
    assert episodes.notes == ("clipped actions from [-2, 1.5] to [-1, 1]",)


@pytest.mark.faults
@pytest.mark.parametrize("dtype", [np.float64, np.float16, ">f4"])
def test_12_other_float_types_and_9_one_step_episodes(save, dtype):
    data = arrays(terminals=np.ones(N, bool))
    data["observations"] = data["observations"].astype(dtype)
    episodes = read_hdf5(save(data))
    assert episodes.observations.dtype == np.float32
    np.testing.assert_array_equal(episodes.observations, data["observations"].astype(np.float32))
    assert len(episodes) == N and episodes.terminated.all()
    assert np.isfinite(episodes.observation_statistics()).all()
    np.testing.assert_array_equal(episodes.returns_to_go(), data["rewards"])


@pytest.mark.faults
def test_13_other_sizes(save):
    """But for D4RL Ant's contact forces, which are left out."""
    observations = arrays(observation_dim=111)["observations"]
    observations[:, 27:] = 0.0
    path = save(arrays(observations=observations))
    refused(path, ":observations", "111", "11", observation_dim=11)
    refused(path, ":actions", "3", "6", action_dim=6)
    episodes = read_hdf5(path, observation_dim=27)
    np.testing.assert_array_equal(episodes.observations, observations[:, :27])
    assert episodes.notes == ("dropped 84 all-zero observation columns (contact forces)",)
    observations[30, 27] = 1e-6
    refused(save(arrays(observations=observations)), ":observations", "111", "27", observation_dim=27)


def virtual(file):
    layout = h5py.VirtualLayout(shape=(N,), dtype=np.float32)
    layout[:] = h5py.VirtualSource("other.hdf5", "rewards", shape=(N,))
    file.create_virtual_dataset("rewards", layout)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("kind", "link"),
    [
        ("is a group", lambda file: file.create_group("rewards")),
        ("soft link", lambda file: file.__setitem__("rewards", h5py.SoftLink("/actions"))),
        ("external link", lambda file: file.__setitem__("rewards", h5py.ExternalLink("/etc/passwd", "/rewards"))),
        ("virtual", virtual),
        (
            "external storage",
            lambda file: file.create_dataset("rewards", (N,), "f4", external=[("other", 0, h5py.h5f.UNLIMITED)]),
        ),
    ],
)
def test_37_links(save, kind, link):
    path = save(arrays(rewards=None), link)
    refused(path, ":rewards", kind)


def test_write_and_read_again(save, tmp_path):
    episodes = read_hdf5(save(arrays()))
    path = tmp_path / "again.hdf5"
    write_hdf5(path, episodes, {"env_id": "Hopper-v4", "seed": 3})
    again = read_hdf5(path)
    for key in ("observations", "actions", "rewards", "offsets", "terminated"):
        np.testing.assert_array_equal(getattr(again, key), getattr(episodes, key))
    with h5py.File(path) as file:
        assert file["terminals"].dtype == file["timeouts"].dtype == bool
        assert file["terminals"][:].sum() == 3 and file["timeouts"][:].sum() == 6
        assert file["observations"].compression == "gzip" and again.env_id == "Hopper-v4" and file.attrs["seed"] == 3
