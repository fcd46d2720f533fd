"""Play a trained policy in Gymnasium's vectorized environments: python vector_env.py RUN [EPISODES]."""

import sys

import gymnasium as gym
import numpy as np

from aaren_rl import load_policy
from aaren_rl.envs import make_env
from aaren_rl.vector import VectorPolicy


def play(run: str, episodes: int, n_envs: int = 4, seed: int = 0) -> list[float]:
    """The returns of at least `episodes` episodes; environment i is first reset with seed + i.

    Every environment plays as many: those that end first are the short ones, and would bias the mean.
    """
    policy = load_policy(run)
    card, each = policy.card, -(-episodes // n_envs)
    envs = gym.vector.SyncVectorEnv([lambda: make_env(card.env_id, **card.env_kwargs)] * n_envs)
    agent = VectorPolicy(policy, envs)  # the target return is the one on the policy's card
    observations, _ = envs.reset(seed=seed)
    rewards, ended, state = np.zeros(n_envs), np.zeros(n_envs, bool), None
    returns, so_far = [[] for _ in range(n_envs)], np.zeros(n_envs)
    while min(map(len, returns)) < each:
        actions, state = agent.act(observations, rewards, ended, state)
        observations, rewards, terminated, truncated, _ = envs.step(actions)
        ended = terminated | truncated
        so_far += rewards
        for i in np.flatnonzero(ended):
            returns[i].append(float(so_far[i]))
        so_far[ended] = 0
    envs.close()
    return [value for own in returns for value in own[:each]]


if __name__ == "__main__":
    returns = play(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10)
    print(f"{len(returns)} episodes, mean return {np.mean(returns):.1f}")
