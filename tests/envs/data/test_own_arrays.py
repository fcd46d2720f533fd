"""Arrays and trajectories in memory: what they become, and bad inputs, of files too, each of which is one line."""

from __future__ import annotations

import dataclasses
import io
import pickle
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest
import torch
from gymnasium import spaces

from aaren_rl import Episodes
from aaren_rl.base.errors import AarenRLError
from aaren_rl.datasets.command import main as datasets
from aaren_rl.envs.load import expand

N = 30
RNG = np.random.default_rng(0)
SEEN, ACTED = RNG.standard_normal((N, 3)).astype(np.float32), RNG.uniform(-1, 1, (N, 2)).astype(np.float32)
REWARDS, ENDS = RNG.standard_normal(N).astype(np.float32), np.arange(N) % 10 == 9
ARRAYS, TRAJECTORIES = Episodes.from_arrays, Episodes.from_trajectories


def same(episodes: Episodes, lengths: list[int], terminated: list[bool]) -> None:
    assert (episodes.lengths.tolist(), episodes.terminated.tolist()) == (lengths, terminated)
    for found, wanted in ((episodes.observations, SEEN), (episodes.actions, ACTED), (episodes.rewards, REWARDS)):
        np.testing.assert_array_equal(found, wanted[: len(found)])


def test_arrays_and_lists_and_tensors() -> None:
    for change in (np.asarray, np.ndarray.tolist, torch.from_numpy, list):
        same(ARRAYS(*map(change, (SEEN, ACTED, REWARDS, ENDS))), [10] * 3, [True] * 3)
    same(ARRAYS(SEEN, ACTED, REWARDS[:, None], timeouts=ENDS[:, None]), [10] * 3, [False] * 3)
    same(ARRAYS(SEEN, ACTED, REWARDS, max_episode_steps=15), [15] * 2, [False] * 2)
    episodes = ARRAYS(SEEN, np.arange(N) % 4, REWARDS, ENDS & (np.arange(N) < 20), dataset="mine", env_id="Mine-v0")
    assert episodes.discrete and episodes.notes == ("dropped 10 steps of an unfinished last episode",)
    assert (episodes.dataset, episodes.env_id, episodes.path) == ("mine", "Mine-v0", "")


@dataclasses.dataclass
class Trajectory:  # of imitation
    obs: Any
    acts: Any
    rews: Any
    terminal: bool
    infos: None = None


Named = namedtuple("Named", "observations actions rewards truncated")
LENGTHS = [3, 9, 1, 17]


def cut(make: Callable[[slice, int], Any]) -> list[Any]:
    starts = np.cumsum([0, *LENGTHS])
    return [make(slice(a, b), int(b)) for a, b in pairwise(starts)]


def flat(s: slice, **flags: Any) -> dict[str, Any]:
    return {"observations": SEEN[s], "actions": ACTED[s], "rewards": REWARDS[s], **flags}


def last(s: slice, b: int) -> Any:
    return np.arange(s.start, b) == b - 1


def listed(s: slice, b: int) -> dict[str, Any]:
    return {key: value.tolist() for key, value in flat(s, terminals=last(s, b)).items()}


def imitated(s: slice, b: int) -> Trajectory:
    return Trajectory(np.concatenate([SEEN[s], SEEN[:1]]), ACTED[s], REWARDS[s], True)


SHAPED: dict[str, tuple[Callable[[slice, int], Any], bool]] = {
    "gymnasium": (lambda s, b: flat(s, terminated=True), True),
    "one more": (lambda s, b: {"obs": np.r_[SEEN[s], SEEN[:1]], "acts": ACTED[s], "rews": REWARDS[s]}, False),
    "lists": (listed, True),
    "both flags": (lambda s, b: flat(s, terminated=False, truncated=True), False),
    "done and cut": (lambda s, b: flat(s, dones=last(s, b), truncations=last(s, b)), False),
    "kzl": (lambda s, b: flat(s, next_observations=SEEN[s], terminals=last(s, b)), True),
    "imitation": (imitated, True),
    "named": (lambda s, b: Named(SEEN[s], ACTED[s], REWARDS[s], True), False),
    "no flag": (lambda s, b: OrderedDict(flat(s, infos=None)), False),
}


@pytest.mark.parametrize("name", SHAPED)
def test_trajectories(name: str) -> None:
    make, terminated = SHAPED[name]
    same(TRAJECTORIES(cut(make)), LENGTHS, [terminated] * 4)
    same(TRAJECTORIES(iter(cut(make))), LENGTHS, [terminated] * 4)


SPACE = spaces.Dict(pos=spaces.Box(-9, 9, (2,)), mode=spaces.Discrete(3), grip=spaces.Box(-9, 9, ()))


