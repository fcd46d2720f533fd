"""Several environments at different steps of their episodes, and the example that plays them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkout import ROOT
from policies import make_card
from policies import make_policy as make_able
from small_policy import make_policy

from aaren_rl import load_policy
from aaren_rl.agents import Policy
from aaren_rl.envs import rollout
from aaren_rl.errors import ArgumentError
from aaren_rl.export.model import make_model as make_onnx
from aaren_rl.export.model import make_onnx_policy
from aaren_rl.policies.folder import read_card
from aaren_rl.runtime import OnnxPolicy
from aaren_rl.vector import VectorPolicy

EXAMPLE = ROOT / "docs" / "examples" / "vector_env.py"


class ThreeMethods:
    """A policy of somebody else: what a vector policy needs, and no more."""

    def __init__(self, policy: Policy) -> None:
        self.initial_state, self.act, self.select = policy.initial_state, policy.act, policy.select


def exported(policy: Policy) -> OnnxPolicy:
    return make_onnx_policy(make_onnx(policy, make_card(policy.model)))


@pytest.mark.parametrize("played_by", [lambda policy: policy, ThreeMethods, exported], ids=["own", "other", "exported"])
def test_an_environment_is_served_as_if_it_were_alone(played_by: Callable[[Policy], Any]) -> None:
    """Whatever the order in which episodes begin, in one batch or in cohorts in another order than the environments."""
    rng, steps, n = np.random.default_rng(0), 12, 3
    observations, rewards = rng.normal(size=(steps, n, 11)), rng.normal(size=(steps, n))
    starts = rng.random((steps, n)) < 0.3
    policy = played_by(make_policy())
    together, state = VectorPolicy(policy, n_envs=n, target_return=[1, 2, 3]), None
    alone = [(VectorPolicy(policy, n_envs=1, target_return=e + 1), [None]) for e in range(n)]
    mixed, most = False, 0
    for t in range(steps):
        actions, state = together.act(observations[t], rewards[t], starts[t], state)
        for e, (agent, own) in enumerate(alone):
            (action,), own[0] = agent.act(observations[t, [e]], rewards[t, [e]], starts[t, [e]], own[0])
            np.testing.assert_array_equal(actions[e], action)
        order = [int(e) for cohort in state for e in cohort.environments]
        mixed, most = mixed or order != sorted(order), max(most, len(state))
    assert (mixed, most) == ((True, n) if isinstance(policy, ThreeMethods) else (False, 1))


def test_an_episode_is_the_rollouts(trained_run: Path) -> None:
    sys.path.insert(0, str(EXAMPLE.parent))
    try:
        from vector_env import play

        returns = play(str(trained_run), episodes=3, n_envs=1, seed=10)
    finally:
        sys.path.remove(str(EXAMPLE.parent))
    card = read_card(trained_run)
    ours = rollout(load_policy(trained_run), card.env_id, episodes=1, target_return=card.target_return, seed=10)
    assert len(returns) == 3 and returns[0] == pytest.approx(ours.returns[0], rel=1e-6)
    done = subprocess.run([sys.executable, EXAMPLE, str(trained_run), "2"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("4 episodes, mean return ")  # one of each environment


def test_auto_is_infinity_for_every_environment() -> None:
    policy = make_able(max_return_estimate=True)
    observation, reward = np.zeros((2, 11), np.float32), np.zeros(2)
    expected, _ = VectorPolicy(policy, n_envs=2, target_return=[np.inf] * 2).act(observation, reward)
    np.testing.assert_array_equal(
        VectorPolicy(policy, n_envs=2, target_return="auto").act(observation, reward)[0], expected
    )
    for wrong in ("best", np.inf):
        with pytest.raises(ArgumentError, match=r'target_return: must be .*"auto"'):
            VectorPolicy(policy, n_envs=2, target_return=wrong)


def test_a_policy_that_cannot_be_served_is_refused() -> None:
    class WithoutSelect:
        act = initial_state = None

    with pytest.raises(ValueError, match="a WithoutSelect has no select"):
        VectorPolicy(WithoutSelect(), n_envs=2, target_return=1.0)
