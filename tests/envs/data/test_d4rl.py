import os
import resource
import stat

import h5py
import numpy as np
import pytest

from aaren_rl.envs import DataError, Episodes, UsageError
from aaren_rl.envs.data.hdf5.d4rl import read_hdf5, write_hdf5

N = 60


def arrays(n=N, observation_dim=11, action_dim=3):
    rng = np.random.default_rng(0)
    timeouts = np.zeros(n, dtype=bool)
    timeouts[9::10] = True
    terminals = np.zeros(n, dtype=bool)
    terminals[14::20] = True
    return {
        "observations": rng.standard_normal((n, observation_dim)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (n, action_dim)).astype(np.float32),
        "rewards": rng.standard_normal(n).astype(np.float32),
        "terminals": terminals,
        "timeouts": timeouts,
    }


@pytest.fixture
def save(tmp_path):
    def save(data, name="set.hdf5", **options):
        path = tmp_path / name
        with h5py.File(path, "w") as file:
            for key, value in data.items():
                file.create_dataset(key, data=value, **options)
        return path

    return save


def refused(path, *parts, **kwargs):
    """The DataError's message, after the checks that hold for each of them."""
    with pytest.raises(DataError) as caught:
        read_hdf5(path, **kwargs)
    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert "\n" not in message
    assert message.startswith(str(path))
    assert "; " in message, "no way out"
    for part in parts:
        assert part in message
    return message


def test_a_good_file(save):
    data = arrays()
    episodes = read_hdf5(save(data, compression="gzip"), dataset="hopper-medium", observation_dim=11, action_dim=3)
    assert episodes.lengths.tolist() == [10, 5, 5, 10, 5, 5, 10, 5, 5]
    assert episodes.terminated.tolist() == [False, True, False] * 3
    for key in ("observations", "actions", "rewards"):
        np.testing.assert_array_equal(getattr(episodes, key), data[key])
    assert (episodes.dataset, episodes.source, episodes.env_id, episodes.notes) == ("hopper-medium", "file", None, ())
    assert episodes.path.endswith("set.hdf5")


def test_an_unfinished_last_episode_is_left_out_and_said(save):
    data = arrays()
    data["timeouts"][-1] = False
    episodes = read_hdf5(save(data))
    assert episodes.n_steps == 55
    assert episodes.notes == ("dropped 5 steps of an unfinished last episode",)


def test_a_terminal_that_is_a_timeout_too_terminates(save):
    data = arrays()
    data["terminals"][9] = True
    assert read_hdf5(save(data))[0].terminated


@pytest.mark.faults(1)
def test_1_missing_file(tmp_path):
    refused(tmp_path / "none.hdf5", "does not exist")
    refused(tmp_path, "is not a file")


def spoiled(key, index, value):
    """A change of the arrays: one value of one of them."""

    def spoil(data):
        data[key] = data[key].astype(np.result_type(data[key], np.float32))
        data[key][index] = value

    return spoil


def without(key):
    return lambda data: data.update(reward=data.pop(key))


def shorter(key):
    return lambda data: data.update({key: data[key][:-1]})


def shaped(key, *shape, dtype=np.float32):
    return lambda data: data.update({key: np.zeros(shape, dtype)})


@pytest.mark.faults(2, 5, 6, 7, 8, 12)
@pytest.mark.parametrize(
    ("spoil", "parts"),
    [
        *((without(key), [f"missing {key}", "found: ", "reward"]) for key in ("observations", "rewards")),
        (spoiled("rewards", [7, 20], np.nan), [":rewards", "2 values", "NaN", "step 7;"]),
        (spoiled("observations", (5, 3), -np.inf), [":observations", "1 values", "infinite", "step 5, column 3"]),
        (spoiled("actions", (5, 1), np.nan), [":actions", "step 5, column 1"]),
        *((shorter(key), [f":{key}", "59", "60"]) for key in ("observations", "actions", "terminals")),
        (shaped("observations", N), [":observations", "(60,)"]),
        (shaped("actions", N, 3, 1), [":actions", "(60, 3, 1)"]),
        (shaped("rewards", N, 1), [":rewards", "(60, 1)"]),
        (shaped("observations", N, 0), [":observations", "(60, 0)"]),
        (lambda data: data.update(rewards=np.full(N, 1e39)), [":rewards", "beyond float32", "step 0"]),
        (shaped("rewards", N, dtype=complex), [":rewards", "complex"]),
        (lambda data: data.update(rewards=[b"1"] * N), [":rewards", "not real numbers"]),
        *((spoiled("terminals", 3, value), [":terminals", "0 and 1"]) for value in (7, -1, np.nan)),
    ],
)
def test_what_is_refused(save, spoil, parts):
    data = arrays()
    spoil(data)
    refused(save(data), *parts)


