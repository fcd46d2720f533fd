"""Play a trained policy in stable-baselines3's evaluation loop: python sb3_loop.py RUN [EPISODES]."""

import sys
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper, unwrap_vec_normalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from aaren_rl import load_policy
from aaren_rl.agents.policy.base import BasePolicy
from aaren_rl.envs import make_env
from aaren_rl.vector import VectorPolicy

State: TypeAlias = tuple[Any, ...]


class LastRewards(VecEnvWrapper):
    """Keeps the rewards of the last step. It goes outermost, around every other wrapper."""

    def reset(self) -> VecEnvObs:
        self.rewards = np.zeros(self.num_envs)
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        observations, self.rewards, dones, infos = self.venv.step_wait()
        return observations, self.rewards, dones, infos


class SB3Policy:
    """A policy as stable-baselines3 calls one. Its state is a value, which goes from one `predict` to the next."""

    def __init__(self, policy: BasePolicy, env: LastRewards, target_return: float | None = None) -> None:
        """`env` is what the loop steps; None asks for the policy's own target return."""
        if unwrap_vec_normalize(env) is not None:
            raise ValueError(
                "a policy takes observations and rewards as the environment has them; leave VecNormalize out"
            )
        self.env = env
        self.policy = VectorPolicy(policy, n_envs=env.num_envs, autoreset_mode="SameStep", target_return=target_return)

    def predict(
        self,
        observation: npt.NDArray[Any],
        state: State | None = None,
        episode_start: npt.NDArray[Any] | None = None,
        deterministic: bool = True,
    ) -> tuple[npt.NDArray[Any], State]:
        """The actions (B, A) for the last observations (B, O) of `env`, and the new state."""
        started = None if episode_start is None else np.asarray(episode_start, bool)
        return self.policy.act(observation, self.env.rewards, started, state)


def make_vec_env(env_id: str, n_envs: int, seed: int, env_kwargs: dict[str, Any] | None = None) -> LastRewards:
    """Environment i is first reset with seed + i, as in `aaren-rl evaluate`."""
    env = DummyVecEnv([lambda: Monitor(make_env(env_id, **(env_kwargs or {})))] * n_envs)
    env.seed(seed)
    return LastRewards(env)


def play(run: str | Path, episodes: int = 20, seed: int = 1000) -> tuple[float, float]:
    """The mean and the standard deviation of the returns."""
    policy = load_policy(run)
    env = make_vec_env(policy.card.env_id, episodes, seed, policy.card.env_kwargs)
    return evaluate_policy(SB3Policy(policy, env), env, n_eval_episodes=episodes)


if __name__ == "__main__":
    print("mean return {:.1f}, standard deviation {:.1f}".format(*play(sys.argv[1], *map(int, sys.argv[2:]))))
