"""What tests of data hold episodes and errors to."""

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest

from aaren_rl.base.errors import AarenRLError, DataError
from aaren_rl.envs.data.episodes import Episode, Episodes


def columns(n: int, seen: int = 3, acted: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    """Random observations, actions within [-1, 1] and rewards of so many steps."""
    rng = np.random.default_rng(seed)
    observations, actions = rng.standard_normal((n, seen)), rng.uniform(-1, 1, (n, acted))
    arrays = {"observations": observations, "actions": actions, "rewards": rng.standard_normal(n)}
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def hdf5(path: Path, columns: dict[str, Any], **attributes: Any) -> Path:
    """A file of arrays by their names."""
    with h5py.File(path, "w") as file:
        for name, array in columns.items():
            file[name] = array
        file.attrs.update(attributes)
    return path


class Drawn(gym.Env[Any, Any]):
    """Draws its observations. An episode ends itself after nine steps; a reward is minus the price."""

    def __init__(self, seen: gym.Space[Any], acted: gym.Space[Any], price: float = 1.0) -> None:
        self.observation_space, self.action_space, self.price = copy.deepcopy(seen), acted, price

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.time = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.observation_space.sample(), -self.price, self.time == 9, False, {}


def same(one: Episodes, other: Episodes) -> None:
    """The same numbers of the same types."""
    for name in ("observations", "actions", "rewards", "offsets", "terminated"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), strict=True)


def holds(episodes: Episodes, steps: dict[str, np.ndarray], lengths: list[int], terminated: Iterable[bool]) -> None:
    """Episodes have these lengths and ends, and the columns of `steps`, or their first rows."""
    assert (episodes.lengths.tolist(), episodes.terminated.tolist()) == (lengths, list(terminated))
    for name in ("observations", "actions", "rewards"):
        np.testing.assert_array_equal(getattr(episodes, name), steps[name][: episodes.n_steps])


def refused(call: Callable[[], object], *parts: object, error: type[AarenRLError] = DataError) -> str:
    """The message of the error that a call ends in: one line with these parts and a way out."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert error is AarenRLError or caught.value.exit_code == error.exit_code, message
    assert "\n" not in message and "; " in message, message
    assert all(str(part) in message for part in parts), message
    return message


def fails(capsys: pytest.CaptureFixture[str], main: Callable[[list[str]], int], words: list[str], *codes: int) -> str:
    """The one error that a command says; it ends with one of these codes."""
    capsys.readouterr()
    try:
        ended: int | str | None = main(words)
    except SystemExit as left:  # of the parser
        ended = left.code
    said = capsys.readouterr().err
    assert ended in codes and "Traceback" not in said and "bug in aaren-rl" not in said, said
    (error,) = (line for line in said.splitlines() if "error: " in line)
    assert error.isprintable() and len(error) < 6000
    return error[error.index("error: ") :]


def replayed(env: gym.Env, episode: Episode, seed: int) -> None:
    """The actions of an episode from this seed give the same again."""
    observation, terminated = env.reset(seed=seed)[0], False
    for t, action in enumerate(episode.actions):
        np.testing.assert_array_equal(episode.observations[t], observation.astype(np.float32))
        observation, reward, terminated, _, _ = env.step(action)
        assert episode.rewards[t] == np.float32(reward)
    assert episode.terminated == terminated
