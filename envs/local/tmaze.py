"""Data of the T-mazes: random actions in the corridor, right or wrong by chance at the junction."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ..data.episodes import Episodes
from ..tasks.table import CORRIDORS, LocalTask

_EPISODES, _NOISE, _SEED = 1_500, 0.3, 0


def make_episodes(task: LocalTask, progress: bool) -> Episodes:
    """1,500 episodes in corridors of 20 to 200 steps, in half of which chance turns the right way."""
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
