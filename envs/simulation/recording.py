"""A rollout's episodes as data, to be written in any of the layouts that are read.

Shape suffixes: E environments, n of them, T steps, O observation, A action.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..data.episodes import Episodes
from .stepping import Floats, Indices, Steps


class Recorder:
    """Keeps a rollout's episodes; the environments are numbered over all of its turns."""

    def __init__(self) -> None:
        self._first: list[Floats] = []
        self._steps: list[list[tuple[Any, ...]]] = []  # action, observation behind it, reward, whether it terminated

    def begin(self, observations: Floats) -> None:
        """Notes the first observations (n, O) of the next n environments."""
        self._first += list(observations)
        self._steps += [[] for _ in observations]

    def take(self, which: Indices, actions: Floats, answer: Steps) -> None:
        """Notes the actions (n, A) of environments `which` (n,), and what they answered."""
        columns = actions, answer.observations, answer.rewards, answer.terminated
        for e, *step in zip(which, *columns, strict=True):
            self._steps[e].append(tuple(step))

    def episodes(self, dataset: str, env_id: str) -> tuple[Episodes, Floats]:
        """The episodes, one an environment, and the observations (E, O) behind their last steps."""
        actions, after, rewards, _ = zip(*(step for steps in self._steps for step in steps), strict=True)
        offsets = np.cumsum([0, *map(len, self._steps)], dtype=np.int64)
        before = np.roll(np.array(after), 1, axis=0)
        before[offsets[:-1]] = self._first
        recorded = Episodes(
            observations=before,
            actions=np.array(actions),
            rewards=np.array(rewards, np.float32),
            offsets=offsets,
            terminated=np.array([steps[-1][-1] for steps in self._steps]),
            dataset=dataset,
            env_id=env_id,
        )
        return recorded, np.array(after)[offsets[1:] - 1]
