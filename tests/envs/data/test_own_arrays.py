"""Arrays and trajectories in memory: what they become, and bad inputs, of files too, each of which is one line."""

import dataclasses
from collections import namedtuple
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import checks
import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from aaren_rl import Episodes
from aaren_rl.base.errors import AarenRLError
from aaren_rl.envs.data.files import read_file

N = 30
STEPS = checks.columns(N)
SEEN, ACTED, REWARDS = STEPS.values()
ENDS = np.arange(N) % 10 == 9
ARRAYS, TRAJECTORIES = Episodes.from_arrays, Episodes.from_trajectories


def same(episodes: Episodes, lengths: list[int], terminated: list[bool]) -> None:
    checks.holds(episodes, STEPS, lengths, terminated)


def test_arrays_and_lists_and_tensors():
    for change in (np.asarray, np.ndarray.tolist, torch.from_numpy, list):
        same(ARRAYS(*map(change, (SEEN, ACTED, REWARDS, ENDS))), [10] * 3, [True] * 3)
    same(ARRAYS(SEEN, ACTED, REWARDS[:, None], timeouts=ENDS[:, None]), [10] * 3, [False] * 3)
    same(ARRAYS(SEEN, ACTED, REWARDS, max_episode_steps=15), [15] * 2, [False] * 2)
    episodes = ARRAYS(SEEN, np.arange(N) % 4, REWARDS, ENDS & (np.arange(N) < 20), dataset="mine", env_id="Mine-v0")
    assert episodes.discrete and episodes.notes[1:] == ("dropped 10 steps of an unfinished last episode",)
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
    return {name: column[s] for name, column in STEPS.items()} | flags


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
}


@pytest.mark.parametrize("name", SHAPED)
def test_trajectories(name):
    make, terminated = SHAPED[name]
    same(TRAJECTORIES(cut(make)), LENGTHS, [terminated] * 4)
    same(TRAJECTORIES(iter(cut(make))), LENGTHS, [terminated] * 4)


SPACE = spaces.Dict(pos=spaces.Box(-9, 9, (2,)), mode=spaces.Discrete(3), grip=spaces.Box(-9, 9, ()))


def test_dicts_are_flattened_as_gymnasium_does():
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
    assert ARRAYS(backwards, ACTED, REWARDS, ENDS).notes[1:] == ("observations are a, b, side by side",)
    halves = (SEEN[:, :2], SEEN[:, 2])
    np.testing.assert_array_equal(ARRAYS(halves, ACTED, REWARDS, ENDS).observations, SEEN)
    np.testing.assert_array_equal(ARRAYS(list(zip(*halves, strict=True)), ACTED, REWARDS, ENDS).observations, SEEN)


def good(**changes: Any) -> dict[str, Any]:
    return {**STEPS, "terminals": ENDS} | changes


def at(index: int, value: float, column: Any = REWARDS) -> Any:
    changed = column.astype(np.float64)
    changed[index] = value
    return changed


# Columns that are refused in memory and in every file; what the line says.
COLUMNS: dict[str, tuple[dict[str, Any], str]] = {
    "observations transposed": ({"observations": SEEN.T}, "moveaxis(observations, 1, 0)"),
    "actions transposed": ({"actions": ACTED.T}, "moveaxis(actions, 1, 0)"),
    "a single reward": ({"rewards": np.float32(1)}, "shape ()"),
    "flags in a row": ({"terminals": ENDS[None]}, "(1, 30)"),
    "flags of -1 and 1": ({"terminals": np.where(ENDS, 1, -1)}, "terminals > 0"),
    "flags of 0 and 2": ({"terminals": ENDS * 2}, "0 and 1"),
    "one observation more": ({"observations": np.r_[SEEN, SEEN[:1]]}, "observations[:-1]"),
    "one flag fewer": ({"terminals": ENDS[1:]}, "(29,)"),
    "one reward more": ({"rewards": np.r_[REWARDS, 0]}, "31 rewards"),
    "no steps": ({key: value[:0] for key, value in good().items()}, "at least one step"),
    "no columns": ({"observations": SEEN[:, :0]}, "(30, 0)"),
    "matrices as actions": ({"actions": np.zeros((N, 2, 3))}, "(30, 2, 3)"),
    "images": ({"observations": np.zeros((N, 32, 32, 3), np.uint8)}, "images"),
    "integers as observations": ({"observations": np.arange(N)}, "one-hot"),
    "NaN reward": ({"rewards": at(7, np.nan)}, "step 7"),
    "NaN observation": ({"observations": at((4, 1), np.nan, SEEN)}, "step 4, column 1"),
    "no end": ({"terminals": np.zeros(N, bool)}, "absent or never set"),
    "no rewards": ({"rewards": None}, "missing rewards"),
    "no actions": ({"actions": None}, "missing actions"),
    "no observations": ({"observations": None}, "missing observations"),
    "complex rewards": ({"rewards": np.ones(N, complex)}, "complex"),
    "text as flags": ({"terminals": np.array([b"yes"] * N)}, "not real numbers"),
    "another end": ({"terminals": np.zeros(N, bool), "over": ENDS}, "over has a 0 or 1"),
}


