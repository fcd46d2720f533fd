"""A policy for several environments whose episodes begin and end at different times, as in vectorized environments.

    policy, state = VectorPolicy(load_policy(RUN), envs, target_return=3600), None
    actions, state = policy.act(observations, rewards, terminated | truncated, state)

Shape suffixes: B environments, O observation, A action.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .agents.policy.base import BasePolicy, PolicyState, array, integer, seeds_of, targets
from .base.errors import ArgumentError
from .base.fields import ENVS
from .envs.simulation import executed, padded, row_multiple


class VectorState(NamedTuple):
    """A value: what a `VectorPolicy` keeps between two steps."""

    state: PolicyState  # of `padded` rows, so that no episode depends on how many others are played
    ended: npt.NDArray[np.bool_]  # (B,), with the autoreset mode NEXT_STEP: begin with the next observation


class VectorPolicy:
    """Acts in B environments; each begins its episodes when it likes.

    Args:
        policy: acts for many environments in one call, with a memory that does not grow (`supports_reset`).
        envs: Gymnasium's vector environment, whose size, bounds of actions and autoreset mode are read.
        n_envs: B, without `envs`.
        autoreset_mode: Gymnasium's `AutoresetMode`, or its value, where `envs` do not say it. None, without `envs`:
            that of the first observation of an episode coming with the last reward of the one before (SAME_STEP), or
            of resets by hand (DISABLED).
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
            autoreset_mode = autoreset_mode or getattr(envs, "metadata", {}).get("autoreset_mode", "unknown")
        mode = str(getattr(autoreset_mode, "value", autoreset_mode)).lower().replace("_", "").replace("-", "")
        if mode not in ("none", "nextstep", "samestep", "disabled"):
            raise ArgumentError(
                f"autoreset_mode: must be NEXT_STEP, SAME_STEP or DISABLED of Gymnasium's, not {autoreset_mode!r}"
            )
        if not policy.supports_reset:
            raise ArgumentError("policy: its memory grows with the episode; load it with the rollout window")
        self._late, self._told = mode == "nextstep", list[str]()
        self._space = getattr(envs, "single_action_space", None)
        self._policy, self._multiple = policy, row_multiple(policy)
        wanted = policy.target_return if target_return is None else target_return
        self._targets = targets(wanted, count := integer("n_envs", n_envs, ENVS))
        self._seeds = seeds_of(seed, count)

    def act(
        self,
        observation: npt.NDArray[Any],
        reward: npt.NDArray[Any],
        started: npt.NDArray[np.bool_] | None = None,
        state: VectorState | None = None,
    ) -> tuple[npt.NDArray[Any], VectorState]:
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
        ended, rows = np.zeros(envs, bool), padded(np.arange(envs), self._multiple)
        if state is None:
            started = np.ones(envs, bool)
            inner = policy.initial_state(len(rows), self._targets[rows], seed=self._seeds[rows])
        elif not isinstance(state, VectorState) or state.ended.shape != (envs,):
            raise ArgumentError(f"state: must be what act returned for {envs} environments, or None")
        else:
            if self._late:
                started, ended = state.ended, started
            inner, begun = state.state, np.flatnonzero(started[rows])
            if begun.size:
                inner = policy.reset(inner, begun, self._targets[rows[begun]])
        rewards = np.where(started, 0, given).astype(np.float32)
        acted, after = executed(self._space, *policy.act(observed[rows], rewards[rows], inner), self._told)
        return acted[:envs], VectorState(after, ended)
