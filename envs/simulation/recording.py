"""A rollout's episodes as data, to be written in any of the layouts that are read.

Shape suffixes: E environments, n of them, T steps, O observation, A action.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from ..data.episodes import Episodes
from .stepping import Floats, Indices, Stepper, Steps


class Recorder:
    """A stepper around another, which `around` names, that keeps what passes through it; one rollout each.

    What it keeps of a stepper comes behind what it has kept of those before.
    """

    _stepper: Stepper

    def __init__(self) -> None:
        """Nothing kept yet."""
        self._first = 0  # of the stepper's environments
        self._observations: list[list[Floats]] = []
        self._actions: list[list[Floats]] = []
        self._rewards: list[list[float]] = []
        self._terminated: list[bool] = []
        self._asked: deque[Indices] = deque()

    def around(self, stepper: Stepper) -> Recorder:
        """From now on this is `stepper`, recorded."""
        self._stepper = stepper
        return self

    def reset(self) -> Floats:
        """The first observations (E, O)."""
        first = self._stepper.reset()
        self._first = len(self._rewards)
        self._observations += [[row] for row in first.copy()]
        self._actions += [[] for _ in first]
        self._rewards += [[] for _ in first]
        self._terminated += [False] * len(first)
        return first

    def send(self, which: Indices, actions: Floats) -> None:
        """Begin a step."""
        for e, action in zip(self._first + which, actions, strict=True):
            self._actions[e].append(action.copy())
        self._asked.append(which)
        self._stepper.send(which, actions)

    def receive(self) -> Steps:
        """The answer to the oldest step."""
        answer, which = self._stepper.receive(), self._asked.popleft()
        kept = zip(self._first + which, answer.observations.copy(), answer.rewards, answer.terminated, strict=True)
        for e, observation, reward, terminated in kept:
            self._observations[e].append(observation)
            self._rewards[e].append(float(reward))
            self._terminated[e] = bool(terminated)
        return answer

    def close(self) -> None:
        """Let go of environments and processes."""
        self._stepper.close()

    def episodes(self, dataset: str, env_id: str) -> tuple[Episodes, npt.NDArray[np.float32]]:
        """The episodes, one an environment, and the observations (E, O) behind their last steps."""
        lengths = [len(rewards) for rewards in self._rewards]
        recorded = Episodes(
            observations=np.concatenate([np.stack(rows[:-1]) for rows in self._observations]),
            actions=np.concatenate([np.stack(rows) for rows in self._actions]),
            rewards=np.concatenate(self._rewards).astype(np.float32),
            offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
            terminated=np.array(self._terminated),
            dataset=dataset,
            env_id=env_id,
        )
        return recorded, np.stack([rows[-1] for rows in self._observations])