def test_dicts_are_flattened_as_gymnasium_does() -> None:
    SPACE.seed(0)
    each = [SPACE.sample() for _ in range(N)]
    wanted = np.stack([spaces.flatten(SPACE, one) for one in each])
    joined = {key: np.stack([one[key] for one in each]) for key in ("pos", "grip", "mode")}
    for given in (each, joined):
        episodes = ARRAYS(given, ACTED, REWARDS, ENDS, observation_space=SPACE)
        np.testing.assert_array_equal(episodes.observations, wanted.astype(np.float32))
    del joined["mode"]
    np.testing.assert_array_equal(ARRAYS(joined, ACTED, REWARDS, ENDS).observations, wanted[:, [5, 0, 1]])
    backwards = {"b": SEEN[:, 0], "a": SEEN[:, 1]}
    assert ARRAYS(backwards, ACTED, REWARDS, ENDS).notes == ("observations are a, b, side by side",)
    halves = (SEEN[:, :2], SEEN[:, 2])
    np.testing.assert_array_equal(ARRAYS(halves, ACTED, REWARDS, ENDS).observations, SEEN)
    np.testing.assert_array_equal(ARRAYS(list(zip(*halves, strict=True)), ACTED, REWARDS, ENDS).observations, SEEN)


def good(**changes: Any) -> dict[str, Any]:
    return {"observations": SEEN, "actions": ACTED, "rewards": REWARDS, "terminals": ENDS} | changes


def at(index: int, value: float, column: Any = REWARDS) -> Any:
    changed = column.astype(np.float64)
    changed[index] = value
    return changed


# Columns that are refused in memory and in every file; what the line says.
COLUMNS: dict[str, tuple[dict[str, Any], str]] = {
    "observations transposed": ({"observations": SEEN.T}, "moveaxis(observations, 1, 0)"),
    "actions transposed": ({"actions": ACTED.T}, "moveaxis(actions, 1, 0)"),
    "rewards in a row": ({"rewards": REWARDS[None]}, "shape (1, 30)"),
    "rewards of two": ({"rewards": np.zeros((N, 2))}, "(30, 2)"),
    "a single reward": ({"rewards": np.float32(1)}, "shape ()"),
    "flags in a row": ({"terminals": ENDS[None]}, "(1, 30)"),
    "flags of two": ({"terminals": np.zeros((N, 2), bool)}, "(30, 2)"),
    "flags of -1 and 1": ({"terminals": np.where(ENDS, 1, -1)}, "terminals > 0"),
    "flags of 0 and 2": ({"terminals": ENDS * 2}, "0 and 1"),
    "flags of halves": ({"terminals": ENDS * 0.5}, "0 and 1"),
    "flags of NaN": ({"terminals": at(3, np.nan, ENDS)}, "0 and 1"),
    "step counts": ({"terminals": np.arange(N) % 10}, "0 and 1"),
    "one observation more": ({"observations": np.r_[SEEN, SEEN[:1]]}, "observations[:-1]"),
    "one observation fewer": ({"observations": SEEN[1:]}, "(29, 3)"),
    "one action fewer": ({"actions": ACTED[1:]}, "(29, 2)"),
    "one flag fewer": ({"terminals": ENDS[1:]}, "(29,)"),
    "one reward more": ({"rewards": np.r_[REWARDS, 0]}, "31 rewards"),
    "no steps": ({key: value[:0] for key, value in good().items()}, "at least one step"),
    "no columns": ({"observations": SEEN[:, :0]}, "(30, 0)"),
    "no action columns": ({"actions": ACTED[:, :0]}, "(30, 0)"),
    "matrices as actions": ({"actions": np.zeros((N, 2, 3))}, "(30, 2, 3)"),
    "images": ({"observations": np.zeros((N, 8, 8, 3), np.uint8)}, "images"),
    "integers as observations": ({"observations": np.arange(N)}, "one-hot"),
    "NaN reward": ({"rewards": at(7, np.nan)}, "step 7"),
    "infinite reward": ({"rewards": at(8, np.inf)}, "step 8"),
    "a reward beyond float32": ({"rewards": at(9, 1e39)}, "beyond float32"),
    "NaN observation": ({"observations": at((4, 1), np.nan, SEEN)}, "step 4, column 1"),
    "NaN action": ({"actions": at((5, 0), np.nan, ACTED)}, "step 5"),
    "no end": ({"terminals": np.zeros(N, bool)}, "absent or never set"),
    "no flag": ({"terminals": None}, "absent or never set"),
    "no rewards": ({"rewards": None}, "missing rewards"),
    "no actions": ({"actions": None}, "missing actions"),
    "no observations": ({"observations": None}, "missing observations"),
    "complex rewards": ({"rewards": np.ones(N, complex)}, "complex"),
    "text as flags": ({"terminals": np.array([b"yes"] * N)}, "not real numbers"),
    "text as rewards": ({"rewards": np.array([b"1"] * N)}, "not real numbers"),
    "another end": ({"terminals": np.zeros(N, bool), "over": ENDS}, "over has a 0 or 1"),
    "another end of numbers": ({"terminals": np.zeros(N, bool), "over": ENDS.astype("f4")}, "over has a 0 or 1"),
}


