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
    """A stepper around another, which `around` names, that keeps what passes through it; one rollout each."""

    _stepper: Stepper

    def around(self, stepper: Stepper) -> Recorder:
        """From now on this is `stepper`, recorded."""
        self._stepper = stepper
        return self

    def reset(self) -> Floats:
        """The first observations (E, O)."""
        first = self._stepper.reset()
        self._observations = [[row] for row in first.copy()]
        self._actions: list[list[Floats]] = [[] for _ in first]
        self._rewards: list[list[float]] = [[] for _ in first]
        self._terminated = np.zeros(len(first), bool)
        self._asked: deque[Indices] = deque()
        return first

    def send(self, which: Indices, actions: Floats) -> None:
        """Begin a step."""
        for e, action in zip(which, actions, strict=True):
            self._actions[e].append(action.copy())
        self._asked.append(which)
        self._stepper.send(which, actions)

    def receive(self) -> Steps:
        """The answer to the oldest step."""
        answer, which = self._stepper.receive(), self._asked.popleft()
        for e, observation, reward in zip(which, answer.observations.copy(), answer.rewards, strict=True):
            self._observations[e].append(observation)
            self._rewards[e].append(float(reward))
        self._terminated[which] = answer.terminated
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
            terminated=self._terminated,
            dataset=dataset,
            env_id=env_id,
        )
        return recorded, np.stack([rows[-1] for rows in self._observations])
