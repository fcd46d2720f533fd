"""A rollout's episodes as data, to be written in any of the layouts that are read.

Shape suffixes: E environments, n of them, T steps, O observation, A action.
"""

from __future__ import annotations

import numpy as np

from ..data.episodes import Episodes
from .stepping import Floats, Indices, Steps


class Recorder:
    """Keeps a rollout's episodes; the environments are numbered over all of its turns."""

    def __init__(self) -> None:
        """Nothing kept yet."""
        self._observations: list[list[Floats]] = []
        self._actions: list[list[Floats]] = []
        self._rewards: list[list[float]] = []
        self._terminated: list[bool] = []

    def begin(self, observations: Floats) -> None:
        """Notes the first observations (n, O) of the next n environments."""
        self._observations += [[row] for row in observations.copy()]
        self._actions += [[] for _ in observations]
        self._rewards += [[] for _ in observations]
        self._terminated += [False] * len(observations)

    def act(self, which: Indices, actions: Floats) -> None:
        """Notes the actions (n, A) that environments `which` (n,) are about to take."""
        for e, action in zip(which, actions.copy(), strict=True):
            self._actions[e].append(action)

    def take(self, which: Indices, answer: Steps) -> None:
        """Notes what they answered."""
        kept = zip(which, answer.observations.copy(), answer.rewards, answer.terminated, strict=True)
        for e, observation, reward, terminated in kept:
            self._observations[e].append(observation)
            self._rewards[e].append(float(reward))
            self._terminated[e] = bool(terminated)

    def episodes(self, dataset: str, env_id: str) -> tuple[Episodes, Floats]:
        """The episodes, one an environment, and the observations (E, O) behind their last steps."""
        recorded = Episodes(
            observations=np.concatenate([np.stack(rows[:-1]) for rows in self._observations]),
            actions=np.concatenate([np.stack(rows) for rows in self._actions]),
            rewards=np.concatenate(self._rewards).astype(np.float32),
            offsets=np.cumsum([0, *map(len, self._rewards)], dtype=np.int64),
            terminated=np.array(self._terminated),
            dataset=dataset,
            env_id=env_id,
        )
        return recorded, np.stack([rows[-1] for rows in self._observations])
