"""Our policies in stable-baselines3's loops: `predict(observation, state, episode_start, deterministic)`.

    policy = load_policy("runs/hopper-medium/decision-aaren/seed0")
    env = make_vec_env("Hopper-v4", n_envs=20, seed=1000)
    agent = SB3Policy(policy, env, target_return=3600)
    mean, std = evaluate_policy(agent, env, n_eval_episodes=20)      # stable_baselines3.common.evaluation

A return-to-go falls by every reward, and `predict` is not told rewards: the environments are wrapped in `LastRewards`,
which keeps those of the last step for the agent to read. With as many environments as episodes, the episodes are those
of `aaren_rl.envs.rollout` with the same seed; with fewer, an environment's further episodes go on from its generator.

Shape suffixes: B environments, O observation, A action.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from .envs import SequencePolicy, make_env
from .envs.rollout import padded

State = TypeVar("State")
Rows = npt.NDArray[np.int64]


class SelectingPolicy(SequencePolicy[State], Protocol[State]):
    """What the adapter needs of a policy: `aaren_rl.agents.Policy` or anything with these three methods."""

    def select(self, state: State, rows: Rows) -> State:
        """The state of some rows, (R,), in their order."""
        ...


class LastRewards(VecEnvWrapper):
    """Remembers what the environments answered last. It goes outermost, around every other wrapper.

    Attributes:
        observations: (B, O), as handed out.
        rewards: (B,), of the last step; zeros after a reset.
    """

    def __init__(self, venv: VecEnv) -> None:
        """Wraps `venv`; nothing is remembered until it is reset."""
        super().__init__(venv)
        self.observations: VecEnvObs | None = None
        self.rewards = np.zeros(self.num_envs, np.float32)

    def reset(self) -> VecEnvObs:
        """Resets all environments."""
        self.observations, self.rewards = self.venv.reset(), np.zeros(self.num_envs, np.float32)
        return self.observations

    def step_wait(self) -> VecEnvStepReturn:
        """Waits for the environments' answer."""
        observations, rewards, dones, infos = self.venv.step_wait()
        self.observations, self.rewards = observations, np.array(rewards, np.float32)
        return observations, rewards, dones, infos


def make_vec_env(env_id: str, *, n_envs: int, seed: int, env_kwargs: Mapping[str, Any] | None = None) -> LastRewards:
    """`n_envs` environments for `evaluate_policy`: in this process, with SB3's Monitor, and `LastRewards` around them.

    Environment i is first reset with seed + i, as in `aaren_rl.envs.rollout`.

    Raises:
        SimulationError: the environment cannot be made.
    """
    env = DummyVecEnv([lambda: Monitor(make_env(env_id, **(env_kwargs or {}))) for _ in range(n_envs)])
    env.seed(seed)
    return LastRewards(env)


class _Cohort(NamedTuple):
    """Environments whose episodes began at the same step, and so share the state of one batch.

    `environments` (n,) are their numbers; the batch has `padded` rows, so that an episode does not depend on how many
    others are played.
    """

    environments: Rows
    state: Any


class SB3Policy:
    """A policy as stable-baselines3 calls one.

    Its state is a value, as SB3 treats it: what `predict` returns is handed to the next `predict`.

    Args:
        policy: acts for many environments in one call.
        env: the environments that observations come from; rewards are read from it.
        target_return: asked for in every episode, one number or one for each environment, (B,).
    """

    def __init__(self, policy: SelectingPolicy[Any], env: LastRewards, *, target_return: float | npt.ArrayLike) -> None:
        """Raises ValueError if `target_return` does not fit the number of environments."""
        self._policy, self._env = policy, env
        self._targets = np.broadcast_to(np.asarray(target_return, np.float64), (env.num_envs,))

    def predict(
        self,
        observation: npt.NDArray[Any] | dict[str, npt.NDArray[Any]],
        state: tuple[Any, ...] | None = None,
        episode_start: npt.NDArray[Any] | None = None,
        deterministic: bool = True,
    ) -> tuple[npt.NDArray[np.float32], tuple[Any, ...]]:
        """The next action of every environment.

        Args:
            observation: (B, O), what `env` handed out last.
            state: from the last call; None: every environment begins an episode.
            episode_start: bool (B,), True where an episode begins: there the state is begun anew.
            deterministic: of no effect, these policies draw nothing.

        Returns:
            Actions (B, A) in the environment's units, and the new state.

        Raises:
            ValueError: the observation is not the last one of `env`, so neither would the rewards be.
        """
        observed = self._checked(observation)
        started = np.ones(len(observed), bool)
        if state is not None and episode_start is not None:
            started = np.asarray(episode_start, bool)
        elif state is not None:
            started = np.zeros(len(observed), bool)
        rewards = np.where(started, np.float32(0), self._env.rewards)
        actions, cohorts = np.empty((len(observed), *self._action_shape()), np.float32), []
        for cohort in self._cohorts(state or (), started):
            rows = padded(cohort.environments)
            acted, after = self._policy.act(observed[rows], rewards[rows], cohort.state)
            actions[cohort.environments] = acted[: len(cohort.environments)]
            cohorts.append(cohort._replace(state=after))
        return actions, tuple(cohorts)

    def _cohorts(self, state: tuple[_Cohort, ...], started: npt.NDArray[np.bool_]) -> list[_Cohort]:
        """Those going on, without the environments whose episodes begin, and one of the latter."""
        cohorts = []
        for cohort in state:
            going = np.flatnonzero(~started[cohort.environments])
            if going.size == len(cohort.environments):
                cohorts.append(cohort)
            elif going.size:
                cohorts.append(_Cohort(cohort.environments[going], self._policy.select(cohort.state, padded(going))))
        if started.any():
            fresh = np.flatnonzero(started)
            targets = self._targets[padded(fresh)]
            cohorts.append(_Cohort(fresh, self._policy.initial_state(len(targets), targets)))
        return cohorts

    def _checked(self, observation: Any) -> npt.NDArray[np.float32]:  # noqa: ANN401  whatever SB3 hands out
        last = self._env.observations
        if not isinstance(last, np.ndarray) or not np.array_equal(observation, last, equal_nan=True):
            raise ValueError(
                "the observation is not the last one of the environments whose rewards are read; give the loop the "
                "very LastRewards that the policy was made with"
            )
        return np.asarray(observation, np.float32)

    def _action_shape(self) -> tuple[int, ...]:
        shape = self._env.action_space.shape
        assert shape is not None
        return shape
