"""Play a trained policy in Gymnasium's vectorised environments: python vector_env.py RUN [EPISODES]."""

import sys

import gymnasium as gym
import numpy as np

from aaren_rl import load_policy
from aaren_rl.vector import VectorPolicy


def play(run: str, episodes: int, n_envs: int = 4, seed: int = 0) -> list[float]:
    """The returns of the first `episodes` episodes to end; environment i is first reset with seed + i."""
    policy = load_policy(run)
    # The observation that comes back from an episode's last step is the next episode's first.
    same_step = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}
    envs = gym.make_vec(policy.card.env_id, num_envs=n_envs, vectorization_mode="sync", vector_kwargs=same_step)
    agent = VectorPolicy(policy, n_envs=n_envs)  # the target return is the one on the policy's card
    observations, _ = envs.reset(seed=seed)
    rewards, started, state = np.zeros(n_envs), np.ones(n_envs, bool), None
    returns, so_far = [], np.zeros(n_envs)
    while len(returns) < episodes:
        actions, state = agent.act(observations, rewards, started, state)
        observations, rewards, terminated, truncated, _ = envs.step(actions)
        started = terminated | truncated
        so_far += rewards
        returns += so_far[started].tolist()
        so_far[started] = 0
    envs.close()
    return returns[:episodes]


if __name__ == "__main__":
    returns = play(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10)
    print(f"{len(returns)} episodes, mean return {np.mean(returns):.1f}")
