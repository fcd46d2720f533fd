"""The example that plays a policy in stable-baselines3's own evaluation loop."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from checkout import ROOT
from small_policy import HOPPER, make_policy
from stable_baselines3.common.evaluation import evaluate_policy

from aaren_rl.agents import Policy
from aaren_rl.envs import rollout

EXAMPLE = ROOT / "docs" / "examples" / "sb3_loop.py"
sys.path.insert(0, str(EXAMPLE.parent))
from sb3_loop import SB3Policy, make_vec_env  # noqa: E402

sys.path.remove(str(EXAMPLE.parent))
TARGET = 20.0  # small, so that the first reward is no small part of it


def reward_minded(**changes) -> Policy:
    """A policy whose actions depend on the return-to-go so much that a wrong reward shows."""
    return replace(make_policy(width=32, seed=1), return_scale=3.0, **changes)


@pytest.mark.parametrize(("mode", "episodes"), [("recurrent", 18), ("window", 3)])
def test_evaluate_policy_gives_our_evaluators_returns(mode, episodes):
    policy = reward_minded(rollout=mode, context_length=8)
    ours = rollout(policy, HOPPER, episodes=episodes, target_return=TARGET, seed=10, workers=0)
    env = make_vec_env(HOPPER, episodes, 10)
    mean, std = evaluate_policy(SB3Policy(policy, env, target_return=TARGET), env, n_eval_episodes=episodes)
    # Monitor rounds a return to six decimals.
    assert mean == pytest.approx(ours.returns.mean(), abs=1e-6)
    assert std == pytest.approx(ours.returns.std(), abs=1e-6)
    assert len(set(ours.lengths.tolist())) > 1


def test_the_state_is_a_value():
    """Two calls with the same arguments give the same, whatever happened in between."""
    env = make_vec_env(HOPPER, 2, 0)
    agent = SB3Policy(reward_minded(), env, target_return=TARGET)
    first, state = agent.predict(env.reset())
    observation = env.step(first)[0]
    once, _ = agent.predict(observation, state, np.zeros(2, bool))
    begun, _ = agent.predict(observation, state, np.array([False, True]))
    again, _ = agent.predict(observation, state)
    np.testing.assert_array_equal(once, again)
    np.testing.assert_array_equal(begun[0], once[0])
    assert not np.array_equal(begun[1], once[1])


@pytest.mark.slow
def test_the_program(trained_run):
    done = subprocess.run([sys.executable, EXAMPLE, trained_run, "2"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("mean return ")
