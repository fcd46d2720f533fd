"""Rollouts of anything that has `initial_state` and `act`, in several environments at once.

Shape suffixes: B environments, O observation, A action.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from .errors import SimulationError
from .specs import make_env

State = TypeVar("State")


class SequencePolicy(Protocol[State]):
    """What a rollout needs of a policy."""

    def initial_state(self, batch_size: int, target_return: float) -> State:
        """The state at the begin of an episode."""
        ...

    def act(
        self, observation: npt.NDArray[np.float32], reward: npt.NDArray[np.float32], state: State
    ) -> tuple[npt.NDArray[np.float32], State]:
        """Actions (B, A) from observations (B, O), the last rewards (B,) and the state."""
        ...


@dataclass(frozen=True)
class Rollouts:
    """The outcome of one episode an environment.

    Attributes:
        returns: undiscounted, (B,), in the environment's units.
        lengths: steps, (B,).
        actions_per_second: actions of running episodes over the wall time, simulation included.
        policy_seconds: wall time spent in the policy.
    """

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    actions_per_second: float
    policy_seconds: float


def rollout(
    policy: SequencePolicy[State],
    env_id: str,
    *,
    episodes: int,
    target_return: float,
    seed: int,
    env_kwargs: Mapping[str, Any] | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> Rollouts:
    """Plays each environment's first episode to its end, all environments in step.

    Args:
        policy: acts for all environments in one call.
        env_id: a Gymnasium id; its own time limit ends an episode.
        episodes: B, the number of environments.
        target_return: asked of the policy, in the environment's units.
        seed: environment i is reset with seed + i.
        env_kwargs: passed on to `gymnasium.make`.
        on_step: called after every step with (step, episodes still running).

    Raises:
        SimulationError: the environment is unknown, or raised; the message is its own.
    """
    envs = [make_env(env_id, **(env_kwargs or {})) for _ in range(episodes)]
    try:
        return _play(envs, policy, target_return, seed, on_step)
    finally:
        for env in envs:
            env.close()


def _play(
    envs: list[gym.Env[Any, Any]],
    policy: SequencePolicy[State],
    target_return: float,
    seed: int,
    on_step: Callable[[int, int], None] | None,
) -> Rollouts:
    began, policy_seconds, step = time.perf_counter(), 0.0, 0
    observations = np.stack([_reset(env, seed + i) for i, env in enumerate(envs)]).astype(np.float32)
    rewards, running = np.zeros(len(envs), np.float32), np.ones(len(envs), bool)
    returns, lengths = np.zeros(len(envs)), np.zeros(len(envs), np.int64)
    state = policy.initial_state(len(envs), target_return)
    while running.any():
        asked = time.perf_counter()
        actions, state = policy.act(observations, rewards, state)
        policy_seconds += time.perf_counter() - asked
        for i in np.flatnonzero(running):
            observations[i], reward, ended = _step(envs[i], actions[i])
            rewards[i] = reward
            returns[i] += reward
            lengths[i] += 1
            running[i] = not ended
        step += 1
        if on_step is not None:
            on_step(step, int(running.sum()))
    seconds = time.perf_counter() - began
    return Rollouts(returns, lengths, float(lengths.sum() / seconds), policy_seconds)


def _reset(env: gym.Env[Any, Any], seed: int) -> npt.NDArray[np.float64]:
    try:
        observation: npt.NDArray[np.float64] = env.reset(seed=seed)[0]
    # As in `_step`.
    except Exception as error:
        raise SimulationError(f"the environment {env.spec and env.spec.id} raised {error!r}") from error
    return observation


def _step(env: gym.Env[Any, Any], action: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float64], float, bool]:
    try:
        observation, reward, terminated, truncated, _ = env.step(action)
    # The environment is the user's code and may raise anything; its message is passed on with the cause.
    except Exception as error:
        raise SimulationError(f"the environment {env.spec and env.spec.id} raised {error!r}") from error
    return observation, float(reward), bool(terminated or truncated)
