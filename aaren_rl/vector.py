"""A policy for several environments whose episodes begin and end at different times, as in vectorised environments.

    policy, state = VectorPolicy(load_policy(RUN), n_envs=8, target_return=3600), None
    actions, state = policy.act(observations, rewards, started, state)

Shape suffixes: B environments, O observation, A action.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from .envs import SequencePolicy
from .envs.simulation.rollout import padded, row_multiple

State = TypeVar("State")
Rows = npt.NDArray[np.int64]


class SelectingPolicy(SequencePolicy[State], Protocol[State]):
    """What is needed of a policy: `aaren_rl.agents.Policy` or anything with these three methods."""

    def select(self, state: State, rows: Rows) -> State:
        """The state of some rows, (R,), in their order."""
        ...


class Cohort(NamedTuple):
    """Environments whose episodes began at the same step, and so share the state of one batch.

    Attributes:
        environments: their numbers, (n,).
        state: of a batch of n rows, `padded`: so an episode does not depend on how many others are played.
    """

    environments: Rows
    state: Any


class VectorPolicy:
    """Acts in B environments; each begins its episodes when it likes.

    The state is a value: a tuple of `Cohort`, one for every step at which episodes that go on have begun. Each costs a
    call of the policy.

    Args:
        policy: acts for many environments in one call, all at the same step of their episodes.
        n_envs: B.
        target_return: asked for in every episode, one number or one for each environment, (B,).
    """

    def __init__(self, policy: SelectingPolicy[Any], *, n_envs: int, target_return: float | npt.ArrayLike) -> None:
        """Raises ValueError if `target_return` does not fit the number of environments."""
        self._policy, self._multiple = policy, row_multiple(policy)
        self._targets = np.broadcast_to(np.asarray(target_return, np.float64), (n_envs,))

    def act(
        self,
        observation: npt.NDArray[Any],
        reward: npt.NDArray[Any],
        started: npt.NDArray[np.bool_] | None = None,
        state: tuple[Cohort, ...] | None = None,
    ) -> tuple[npt.NDArray[np.float32], tuple[Cohort, ...]]:
        """The next action of every environment.

        Args:
            observation: (B, O), raw.
            reward: (B,), of the step before; not read where an episode begins.
            started: bool (B,), True where an episode begins with `observation`; None: nowhere.
            state: from the last call; None: every environment begins an episode.

        Returns:
            Actions (B, A) in the environment's units, and the new state.
        """
        if state is None:
            started = np.ones(len(observation), bool)
        elif started is None:
            started = np.zeros(len(observation), bool)
        rewards = np.where(started, 0, reward).astype(np.float32)
        observed = np.asarray(observation, np.float32)
        parts, cohorts = [], []
        for cohort in self._cohorts(state or (), started):
            rows = padded(cohort.environments, self._multiple)
            acted, after = self._policy.act(observed[rows], rewards[rows], cohort.state)
            parts.append(acted[: len(cohort.environments)])
            cohorts.append(Cohort(cohort.environments, after))
        order = np.argsort(np.concatenate([cohort.environments for cohort in cohorts]))
        return np.concatenate(parts)[order], tuple(cohorts)

    def _cohorts(self, state: tuple[Cohort, ...], started: npt.NDArray[np.bool_]) -> list[Cohort]:
        """Those going on, without the environments whose episodes begin, and one of the latter."""
        cohorts = []
        for cohort in state:
            going = np.flatnonzero(~started[cohort.environments])
            if going.size == len(cohort.environments):
                cohorts.append(cohort)
            elif going.size:
                cohorts.append(
                    Cohort(cohort.environments[going], self._policy.select(cohort.state, padded(going, self._multiple)))
                )
        if started.any():
            fresh = np.flatnonzero(started)
            targets = self._targets[padded(fresh, self._multiple)]
            cohorts.append(Cohort(fresh, self._policy.initial_state(len(targets), targets)))
        return cohorts
