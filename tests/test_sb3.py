"""Our policies in stable-baselines3's own evaluation loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_policy import HOPPER, make_policy
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from aaren_rl.agents import Policy
from aaren_rl.envs import make_env, rollout
from aaren_rl.sb3 import LastRewards, SB3Policy, make_vec_env

TARGET = 20.0  # small, so that the first reward is no small part of it


def reward_minded(**changes) -> Policy:
    """A policy whose actions depend on the return-to-go so much that a wrong reward shows."""
    return replace(make_policy(width=32, seed=1), return_scale=3.0, **changes)


@pytest.mark.parametrize(("mode", "episodes"), [("recurrent", 18), ("staggered", 3), ("window", 3)])
def test_evaluate_policy_gives_our_evaluators_returns(mode: str, episodes: int) -> None:
    policy = reward_minded(rollout=mode, context_length=8)
    ours = rollout(policy, HOPPER, episodes=episodes, target_return=TARGET, seed=10, workers=0)
    env = make_vec_env(HOPPER, n_envs=episodes, seed=10)
    agent = SB3Policy(policy, env, target_return=TARGET)
    mean, std = evaluate_policy(agent, env, n_eval_episodes=episodes)
    # Monitor rounds a return to six decimals.
    assert mean == pytest.approx(ours.returns.mean(), abs=1e-6)
    assert std == pytest.approx(ours.returns.std(), abs=1e-6)
    assert len(set(ours.lengths.tolist())) > 1


def test_every_environment_may_be_asked_for_its_own_return() -> None:
    policy, targets = reward_minded(), [20.0, 200.0]
    env = make_vec_env(HOPPER, n_envs=2, seed=10)
    returns, _ = evaluate_policy(
        SB3Policy(policy, env, target_return=targets), env, n_eval_episodes=2, return_episode_rewards=True
    )
    ours = rollout(policy, HOPPER, episodes=2, target_return=targets, seed=10, workers=0).returns
    assert sorted(returns) == pytest.approx(sorted([ours[0], ours[3]]), abs=1e-6)
    with pytest.raises(ValueError, match=r"shape \(2,\), not \(3,\)"):
        SB3Policy(policy, env, target_return=[1.0, 2.0, 3.0])


def test_the_state_is_a_value() -> None:
    """Two calls with the same arguments give the same, whatever happened in between."""
    env = make_vec_env(HOPPER, n_envs=2, seed=0)
    agent = SB3Policy(reward_minded(), env, target_return=TARGET)
    first, state = agent.predict(env.reset())
    observation = env.step(first)[0]
    once, _ = agent.predict(observation, state, np.zeros(2, bool))
    begun, (batch,) = agent.predict(observation, state, np.array([False, True]))
    again, _ = agent.predict(observation, state)
    np.testing.assert_array_equal(once, again)
    np.testing.assert_array_equal(begun[0], once[0])
    assert not np.array_equal(begun[1], once[1])
    assert batch.state.timestep[:2].tolist() == [2, 1]


@pytest.mark.defect(18)
def test_sb3s_own_environments_are_told_which_wrapper() -> None:
    bare = DummyVecEnv([lambda: Monitor(make_env(HOPPER))] * 2)
    with pytest.raises(TypeError, match=r"env is a DummyVecEnv, .* aaren_rl\.sb3\.make_vec_env.*LastRewards"):
        SB3Policy(reward_minded(), bare, target_return=TARGET)
    agent = SB3Policy(reward_minded(), LastRewards(bare), target_return=TARGET)
    with pytest.raises(ValueError, match=r"not the last one.*LastRewards"):
        evaluate_policy(agent, make_vec_env(HOPPER, n_envs=2, seed=5), n_eval_episodes=2)
