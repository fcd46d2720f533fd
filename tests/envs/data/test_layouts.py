"""Layouts of other packages and the names that they give to ends: as many episodes as were written, with their ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from aaren_rl.envs import DataError, Episodes
from aaren_rl.envs.data.files import read_file

N, SEEN, ACTED = 60, 3, 2
ENDS = np.isin(np.arange(N), [9, 19, 29, 39, 59])
DEAD = np.isin(np.arange(N), [9, 29])
LENGTHS = [10, 10, 10, 10, 20]


def steps(**changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    good = {
        "observations": rng.standard_normal((N, SEEN)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (N, ACTED)).astype(np.float32),
        "rewards": rng.standard_normal(N).astype(np.float32),
    }
    return {key: value for key, value in (good | changes).items() if value is not None}


def hdf5(path: Path, columns: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for key, value in columns.items():
            file[key] = value
    return path


def npz(path: Path, columns: dict[str, Any]) -> Path:
    np.savez_compressed(path, **columns)
    return path


def parts() -> list[dict[str, np.ndarray]]:
    data, stops = steps(), np.flatnonzero(ENDS) + 1
    return [
        {key: value[stop - length : stop] for key, value in data.items()}
        for stop, length in zip(stops, LENGTHS, strict=True)
    ]


def same(episodes: Episodes, terminated: Any = DEAD[ENDS]) -> None:
    """The data of `steps`, whose ends are ENDS."""
    assert episodes.lengths.tolist() == LENGTHS and episodes.terminated.tolist() == list(terminated)
    for key, value in steps().items():
        np.testing.assert_array_equal(getattr(episodes, key), value)


CUT = ENDS & ~DEAD
MEANT: dict[str, tuple[dict[str, Any], Any]] = {
    "d4rl": ({"terminals": DEAD, "timeouts": CUT}, DEAD),
    "gymnasium": ({"terminations": DEAD, "truncations": CUT}, DEAD),
    "gymnasium, one step": ({"terminated": DEAD, "truncated": CUT}, DEAD),
    "rllib": ({"terminateds": DEAD, "truncateds": CUT}, DEAD),
    "gym": ({"dones": ENDS}, ENDS),
    "gym's time limit": ({"dones": ENDS, "timeouts": CUT}, DEAD),
    "done": ({"done": ENDS.astype(np.float32)[:, None]}, ENDS),
    "d3rlpy 1": ({"terminals": DEAD.astype(np.float32), "episode_terminals": ENDS.astype(np.float32)}, DEAD),
    "ends": ({"ends": ENDS}, np.zeros(N, bool)),
    "episode_ends": ({"terminals": DEAD, "episode_ends": ENDS}, DEAD),
    "ogbench": ({"terminals": ENDS, "masks": 1.0 - DEAD}, DEAD),
    "jaxrl": ({"dones_float": ENDS, "masks": ~DEAD | (np.arange(N) == 29)}, np.arange(N) == 9),
    "masks in the middle": ({"terminals": ENDS, "masks": ~(DEAD | (np.arange(N) == 3))}, DEAD),
    "an unknown flag beside both": ({"terminals": DEAD, "timeouts": CUT, "success": DEAD}, DEAD),
    "a number of every step": ({"terminals": ENDS, "cost": np.linspace(0, 1, N), "zero": np.zeros(N)}, ENDS),
}


@pytest.mark.parametrize("write", [hdf5, npz])
@pytest.mark.parametrize("name", MEANT)
def test_ends_have_the_meaning_of_their_name(name: str, write: Callable[..., Path], tmp_path: Path) -> None:
    flags, dead = MEANT[name]
    path = write(tmp_path / f"set.{write.__name__}", steps(**flags))
    same(read_file(path), dead[ENDS])


def test_what_names_were_read_is_noted(tmp_path: Path) -> None:
    notes = read_file(hdf5(tmp_path / "a.hdf5", steps(dones=ENDS))).notes
    assert notes == ("read dones as terminations: no flag of truncations is there", "read ends of episodes from dones")
    assert read_file(hdf5(tmp_path / "b.hdf5", steps(terminals=DEAD, timeouts=CUT))).notes == ()


@pytest.mark.parametrize("flag", [ENDS, ENDS.astype(np.int8), ENDS.astype(np.float64)[:, None], np.zeros(N, bool)])
def test_an_unknown_flag_is_named_and_not_guessed(flag: Any, tmp_path: Path) -> None:
    for known in ({"terminals": DEAD}, {}):
        path = hdf5(tmp_path / "set.hdf5", steps(**known, cut_here=flag))
        with pytest.raises(DataError, match=r"set\.hdf5:cut_here has a 0 or 1 .*to timeouts .* infos_cut_here"):
            read_file(path, max_episode_steps=10)
    with h5py.File(path, "a") as file:
        file.move("cut_here", "timeouts")
    if flag.any():
        same(read_file(path), np.zeros(5, bool))


READ: dict[str, dict[str, Any]] = {
    "rewards (N, 1)": {"rewards": steps()["rewards"][:, None]},
    "rewards (N, 1, 1)": {"rewards": steps()["rewards"][:, None, None]},
    "flags (N, 1)": {"terminals": DEAD[:, None], "timeouts": CUT[:, None]},
    "observations (N, 1, O)": {"observations": steps()["observations"][:, None]},
    "actions (N, 1, A)": {"actions": steps()["actions"][:, None]},
    "float64": {"observations": steps()["observations"].astype(np.float64)},
    "big-endian": {"rewards": steps()["rewards"].astype(">f4")},
    "Fortran's order": {"observations": np.asfortranarray(steps()["observations"])},
}


@pytest.mark.parametrize("write", [hdf5, npz])
@pytest.mark.parametrize("name", READ)
def test_shapes_that_are_read(name: str, write: Callable[..., Path], tmp_path: Path) -> None:
    flags = {"terminals": DEAD, "timeouts": CUT}
    same(read_file(write(tmp_path / f"set.{write.__name__}", steps(**{**flags, **READ[name]}))))


def test_one_column_without_an_axis(tmp_path: Path) -> None:
    one = {"observations": np.arange(N) / 7, "actions": np.linspace(-1, 1, N), "terminals": ENDS}
    episodes = read_file(hdf5(tmp_path / "set.hdf5", steps(**one)), observation_dim=1, action_dim=1)
    assert episodes.observations.shape == episodes.actions.shape == (N, 1)


def test_groups_of_observations_lie_side_by_side_as_gymnasium_flattens_them(tmp_path: Path) -> None:
    seen = steps()["observations"]
    nested = {"observations/b": seen[:, 1:], "observations/a/y": seen[:, 0], "observations/a/x": seen[:, :2]}
    episodes = read_file(hdf5(tmp_path / "set.hdf5", steps(observations=None, timeouts=ENDS) | nested))
    np.testing.assert_array_equal(episodes.observations, np.column_stack([seen[:, :2], seen[:, 0], seen[:, 1:]]))
    assert episodes.notes == ("observations are x, y, b, side by side",)


def test_d3rlpy_2(tmp_path: Path) -> None:
    """What `ReplayBuffer.dump` of d3rlpy 2 writes."""
    columns: dict[str, Any] = {"num_episodes": 5, "version": "2.1", "columns": ["observations", "actions"]}
    tuples = dict(columns)
    for e, part in enumerate(parts()):
        rest = {
            f"actions_{e}": part["actions"],
            f"rewards_{e}": part["rewards"][:, None],
            f"terminated_{e}": e in (0, 2),
        }
        columns |= rest | {f"observations_{e}": part["observations"]}
        tuples |= rest | {f"observations_{e}_{i}": part["observations"][:, i] for i in range(3)}
    same(read_file(hdf5(tmp_path / "set.h5", columns)))
    same(read_file(hdf5(tmp_path / "tuple.h5", tuples)))
    del columns["rewards_4"]
    with pytest.raises(DataError, match="has 4 episodes, num_episodes counts 5"):
        read_file(hdf5(tmp_path / "bad.h5", columns))


def test_robomimic(tmp_path: Path) -> None:
    """data/demo_K with obs/*, actions, rewards and dones; demo_10 comes after demo_2."""
    path, names = tmp_path / "low_dim.hdf5", [0, 1, 2, 9, 10]
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs.update(total=N, env_args=json.dumps({"env_name": "Lift", "type": 1}))
        file["mask/train"] = [b"demo_0", b"demo_1"]
        for k, part in zip(names, parts(), strict=True):
            demo = data.create_group(f"demo_{k}")
            demo.attrs["num_samples"] = len(part["rewards"])
            solved = np.arange(len(part["rewards"])) >= len(part["rewards"]) - 2
            for key, value in {
                "actions": part["actions"], "rewards": part["rewards"], "states": np.zeros((len(solved), 32)),
                "dones": (solved if k in (0, 2) else ~solved & False).astype(int),
                "obs/robot0_eef_pos": part["observations"][:, 1:], "obs/object": part["observations"][:, :1],
                "next_obs/object": part["observations"][:, :1],
            }.items():  # fmt: skip
                demo[key] = value
    episodes = read_file(path)
    same(episodes)
    assert "observations are object, robot0_eef_pos, side by side" in episodes.notes
    assert "dones before the last step of an episode do not end it" in episodes.notes


def test_groups_of_episodes_with_a_last_observation(tmp_path: Path) -> None:
    """Minari's main_data.hdf5, without its metadata."""
    path = tmp_path / "main_data.hdf5"
    with h5py.File(path, "w") as file:
        for e, part in enumerate(parts()):
            group, last = file.create_group(f"episode_{e}"), np.arange(len(part["rewards"])) == len(part["rewards"]) - 1
            group["observations"] = np.concatenate([part["observations"], np.full((1, SEEN), np.nan, np.float32)])
            group["actions"], group["rewards"] = part["actions"], part["rewards"]
            group["terminations"], group["truncations"] = last & (e in (0, 2)), last & (e not in (0, 2))
    same(read_file(path))


def test_a_damaged_npz_is_told(tmp_path: Path) -> None:
    path = npz(tmp_path / "set.npz", steps(timeouts=ENDS))
    content = path.read_bytes()
    for places in (content[: len(content) // 2], content[:-30], b"PK\x03\x04" + bytes(200)):
        path.write_bytes(places)
        with pytest.raises(DataError, match=r"set\.npz: is not a readable \.npz file"):
            read_file(path)