def columns(name: str) -> dict[str, Any]:
    return {key: value for key, value in good(**COLUMNS[name][0]).items() if value is not None}


def refused(call: Callable[[], object], *parts: str) -> None:
    with pytest.raises(AarenRLError) as caught:
        call()
    message = str(caught.value)
    assert caught.value.exit_code in range(2, 8) and "\n" not in message and "; " in message
    assert "get the file again" not in message, "the file is whole"
    assert all(part in message for part in parts), message


IN_MEMORY = [
    name for name in COLUMNS if name not in ("no rewards", "no actions", "another end", "another end of numbers")
]


@pytest.mark.parametrize("name", IN_MEMORY)
def test_bad_columns_in_memory(name: str) -> None:
    given = {"observations": None, "terminals": None, **columns(name)}
    refused(lambda: ARRAYS(**given), COLUMNS[name][1].replace("absent or never set", "ends an episode"))


@pytest.mark.parametrize("write", ["hdf5", "npz"])
@pytest.mark.parametrize("name", COLUMNS)
def test_bad_columns_in_a_file(name: str, write: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, given = tmp_path / f"set.{write}", columns(name)
    if write == "npz":
        np.savez(path, **given)
    else:
        with h5py.File(path, "w") as file:
            for key, value in given.items():
                file[key] = value
    assert datasets(["info", str(path)]) == 3
    said = capsys.readouterr().err
    assert said.startswith(f"error: {path}") and said.count("\n") == 1 and COLUMNS[name][1] in said, said
    assert "get the file again" not in said


class Liar:
    def __array__(self, *_: Any, **__: Any) -> Any:
        raise SystemError("no\narray")


def one(**changes: Any) -> dict[str, Any]:
    return {key: value[:10] for key, value in good().items()} | changes


PYTHON: dict[str, tuple[Callable[[], object], str]] = {
    "no trajectories": (lambda: TRAJECTORIES([]), "there are none"),
    "a dict for a list": (lambda: TRAJECTORIES(one()), "not a list"),
    "None for a list": (lambda: TRAJECTORIES(None), "NoneType"),
    "text for a list": (lambda: TRAJECTORIES("abc"), "str"),
    "a number for a list": (lambda: TRAJECTORIES(3), "int"),
    "numbers in the list": (lambda: TRAJECTORIES([1, 2]), "trajectory 0: is 1"),
    "transitions in the list": (lambda: TRAJECTORIES([(SEEN[0], ACTED[0], 1.0)]), "not a dict"),
    "steps in the list": (lambda: TRAJECTORIES([[one(), one()]]), "not a dict"),
    "no actions in the second": (lambda: TRAJECTORIES([one(), {"obs": SEEN, "rewards": REWARDS}]), "trajectory 1"),
    "an end in the middle": (lambda: TRAJECTORIES([one(terminals=np.arange(10) == 4)]), "step 4"),
    "several episodes in one": (lambda: TRAJECTORIES([good()]), "step 9"),
    "other sizes": (lambda: TRAJECTORIES([one(), one(observations=SEEN[:10, :2])]), "trajectory 1 has 2"),
    "other actions": (lambda: TRAJECTORIES([one(), one(actions=ACTED[:10, 0])]), "trajectory 1"),
    "integers in one": (lambda: TRAJECTORIES([one(), one(actions=np.arange(10))]), "integers"),
    "two more observations": (lambda: TRAJECTORIES([one(observations=SEEN[:12])]), "(12, 3)"),
    "fewer observations": (lambda: TRAJECTORIES([one(observations=SEEN[:9])]), "(9, 3)"),
    "one more reward": (lambda: TRAJECTORIES([one(rewards=REWARDS[:11])]), "11 rewards"),
    "an empty trajectory": (lambda: TRAJECTORIES([one(), {k: v[:0] for k, v in one().items()}]), "trajectory 1"),
    "flags of other length": (lambda: TRAJECTORIES([one(terminals=ENDS[:4])]), "(4,)"),
    "a flag of text": (lambda: TRAJECTORIES([one(terminals="yes")]), "not real numbers"),
    "a flag of 2": (lambda: TRAJECTORIES([one(terminals=2)]), "0 and 1"),
    "NaN in the second": (lambda: TRAJECTORIES([one(), one(rewards=at(3, np.nan)[:10])]), "trajectory 1:rewards"),
    "ragged observations": (lambda: ARRAYS([[1, 2], [3]], ACTED, REWARDS, ENDS), "from_trajectories"),
    "episodes as rows": (lambda: ARRAYS([SEEN[:9], SEEN[:5]], ACTED, REWARDS, ENDS), "from_trajectories"),
    "rewards of None": (lambda: ARRAYS(SEEN, ACTED, [None] * N, ENDS), "Python objects"),
    "rewards of sets": (lambda: ARRAYS(SEEN, ACTED, [{1}] * N, ENDS), "Python objects"),
    "rewards of dates": (lambda: ARRAYS(SEEN, ACTED, np.zeros(N, "M8[s]"), ENDS), "datetime64"),
    "an iterator": (lambda: ARRAYS(iter(SEEN), ACTED, REWARDS, ENDS), "Python objects"),
    "a liar": (lambda: ARRAYS(SEEN, Liar(), REWARDS, ENDS), "cannot be an array"),
    "huge integers": (lambda: ARRAYS(SEEN, ACTED, [10**400] * N, ENDS), "rewards"),
    "an empty dict": (lambda: ARRAYS({}, ACTED, REWARDS, ENDS), "no numbers"),
    "a dict without numbers": (lambda: ARRAYS({"a": {}}, ACTED, REWARDS, ENDS), "no numbers"),
    "a dict of unequal rows": (lambda: ARRAYS({"a": SEEN, "b": SEEN[1:]}, ACTED, REWARDS, ENDS), "(29, 3)"),
    "a dict of text": (lambda: ARRAYS({"a": ["x"] * N}, ACTED, REWARDS, ENDS), "observations/a"),
    "dicts with other keys": (lambda: ARRAYS([{"a": 1.0}, {"b": 1.0}] * 15, ACTED, REWARDS, ENDS), "different parts"),
    "integers in a dict": (lambda: ARRAYS({"a": np.arange(N)}, ACTED, REWARDS, ENDS), "one-hot"),
    "images in a dict": (lambda: ARRAYS({"a": np.zeros((N, 4, 4, 3), np.uint8)}, ACTED, REWARDS, ENDS), "images"),
    "a missing part": (lambda: ARRAYS({"pos": SEEN[:, :2]}, ACTED, REWARDS, ENDS, observation_space=SPACE), "missing"),
    "no space": (lambda: ARRAYS(SEEN, ACTED, REWARDS, ENDS, observation_space=gym.spaces.Text(4)), "Text"),
    "a dict of actions": (lambda: ARRAYS(SEEN, {"a": ACTED}, REWARDS, ENDS), "not real numbers"),
    "no steps at all": (lambda: ARRAYS(SEEN, ACTED, REWARDS, max_episode_steps=0), "give 1 or more"),
    "no file matches": (lambda: expand(["no/such*.hdf5"]), "no file matches"),
    "a source twice": (lambda: expand(["a.hdf5", "./a.hdf5"]), "given twice"),
    "no source": (lambda: expand([]), "there is none"),
}  # fmt: skip


@pytest.mark.parametrize("name", PYTHON)
def test_bad_calls(name: str) -> None:
    refused(PYTHON[name][0], PYTHON[name][1])


def objects() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **good(observations=np.array([{"a": 1}, None], object)))
    return stream.getvalue()