@pytest.mark.faults(2)
def test_2_a_group_where_a_dataset_belongs(save):
    path = save({k: v for k, v in arrays().items() if k != "rewards"})
    with h5py.File(path, "a") as file:
        file.create_group("rewards")
    refused(path, ":rewards", "group")


@pytest.mark.faults(3)
def test_3_truncated(save):
    path = save(arrays(n=5000))
    os.truncate(path, path.stat().st_size // 2)
    refused(path, "truncated", "get the file again")


@pytest.mark.faults(3)
def test_3_empty_and_foreign(tmp_path):
    path = tmp_path / "set.hdf5"
    path.write_bytes(b"")
    refused(path, "0 bytes")
    path.write_bytes(b"<html>404 Not Found</html>" * 100)
    refused(path, "not a readable HDF5 file")


@pytest.mark.faults(4)
def test_4_a_flipped_byte_in_compressed_data(save):
    path = save(arrays(n=5000), compression="gzip")
    with h5py.File(path) as file:
        chunk = file["rewards"].id.get_chunk_info(0)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset + chunk.size // 2] ^= 0xFF
    path.write_bytes(content)
    refused(path, "not a readable HDF5 file")


@pytest.mark.faults(8)
def test_8_no_steps(save):
    refused(save(arrays(n=0)), "no steps")


@pytest.mark.faults(9)
def test_9_one_step_episodes_work(save):
    data = arrays()
    data["terminals"][:] = True
    episodes = read_hdf5(save(data))
    assert len(episodes) == N and episodes.terminated.all()
    assert np.isfinite(episodes.observation_statistics()).all()
    np.testing.assert_array_equal(episodes.returns_to_go(), data["rewards"])


@pytest.mark.faults(10)
@pytest.mark.parametrize("absent", [True, False])
def test_10_no_ends(save, absent):
    data = arrays()
    for key in ("terminals", "timeouts"):
        data[key][:] = False
        if absent:
            del data[key]
    path = save(data)
    refused(path, "terminals", "timeouts", "--max-episode-steps")
    refused(path, "--max-episode-steps", "61 steps", max_episode_steps=61)
    episodes = read_hdf5(path, max_episode_steps=25)
    assert episodes.lengths.tolist() == [25, 25]
    assert not episodes.terminated.any()
    assert episodes.notes == ("dropped 10 steps of an unfinished last episode",)
    assert read_hdf5(path, max_episode_steps=20).lengths.tolist() == [20, 20, 20]


def test_10_max_episode_steps_cuts_beside_the_terminals(save):
    data = arrays()
    del data["timeouts"]
    path = save(data)
    assert read_hdf5(path).lengths.tolist() == [15, 20, 20]
    episodes = read_hdf5(path, max_episode_steps=10)
    assert episodes.lengths.tolist() == [10, 5, 10, 10, 10, 10]
    assert episodes.terminated.tolist() == [False, True, False, True, False, True]
    with pytest.raises(UsageError):
        read_hdf5(path, max_episode_steps=0)


@pytest.mark.faults(11)
def test_11_actions_out_of_range(save):
    data = arrays()
    data["actions"][3, 0] = 1.5
    data["actions"][4, 1] = -2.0
    path = save(data)
    refused(path, ":actions", "[-2, 1.5]", "--clip-actions")
    episodes = read_hdf5(path, clip_actions=True)
    assert episodes.actions[3, 0] == 1.0 and episodes.actions[4, 1] == -1.0
    np.testing.assert_array_equal(episodes.actions[5:], data["actions"][5:])
    assert episodes.notes == ("clipped actions from [-2, 1.5] to [-1, 1]",)


@pytest.mark.faults(12)
@pytest.mark.parametrize("dtype", [np.float64, np.float16, ">f4"])
def test_12_other_float_types_become_float32(save, dtype):
    data = arrays()
    data["observations"] = data["observations"].astype(dtype)
    episodes = read_hdf5(save(data))
    assert episodes.observations.dtype == np.float32
    np.testing.assert_array_equal(episodes.observations, data["observations"].astype(np.float32))


@pytest.mark.faults(13)
def test_13_other_sizes(save):
    path = save(arrays(observation_dim=12))
    refused(path, ":observations", "12", "11", observation_dim=11)
    refused(path, ":actions", "3", "6", action_dim=6)


def test_13_ant_contact_forces_are_left_out(save):
    data = arrays(observation_dim=111)
    data["observations"][:, 27:] = 0.0
    episodes = read_hdf5(save(data), observation_dim=27)
    np.testing.assert_array_equal(episodes.observations, data["observations"][:, :27])
    assert episodes.notes == ("dropped 84 all-zero observation columns (contact forces)",)
    assert read_hdf5(save(data)).observation_dim == 111
    for column in (27, 110):
        other = {**data, "observations": data["observations"].copy()}
        other["observations"][30, column] = 1e-6
        refused(save(other), ":observations", "111", "27", observation_dim=27)


@pytest.mark.faults(37)
@pytest.mark.parametrize(
    ("kind", "link"),
    [
        ("soft link", lambda file, other: file.__setitem__("rewards", h5py.SoftLink("/actions"))),
        ("external link", lambda file, other: file.__setitem__("rewards", h5py.ExternalLink(str(other), "/rewards"))),
        ("virtual", lambda file, other: file.create_virtual_dataset("rewards", virtual(other))),
        ("external storage", lambda file, other: file.create_dataset("rewards", (N,), "f4", external=outside(other))),
    ],
)
def test_37_links(save, kind, link):
    data = arrays()
    other = save(data, "other.hdf5")
    path = save({k: v for k, v in data.items() if k != "rewards"})
    with h5py.File(path, "a") as file:
        link(file, other)
    refused(path, ":rewards", kind)


def virtual(other):
    layout = h5py.VirtualLayout(shape=(N,), dtype=np.float32)
    layout[:] = h5py.VirtualSource(str(other), "rewards", shape=(N,))
    return layout


def outside(other):
    return [(str(other), 0, h5py.h5f.UNLIMITED)]


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.faults(38)
def test_38_shape_bomb(tmp_path):
    path = tmp_path / "bomb.hdf5"
    with h5py.File(path, "w") as file:
        for key, columns in (("observations", (11,)), ("actions", (3,)), ("rewards", ())):
            file.create_dataset(key, (10**11, *columns), np.float32, chunks=(10**6, *columns), compression="gzip")
    before = peak_mib()
    refused(path, "claims 6,", f"in a file of {path.stat().st_size:,}")
    assert peak_mib() - before < 50


@pytest.mark.faults(38)
def test_38_chunk_bomb(tmp_path, save):
    data = arrays()
    path = save({k: v for k, v in data.items() if k != "rewards"})
    with h5py.File(path, "a") as file:
        file.create_dataset("rewards", (N,), np.float32, maxshape=(None,), chunks=(10**9,), compression="gzip")
    refused(path, "claims 4,")


def test_attributes_are_one_line_without_control_characters(save):
    path = save(arrays())
    with h5py.File(path, "a") as file:
        file.attrs["env_id"] = "Hopper-v4"
        file.attrs["origin"] = "made\nby \x1b[31mme"
    episodes = read_hdf5(path)
    assert episodes.env_id == "Hopper-v4"
    assert episodes.notes == ("origin: made by [31mme",)


def test_write_and_read_again(save, tmp_path):
    episodes = read_hdf5(save(arrays()))
    path = tmp_path / "again.hdf5"
    old_mask = os.umask(0o022)
    try:
        write_hdf5(path, episodes, {"env_id": "Hopper-v4", "seed": 3})
    finally:
        os.umask(old_mask)
    again = read_hdf5(path)
    for key in ("observations", "actions", "rewards", "offsets", "terminated"):
        np.testing.assert_array_equal(getattr(again, key), getattr(episodes, key))
    assert again.env_id == "Hopper-v4"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    with h5py.File(path) as file:
        assert file["terminals"].dtype == file["timeouts"].dtype == bool
        assert file["terminals"][:].sum() == 3 and file["timeouts"][:].sum() == 6
        assert file["observations"].compression == "gzip" and file.attrs["seed"] == 3


@pytest.mark.faults(17)
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path):
    n = 20_000
    rng = np.random.default_rng(0)
    episodes = Episodes(
        rng.standard_normal((n, 11)).astype(np.float32),
        rng.uniform(-1, 1, (n, 3)).astype(np.float32),
        np.zeros(n, np.float32),
        np.array([0, n]),
        np.array([True]),
    )
    path = tmp_path / "set.hdf5"
    path.write_bytes(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError):
            write_hdf5(path, episodes, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
