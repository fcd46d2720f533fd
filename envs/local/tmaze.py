"""A passive T-maze: a cue in the first step says which way to turn at the end of a corridor of any length.

As in Ni et al. 2023 (*When Do Transformers Shine in RL?*, arXiv:2307.03864), with one continuous action, or two
discrete ones.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from ..data.episodes import Episodes
from ..tasks.table import CORRIDORS, LocalTask

Floats = npt.NDArray[np.float32]

_EPISODES, _NOISE, _SEED = 1_500, 0.3, 0  # of the data


class TMaze(gym.Env[Floats, Floats]):
    """Observation (3,): the cue, +1 or -1 in the first step and 0 afterwards; 1 in the last step, at the junction; 1.

    Action (1,) in [-1, 1]. The reward is 1 in the last step, which terminates, if the action has the cue's sign, and 0
    otherwise. `length` is the number of steps, 2 at least; None: drawn from CORRIDORS in every episode.
    """

    observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, length: int | None = None) -> None:
        """Raises ValueError where the corridor has no room for a cue and a junction."""
        if length is not None and length < 2:
            raise ValueError(f"length must be at least 2, not {length}")
        self._fixed, self._at, self._steps, self._cue = length, 0, 0, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed)
        shortest, longest = CORRIDORS
        self._cue = float(self.np_random.choice([-1.0, 1.0]))
        self._steps = self._fixed or int(self.np_random.integers(shortest, longest + 1))
        self._at = 0
        return np.array([self._cue, 0, 1], np.float32), {}

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        self._at += 1
        ended = self._at >= self._steps
        right = ended and float(action[0]) * self._cue > 0
        return np.array([0, self._at >= self._steps - 1, 1], np.float32), float(right), ended, False, {}


class DiscreteTMaze(TMaze):
    """The same with the actions 0, which turns to the cue -1, and 1."""

    action_space = gym.spaces.Discrete(2)  # type: ignore[assignment]

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        return super().step(np.array([2 * int(action) - 1], np.float32))


def make_episodes(task: LocalTask, progress: bool) -> Episodes:
    """Random actions in the corridor, right or wrong by chance at the junction.

    1,500 episodes in corridors of 20 to 200 steps, in half of which chance turns the right way.
    """
    rng = np.random.Generator(np.random.PCG64(_SEED))
    lengths = rng.integers(CORRIDORS[0], CORRIDORS[1] + 1, _EPISODES)
    cue, turn = np.where(rng.random((2, _EPISODES)) < 0.5, -1.0, 1.0)
    offsets = np.cumsum([0, *lengths])
    first, last = offsets[:-1], offsets[1:] - 1
    observations = np.zeros((offsets[-1], 3), np.float32)
    observations[:, 2] = 1
    observations[first, 0] = cue
    observations[last, 1] = 1
    if task.n_actions is None:
        actions: npt.NDArray[Any] = rng.uniform(-_NOISE, _NOISE, (offsets[-1], 1)).astype(np.float32)
        actions[last, 0] = turn
    else:
        actions = rng.integers(task.n_actions, size=offsets[-1])
        actions[last] = turn > 0
    rewards = np.zeros(offsets[-1], np.float32)
    rewards[last] = turn == cue
    return Episodes(observations, actions, rewards, offsets, np.ones(_EPISODES, np.bool_))
