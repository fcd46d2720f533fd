"""Our policies in stable-baselines3's loops: `predict(observation, state, episode_start, deterministic)`.

    policy = load_policy("runs/hopper-medium/decision-aaren/seed0")
    env = make_vec_env("Hopper-v4", n_envs=20, seed=1000)
    agent = SB3Policy(policy, env, target_return=3600)
    mean, std = evaluate_policy(agent, env, n_eval_episodes=20)      # stable_baselines3.common.evaluation

A return-to-go falls by every reward, and SB3 gives `predict` no rewards: `LastRewards` around the environments keeps
those of the last step. With as many environments as episodes, the episodes are those of `aaren_rl.envs.rollout` with
the same seed; with fewer, an environment's further episodes go on from its generator.

Shape suffixes: B environments, O observation, A action.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from .agents.policy import arguments as check
from .base.ranges import ENVS, Range
from .envs import make_env
from .vector import SelectingPolicy, VectorPolicy


class LastRewards(VecEnvWrapper):
    """Remembers what the environments answered last. It goes outermost, around every other wrapper.

    Attributes:
        observations: (B, O), as handed out.
        rewards: (B,), of the last step; zeros after a reset.
    """

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv)
        self.observations: VecEnvObs | None = None
        self.rewards = np.zeros(self.num_envs, np.float32)

    def reset(self) -> VecEnvObs:
        self.observations, self.rewards = self.venv.reset(), np.zeros(self.num_envs, np.float32)
        return self.observations

    def step_wait(self) -> VecEnvStepReturn:
        observations, rewards, dones, infos = self.venv.step_wait()
        self.observations, self.rewards = observations, np.array(rewards, np.float32)
        return observations, rewards, dones, infos


def make_vec_env(env_id: str, *, n_envs: int, seed: int, env_kwargs: Mapping[str, Any] | None = None) -> LastRewards:
    """`n_envs` environments for `evaluate_policy`: in this process, with SB3's Monitor, and `LastRewards` around them.

    Environment i is first reset with seed + i, as in `aaren_rl.envs.rollout`.

    Raises:
        SimulationError: the environment cannot be made.
        ArgumentError: the number of environments or the seed is none.
    """
    check.integer("n_envs", n_envs, ENVS)
    check.integer("seed", seed, Range(0, 2**31 - 1))
    env = DummyVecEnv([lambda: Monitor(make_env(env_id, **(env_kwargs or {}))) for _ in range(n_envs)])
    env.seed(seed)
    return LastRewards(env)


class SB3Policy:
    """A policy as stable-baselines3 calls one; its state is a value, which goes from `predict` to the next.

    Args:
        policy: acts for many environments in one call.
        env: the environments that observations come from; rewards are read from it.
        target_return: as in `VectorPolicy`.
        seed: as in `VectorPolicy`.
    """

    def __init__(
        self,
        policy: SelectingPolicy[Any],
        env: LastRewards,
        *,
        target_return: float | npt.ArrayLike | None = None,
        seed: int = 0,
    ) -> None:
        """Raises ValueError if `target_return` does not fit the number of environments, TypeError for others' `env`."""
        if not isinstance(env, LastRewards):
            raise TypeError(
                f"env is a {type(env).__name__}, whose rewards cannot be read: make it with aaren_rl.sb3.make_vec_env, "
                "or wrap it, outermost, in aaren_rl.sb3.LastRewards, and give that one to SB3's loop too"
            )
        asked: dict[str, Any] = {"target_return": target_return, "seed": seed}
        self._policy, self._env = VectorPolicy(policy, n_envs=env.num_envs, autoreset_mode="SameStep", **asked), env

    def predict(
        self,
        observation: npt.NDArray[Any] | dict[str, npt.NDArray[Any]],
        state: tuple[Any, ...] | None = None,
        episode_start: npt.NDArray[Any] | None = None,
        deterministic: bool = True,
    ) -> tuple[npt.NDArray[Any], tuple[Any, ...]]:
        """The next action of every environment.

        Args:
            observation: (B, O), what `env` handed out last.
            state: from the last call; None: every environment begins an episode.
            episode_start: bool (B,), True where an episode begins.
            deterministic: of no effect; a policy with a temperature draws, any other does not.

        Returns:
            Actions (B, A) in the environment's units, or integers (B,), and the new state.

        Raises:
            ValueError: the observation is not the last one of `env`, so neither would the rewards be.
        """
        last = self._env.observations
        if not (
            isinstance(last, np.ndarray)
            and isinstance(observation, np.ndarray)
            and np.array_equal(observation, last, equal_nan=True)
        ):
            raise ValueError(
                "the observation is not the last one of the environments whose rewards are read; give the loop the "
                "very LastRewards that the policy was made with"
            )
        started = None if episode_start is None else np.asarray(episode_start, bool)
        return self._policy.act(last, self._env.rewards, started, state)
