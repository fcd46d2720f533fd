"""Files of every layout: as many episodes as were written, with their ends, or one line that says why not."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checks
import h5py
import numpy as np
import pytest
from checks import hdf5

from aaren_rl.envs import DataError, Episodes, UsageError
from aaren_rl.envs.data import files, rules
from aaren_rl.envs.data.files import read_file, write_hdf5

N, SEEN = 60, 3
ENDS = np.isin(np.arange(N), [9, 19, 29, 39, 59])
DEAD = np.isin(np.arange(N), [9, 29])
CUT = ENDS & ~DEAD
LENGTHS = [10, 10, 10, 10, 20]


def steps(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in (checks.columns(N) | changes).items() if value is not None}


def flagged(**changes: Any) -> dict[str, Any]:
    return steps(**({"terminals": DEAD, "timeouts": CUT} | changes))


def npz(path: Path, columns: dict[str, Any]) -> Path:
    np.savez_compressed(path, **columns)
    return path


def parts() -> list[dict[str, np.ndarray]]:
    data, stops = steps(), np.flatnonzero(ENDS) + 1
    pairs = zip(stops, LENGTHS, strict=True)
    return [{key: value[stop - length : stop] for key, value in data.items()} for stop, length in pairs]


def same(episodes: Episodes, terminated: Any = DEAD[ENDS]) -> None:
    """The data of `steps`, whose ends are ENDS."""
    checks.holds(episodes, steps(), LENGTHS, terminated)


def refused(path: Path, *parts: str, **options: Any) -> None:
    """Reading it ends in one line with these parts and a way out."""
    assert checks.refused(lambda: read_file(path, **options), *parts).startswith(str(path))


MEANT: dict[str, tuple[dict[str, Any], Any]] = {
    "d4rl": ({"terminals": DEAD, "timeouts": CUT}, DEAD),
    "gymnasium": ({"terminations": DEAD, "truncated": CUT}, DEAD),
    "gym": ({"dones": ENDS}, ENDS),
    "gym's time limit": ({"dones": ENDS, "timeouts": CUT}, DEAD),
    "d3rlpy 1": ({"terminals": DEAD.astype(np.float32), "episode_terminals": ENDS.astype(np.float32)}, DEAD),
    "ends": ({"ends": ENDS[:, None]}, np.zeros(N, bool)),
    "ogbench": ({"terminals": ENDS, "masks": 1.0 - DEAD}, DEAD),
    "jaxrl": ({"dones_float": ENDS, "masks": ~DEAD | (np.arange(N) == 29)}, np.arange(N) == 9),
    "masks in the middle": ({"terminals": ENDS, "masks": ~(DEAD | (np.arange(N) == 3))}, DEAD),
    "an unknown flag beside both": ({"terminals": DEAD, "timeouts": CUT, "success": DEAD}, DEAD),
    "rewards (N, 1)": ({"rewards": steps()["rewards"][:, None], "ends": ENDS}, np.zeros(N, bool)),
    "observations (N, 1, O)": ({"observations": steps()["observations"][:, None], "terminals": ENDS}, ENDS),
    "float64": ({"observations": steps()["observations"].astype(np.float64), "terminals": ENDS}, ENDS),
    "big-endian": ({"rewards": steps()["rewards"].astype(">f4"), "terminals": ENDS}, ENDS),
    "Fortran's order": ({"observations": np.asfortranarray(steps()["observations"]), "terminals": ENDS}, ENDS),
    "a number of every step": ({"terminals": ENDS, "cost": np.linspace(0, 1, N), "zero": np.zeros(N)}, ENDS),
}


@pytest.mark.parametrize("name", MEANT)
def test_ends_have_the_meaning_of_their_name(name, tmp_path):
    flags, dead = MEANT[name]
    for write in (hdf5, npz):
        same(read_file(write(tmp_path / f"set.{write.__name__}", steps(**flags))), dead[ENDS])


def test_what_names_were_read_is_noted(tmp_path):
    notes = read_file(hdf5(tmp_path / "a.hdf5", steps(dones=ENDS))).notes
    assert notes == ("read dones as terminations: no flag of truncations is there", "read ends of episodes from dones")
    assert read_file(hdf5(tmp_path / "b.hdf5", flagged())).notes == ()


@pytest.mark.parametrize("flag", [ENDS, ENDS.astype(np.float64)[:, None], np.zeros(N, bool)])
def test_an_unknown_flag_is_named_and_not_guessed(flag, tmp_path):
    for known in ({"terminals": DEAD}, {}):
        path = hdf5(tmp_path / "set.hdf5", steps(**known, cut_here=flag))
        refused(path, "cut_here has a 0 or 1", "to timeouts", "infos_cut_here", max_episode_steps=10)


def test_one_column_without_an_axis(tmp_path):
    one = {"observations": np.arange(N) / 7, "actions": np.linspace(-1, 1, N), "terminals": ENDS}
    episodes = read_file(hdf5(tmp_path / "set.hdf5", steps(**one)), observation_dim=1, action_dim=1)
    assert episodes.observations.shape == episodes.actions.shape == (N, 1)


def test_groups_of_observations_lie_side_by_side_or_are_chosen(tmp_path):
    seen = steps()["observations"]
    nested = {"observations/b": seen[:, 1:], "observations/a/y": seen[:, 0], "observations/a/x": seen[:, :2]}
    path = hdf5(tmp_path / "set.hdf5", steps(observations=None, timeouts=ENDS) | nested)
    episodes = read_file(path)
    np.testing.assert_array_equal(episodes.observations, np.column_stack([seen[:, :2], seen[:, 0], seen[:, 1:]]))
    assert episodes.notes[1:] == ("observations are x, y, b, side by side",)
    chosen = read_file(path, observation_keys=["b"])
    np.testing.assert_array_equal(chosen.observations, seen[:, 1:])
    assert [*(chosen.layout or {})["subspaces"]] == ["b"]
    refused(path, "have no c (a, b)", observation_keys=["b", "c"])
    flat = hdf5(tmp_path / "flat.hdf5", flagged())
    refused(flat, "observations have no b (they are one array)", observation_keys="b")


def test_a_damaged_column_is_named_once_and_a_fault_of_ours_is_none_of_the_file(tmp_path, monkeypatch):
    path = tmp_path / "set.hdf5"
    with h5py.File(path, "w") as file:
        for key, value in flagged().items():
            file.create_dataset(key, data=value, chunks=True, fletcher32=True)
        at = file["rewards"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"set\.hdf5:rewards: cannot be read ") as caught:
        read_file(path)
    assert str(caught.value).count("cannot be read") == str(caught.value).count("get the file again") == 1

    def faulty(*_: object, **__: object) -> object:
        raise KeyError("ours")

    monkeypatch.setattr(files, "assemble", faulty)
    with pytest.raises(KeyError, match="ours"):
        read_file(path)


def test_one_hot_columns_count_for_the_size_of_a_map(tmp_path, monkeypatch):
    """24 kB in the file, 24 MB once they are flattened."""
    monkeypatch.setenv("AAREN_RL_CACHE", str(tmp_path))
    monkeypatch.setattr(rules, "_LARGE", 200_000)
    path = hdf5(tmp_path / "set.hdf5", flagged(observations=np.arange(N)))
    layout = {"type": "Discrete", "n": 1000, "start": 0}
    assert "observations and actions are mapped from the disk" in read_file(path, layout=layout).notes
    assert not read_file(path, layout={**layout, "n": N}).notes


def test_d3rlpy_2(tmp_path):
    """What `ReplayBuffer.dump` of d3rlpy 2 writes."""
    columns: dict[str, Any] = {"num_episodes": 5, "version": "2.1", "columns": ["observations", "actions"]}
    tuples = dict(columns)
    for e, part in enumerate(parts()):
        rest = {f"actions_{e}": part["actions"], f"rewards_{e}": part["rewards"][:, None]}
        rest[f"terminated_{e}"] = e in (0, 2)
        columns |= rest | {f"observations_{e}": part["observations"]}
        tuples |= rest | {f"observations_{e}_{i}": part["observations"][:, i] for i in range(3)}
    same(read_file(hdf5(tmp_path / "set.h5", columns)))
    same(read_file(hdf5(tmp_path / "tuple.h5", tuples)))
    del columns["rewards_4"]
    refused(hdf5(tmp_path / "bad.h5", columns), "has 4 episodes, num_episodes counts 5")


def test_robomimic(tmp_path):
    """data/demo_K with obs/*, actions, rewards and dones; demo_10 comes after demo_2."""
    path, names = tmp_path / "low_dim.hdf5", [0, 1, 2, 9, 10]
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs.update(total=N, env_args=json.dumps({"env_name": "Lift", "type": 1}))
        file["mask/train"] = [b"demo_0", b"demo_1"]
        for k, part in zip(names, parts(), strict=True):
            demo, solved = data.create_group(f"demo_{k}"), np.arange(len(part["rewards"])) >= len(part["rewards"]) - 2
            for key, value in {
                "actions": part["actions"], "rewards": part["rewards"], "states": np.zeros((len(solved), 32)),
                "dones": (solved if k in (0, 2) else ~solved & False).astype(int),
                "obs/robot0_eef_pos": part["observations"][:, 1:], "obs/object": part["observations"][:, :1],
                "next_obs/object": part["observations"][:, :1],
            }.items():  # fmt: skip
                demo[key] = value
    same(episodes := read_file(path))
    assert "observations are object, robot0_eef_pos, side by side" in episodes.notes
    assert "dones before the last step of an episode do not end it" in episodes.notes
    with h5py.File(path, "a") as file:
        del file["data/demo_1/dones"]
        file["data/demo_1/dones"] = np.zeros(7)
    refused(path, "demo_1/dones has shape (7,); 10 rewards")


def test_groups_of_episodes_with_a_last_observation(tmp_path):
    """Minari's main_data.hdf5, without its metadata."""
    path = tmp_path / "main_data.hdf5"
    with h5py.File(path, "w") as file:
        for e, part in enumerate(parts()):
            group, last = file.create_group(f"episode_{e}"), np.arange(len(part["rewards"])) == len(part["rewards"]) - 1
            group["observations"] = np.concatenate([part["observations"], np.full((1, SEEN), np.nan, np.float32)])
            group["actions"], group["rewards"] = part["actions"], part["rewards"]
            group["terminations"], group["truncations"] = last & (e in (0, 2)), last & (e not in (0, 2))
    same(read_file(path))


@pytest.mark.faults
def test_missing_damaged_and_foreign_files(tmp_path):
    refused(tmp_path / "none.hdf5", "does not exist")
    refused(tmp_path, "is not a file")
    for path in (hdf5(tmp_path / "set.hdf5", flagged()), npz(tmp_path / "set.npz", flagged())):
        os.truncate(path, path.stat().st_size // 2)
        refused(path, "cannot be read", "get the file again")
        path.write_bytes(b"")
        refused(path, "0 bytes")
        path.write_bytes(b"<html>404 Not Found</html>" * 100)
        refused(path, "cannot be read")
    flipped = npz(tmp_path / "flipped.npz", flagged())
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    refused(flipped, "cannot be read")
    for name, content, part in (
        ("a.json", b"{}", "is no HDF5, .npz"),
        ("a.pkl", pickle.dumps([1]), "pickle.load"),
        ("hidden.data", pickle.dumps([1]), "pickle.load"),
        ("a.csv", b"a,b\n1,2\n", "missing observations (found: 'a', 'b')"),
        ("a.parquet", b"PAR1....PAR1", "cannot be read"),
    ):
        (tmp_path / name).write_bytes(content)
        refused(tmp_path / name, part)
    odd = np.array([{"a": 1}, None], object)
    refused(npz(tmp_path / "odd.npz", flagged(observations=odd)), "Python objects, which are pickled and may run code")


@pytest.mark.faults
@pytest.mark.parametrize("ends", [None, np.zeros(N, bool)])
def test_no_ends(ends, tmp_path):
    path = hdf5(tmp_path / "set.hdf5", steps(terminals=ends, timeouts=ends))
    refused(path, "terminals", "timeouts", "--max-episode-steps")
    episodes = read_file(path, max_episode_steps=25)
    assert episodes.lengths.tolist() == [25, 25] and not episodes.terminated.any()
    cut = "ended 2 episodes after 25 steps, where the file has no end"
    assert episodes.notes[-2:] == (cut, "dropped 10 steps of an unfinished last episode")
    assert read_file(path, max_episode_steps=20).lengths.tolist() == [20, 20, 20]
    with pytest.raises(UsageError):
        read_file(path, max_episode_steps=0)


@pytest.mark.faults
def test_actions_out_of_range(tmp_path):
    data = flagged()
    data["actions"][[3, 4], [0, 1]] = 1.5, -2.0
    path = hdf5(tmp_path / "set.hdf5", data)
    refused(path, ":actions", "[-2, 1.5]", "--clip-actions")
    episodes = read_file(path, clip_actions=True)
    np.testing.assert_array_equal(episodes.actions, np.clip(data["actions"], -1, 1))
    assert episodes.notes == ("clipped actions from [-2, 1.5] to [-1, 1]",)


@pytest.mark.faults
def test_other_sizes(tmp_path):
    """But for D4RL Ant's contact forces, which are left out."""
    observations = np.zeros((N, 111), np.float32)
    observations[:, :27] = np.arange(27)
    path = hdf5(tmp_path / "set.hdf5", flagged(observations=observations))
    refused(path, ":observations", "111", "11", observation_dim=11)
    refused(path, ":actions", "2", "6", action_dim=6)
    episodes = read_file(path, observation_dim=27)
    np.testing.assert_array_equal(episodes.observations, observations[:, :27])
    assert episodes.notes == ("dropped 84 all-zero observation columns (contact forces)",)
    observations[30, 27] = 1e-6
    path = hdf5(tmp_path / "set.hdf5", flagged(observations=observations))
    refused(path, ":observations", "111", "27", observation_dim=27)


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout(shape=(N,), dtype=np.float32)
    layout[:] = h5py.VirtualSource("other.hdf5", "rewards", shape=(N,))
    file.create_virtual_dataset("rewards", layout)


LINKS: dict[str, Callable[[h5py.File], object]] = {
    "a group": lambda file: file.create_group("rewards"),
    "a link": lambda file: file.__setitem__("rewards", h5py.SoftLink("/actions")),
    "is a link": lambda file: file.__setitem__("rewards", h5py.ExternalLink("/etc/passwd", "/rewards")),
    "stored in others": virtual,
    "or is stored": lambda f: f.create_dataset("rewards", (N,), "f4", external=[("other", 0, h5py.h5f.UNLIMITED)]),
}


@pytest.mark.faults
@pytest.mark.parametrize("told", LINKS)
def test_links(told, tmp_path):
    path = hdf5(tmp_path / "set.hdf5", flagged(rewards=None))
    with h5py.File(path, "a") as file:
        LINKS[told](file)
    refused(path, "rewards", told)


@pytest.mark.faults
def test_groups_without_end(tmp_path):
    path = hdf5(tmp_path / "set.hdf5", flagged(observations=None) | {"observations/a": steps()["observations"]})
    with h5py.File(path, "a") as file:
        file["observations/again"] = file["observations"]
    refused(path, "nested more than 16 levels")


def test_write_and_read_again(tmp_path):
    attributes = {"env_id": "Hopper-v4", "origin": "made\nby \x1b[31mme"}
    source = hdf5(tmp_path / "set.hdf5", flagged())
    with h5py.File(source, "a") as file:
        file.attrs.update(attributes)
    episodes, path = read_file(source, dataset="mine"), tmp_path / "again.hdf5"
    assert (episodes.dataset, episodes.source, episodes.path) == ("mine", "file", str(source))
    assert (episodes.env_id, episodes.notes) == ("Hopper-v4", ("origin: made by [31mme",))  # without control characters
    write_hdf5(path, episodes, {"env_id": "Hopper-v4", "seed": 3})
    same(read_file(path))
    with h5py.File(path) as file:
        assert file["terminals"].dtype == file["timeouts"].dtype == bool and file.attrs["seed"] == 3
        assert file["terminals"][:].sum() == 2 and file["timeouts"][:].sum() == 3
        assert file["observations"].compression == "gzip"