def columns(name: str) -> dict[str, Any]:
    return {key: value for key, value in good(**COLUMNS[name][0]).items() if value is not None}


def refused(call: Callable[[], object], part: str) -> None:
    assert "cannot be read" not in checks.refused(call, part, error=AarenRLError), "the file is whole"


@pytest.mark.faults
@pytest.mark.parametrize("name", COLUMNS)
def test_bad_columns(name, tmp_path):
    """In a file; in memory they go the same way."""
    path = checks.hdf5(tmp_path / "set.hdf5", columns(name))
    refused(lambda: read_file(path), COLUMNS[name][1])


class Liar:
    def __array__(self, *_: Any, **__: Any) -> Any:
        raise SystemError("no\narray")


def one(**changes: Any) -> dict[str, Any]:
    return {key: value[:10] for key, value in good().items()} | changes


PYTHON: dict[str, tuple[Callable[[], object], str]] = {
    "no trajectories": (lambda: TRAJECTORIES([]), "there are none"),
    "a dict for a list": (lambda: TRAJECTORIES(one()), "not a list"),
    "a number for a list": (lambda: TRAJECTORIES(3), "int"),
    "numbers in the list": (lambda: TRAJECTORIES([1, 2]), "trajectory 0: is 1"),
    "no actions in the second": (lambda: TRAJECTORIES([one(), {"obs": SEEN, "rewards": REWARDS}]), "trajectory 1"),
    "an end in the middle": (lambda: TRAJECTORIES([one(terminals=np.arange(10) == 4)]), "step 4"),
    "several episodes in one": (lambda: TRAJECTORIES([good()]), "step 9"),
    "other sizes": (lambda: TRAJECTORIES([one(), one(observations=SEEN[:10, :2])]), "trajectory 1 has 2"),
    "integers in one": (lambda: TRAJECTORIES([one(), one(actions=np.arange(10))]), "integers"),
    "an empty trajectory": (lambda: TRAJECTORIES([one(), {k: v[:0] for k, v in one().items()}]), "trajectory 1"),
    "a flag of text": (lambda: TRAJECTORIES([one(terminals="yes")]), "not real numbers"),
    "NaN in the second": (lambda: TRAJECTORIES([one(), one(rewards=at(3, np.nan)[:10])]), "trajectory 1:rewards"),
    "ragged observations": (lambda: ARRAYS([[1, 2], [3]], ACTED, REWARDS, ENDS), "from_trajectories"),
    "episodes as rows": (lambda: ARRAYS([SEEN[:9], SEEN[:5]], ACTED, REWARDS, ENDS), "from_trajectories"),
    "rewards of None": (lambda: ARRAYS(SEEN, ACTED, [None] * N, ENDS), "Python objects"),
    "a liar": (lambda: ARRAYS(SEEN, Liar(), REWARDS, ENDS), "cannot be an array"),
    "an empty dict": (lambda: ARRAYS({}, ACTED, REWARDS, ENDS), "no numbers"),
    "a dict of text": (lambda: ARRAYS({"a": ["x"] * N}, ACTED, REWARDS, ENDS), "observations/a"),
    "dicts with other keys": (lambda: ARRAYS([{"a": 1.0}, {"b": 1.0}] * 15, ACTED, REWARDS, ENDS), "different parts"),
    "a missing part": (lambda: ARRAYS({"pos": SEEN[:, :2]}, ACTED, REWARDS, ENDS, observation_space=SPACE), "missing"),
    "no space": (lambda: ARRAYS(SEEN, ACTED, REWARDS, ENDS, observation_space=gym.spaces.Text(4)), "Text"),
    "a dict of actions": (lambda: ARRAYS(SEEN, {"a": ACTED}, REWARDS, ENDS), "not real numbers"),
    "no steps at all": (lambda: ARRAYS(SEEN, ACTED, REWARDS, max_episode_steps=0), "give 1 or more"),
}  # fmt: skip


@pytest.mark.parametrize("name", PYTHON)
def test_bad_calls(name):
    refused(PYTHON[name][0], PYTHON[name][1])