def array() -> bytes:
    stream = io.BytesIO()
    np.save(stream, SEEN)
    return stream.getvalue()


FILES: dict[str, tuple[str, bytes, str]] = {
    "objects": ("set.npz", objects(), "pickled and may run code"),
    "an array": ("set.npy", array(), "one array without a name"),
    "no npz": ("set.npz", b"PK", "not a readable .npz"),
    "text": ("set.npz", b"a,b\n1,2\n", "not a readable .npz"),
    "csv": ("set.csv", b"a,b\n1,2\n", "missing observations"),
    "json": ("set.json", b"{}", "is no HDF5, .npz"),
    "parquet": ("set.parquet", b"PAR1....PAR1", "is no table"),
    "a pickle": ("set.pkl", pickle.dumps([one()]), "pickle.load"),
    "a hidden pickle": ("set.data", pickle.dumps([one()]), "pickle.load"),
    "an empty archive": ("set.npz", b"PK\x05\x06" + bytes(18), "not a readable .npz"),
}


@pytest.mark.parametrize("name", FILES)
def test_bad_files(name: str, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    file, content, part = FILES[name]
    Path(file).write_bytes(content)
    assert datasets(["verify", f"./{file}"] if "." in file else []) in (2, 3)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "; " in said and (part in said or "unknown" in said), said


def test_there_are_enough() -> None:
    assert len(IN_MEMORY) + 2 * len(COLUMNS) + len(PYTHON) + len(FILES) > 150
