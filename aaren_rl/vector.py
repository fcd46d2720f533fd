"""A policy for several environments whose episodes begin and end at different times, as in vectorized environments.

    policy, state = VectorPolicy(load_policy(RUN), envs, target_return=3600), None
    actions, state = policy.act(observations, rewards, terminated | truncated, state)

Shape suffixes: B environments, O observation, A action.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .agents.policy.base import BasePolicy, PolicyState, array, integer, next_seeds, seeds_of, targets
from .base.errors import ArgumentError
from .base.ranges import ENVS
from .envs.simulation.rollout import padded, row_multiple

Rows = npt.NDArray[np.int64]


class Cohort(NamedTuple):
    """Environments' numbers (n,) and state: `padded` rows, so no episode depends on how many others are played."""

    environments: Rows
    state: PolicyState
    ended: Rows | tuple[()] = ()  # of those, with the autoreset mode NEXT_STEP: begin with the next observation


class VectorPolicy:
    """Acts in B environments; each begins its episodes when it likes.

    The state is a value: a tuple of `Cohort`, each of which costs a call of the policy: one where `supports_reset`
    is true; where the memory grows with the episode, one for every step at which episodes going on have begun.

    Args:
        policy: acts for many environments in one call.
        envs: Gymnasium's vector environment, whose size and autoreset mode are read.
        n_envs: B, without `envs`.
        autoreset_mode: without `envs`: Gymnasium's `AutoresetMode`, or its value. None: that of the first observation
            of an episode coming with the last reward of the one before (SAME_STEP), or of resets by hand (DISABLED).
        target_return: of every episode, one number, "auto" or (B,); None: the policy's own `target_return`.
        seed: of a policy with a temperature: environment i's first episode draws from `seed` + i.
    """

    def __init__(
        self,
        policy: BasePolicy,
        envs: Any = None,  # noqa: ANN401  a gymnasium.vector.VectorEnv
        *,
        n_envs: int | None = None,
        autoreset_mode: object = None,
        target_return: float | npt.ArrayLike | None = None,
        seed: int = 0,
    ) -> None:
        """Raises ArgumentError, a ValueError, if an argument is not what it should be."""
        if (envs is None) == (n_envs is None):
            raise ArgumentError("envs, n_envs: give one of them, the vector environment or the number of environments")
        if envs is not None:
            n_envs = getattr(envs, "num_envs", None)
            autoreset_mode = autoreset_mode or getattr(envs, "metadata", {}).get("autoreset_mode")
        mode = str(getattr(autoreset_mode, "value", autoreset_mode)).lower().replace("_", "").replace("-", "")
        if mode not in ("none", "nextstep", "samestep", "disabled"):
            raise ArgumentError(
                f"autoreset_mode: must be NEXT_STEP, SAME_STEP or DISABLED of Gymnasium's, not {autoreset_mode!r}"
            )
        self._late = mode == "nextstep"
        self._policy, self._multiple = policy, row_multiple(policy)
        wanted = policy.target_return if target_return is None else target_return
        self._targets = targets(wanted, count := integer("n_envs", n_envs, ENVS))
        self._seeds = seeds_of(seed, count)

    def act(
        self,
        observation: npt.NDArray[Any],
        reward: npt.NDArray[Any],
        started: npt.NDArray[np.bool_] | None = None,
        state: tuple[Cohort, ...] | None = None,
    ) -> tuple[npt.NDArray[Any], tuple[Cohort, ...]]:
        """The next action of every environment.

        Args:
            observation: (B, O), raw.
            reward: (B,), of the step before; not read where an episode begins.
            started: bool (B,), True where an episode begins with `observation`; None: nowhere. Of environments whose
                autoreset mode is known, whether the last step ended an episode, `terminated | truncated`: in NEXT_STEP
                the next observation, not this one, is the first of another episode.
            state: from the last call; None: every environment begins an episode.

        Returns:
            Actions (B, A) in the environment's units, or integers (B,), and the new state.

        Raises:
            ArgumentError: an array is not of its shape, or the state is not this policy's.
        """
        envs, policy = len(self._targets), self._policy
        if policy.flatten is not None:
            observation = policy.flatten(observation, policy.observation_dtype)
        observed = array("observation", observation, policy.observation_dtype, (envs, policy.sizes[0]))
        given = array("reward", reward, np.float64, (envs,))
        started = np.zeros(envs, bool) if started is None else array("started", started, bool, (envs,))
        ended = started if self._late else np.zeros(envs, bool)
        if state is None:
            started, ended = np.ones(envs, bool), np.zeros(envs, bool)
        elif sorted(int(e) for cohort in state for e in getattr(cohort, "environments", ())) != list(range(envs)):
            raise ArgumentError(f"state: must be what act returned for {envs} environments, or None")
        elif self._late:
            started = np.isin(np.arange(envs), np.concatenate([cohort.ended for cohort in state]))
        rewards = np.where(started, 0, given).astype(np.float32)
        parts, cohorts = [], []
        for cohort in self._begun(state or (), started):
            rows = padded(cohort.environments, self._multiple)
            acted, after = policy.act(observed[rows], rewards[rows], cohort.state)
            parts.append(acted[: len(cohort.environments)])
            cohorts.append(Cohort(cohort.environments, after, cohort.environments[ended[cohort.environments]]))
        order = np.argsort(np.concatenate([cohort.environments for cohort in cohorts]))
        return np.concatenate(parts)[order], tuple(cohorts)

    def _begun(self, state: tuple[Cohort, ...], started: npt.NDArray[np.bool_]) -> tuple[Cohort, ...]:
        """The cohorts with new episodes in some environments: one by `reset`, or those that go on and the new."""
        if self._policy.supports_reset and not started.all():
            (cohort,) = state
            every = padded(cohort.environments, self._multiple)
            rows = np.flatnonzero(started[every])
            if not rows.size:
                return state
            return (cohort._replace(state=self._policy.reset(cohort.state, rows, self._targets[every[rows]])),)
        cohorts = []
        for cohort in state:
            going = np.flatnonzero(~started[cohort.environments])
            if 0 < going.size < len(cohort.environments):
                kept = self._policy.select(cohort.state, padded(going, self._multiple))
                cohort = Cohort(cohort.environments[going], kept)
            cohorts += [cohort] if going.size else []
        if started.any():
            fresh = np.flatnonzero(started)
            rows = padded(fresh, self._multiple)
            begun = self._policy.initial_state(len(rows), self._targets[rows], seed=self._next_seeds(state)[rows])
            cohorts.append(Cohort(fresh, begun))
        return tuple(cohorts)

    def _next_seeds(self, state: tuple[Cohort, ...]) -> Rows:
        """What every environment's next episode draws from."""
        seeds = self._seeds.copy()
        for cohort in state:
            if cohort.state.seeds is not None:
                seeds[cohort.environments] = next_seeds(cohort.state.seeds[: len(cohort.environments)])
        return seeds
