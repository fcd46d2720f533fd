"""Several environments at different steps of their episodes, and the example that plays them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checkout import ROOT
from small_policy import make_policy

from aaren_rl import load_policy
from aaren_rl.envs import rollout
from aaren_rl.policies.folder import read_card
from aaren_rl.vector import VectorPolicy

EXAMPLE = ROOT / "docs" / "examples" / "vector_env.py"


def test_an_environment_is_served_as_if_it_were_alone() -> None:
    """Whatever the order in which episodes begin, and though cohorts are not in the order of the environments."""
    rng, steps, n = np.random.default_rng(0), 12, 3
    observations, rewards = rng.normal(size=(steps, n, 11)), rng.normal(size=(steps, n))
    starts = rng.random((steps, n)) < 0.3
    together, alone = VectorPolicy(make_policy(), n_envs=n, target_return=[1, 2, 3]), []
    for e in range(n):
        agent, state, actions = VectorPolicy(make_policy(), n_envs=1, target_return=e + 1), None, []
        for t in range(steps):
            action, state = agent.act(observations[t, [e]], rewards[t, [e]], starts[t, [e]], state)
            actions.append(action[0])
        alone.append(actions)
    state, mixed = None, False
    for t in range(steps):
        actions, state = together.act(observations[t], rewards[t], starts[t], state)
        np.testing.assert_array_equal(actions, [alone[e][t] for e in range(n)])
        order = [int(e) for cohort in state for e in cohort.environments]
        mixed |= order != sorted(order)
    assert starts[1:].any() and mixed


def test_an_episode_is_the_rollouts(trained_run: Path) -> None:
    sys.path.insert(0, str(EXAMPLE.parent))
    try:
        with pytest.warns(DeprecationWarning, match="out of date"):
            from vector_env import play

            returns = play(str(trained_run), episodes=3, n_envs=1, seed=10)
    finally:
        sys.path.remove(str(EXAMPLE.parent))
    card = read_card(trained_run)
    ours = rollout(load_policy(trained_run), card.env_id, episodes=1, target_return=card.target_return, seed=10)
    assert len(returns) == 3 and returns[0] == pytest.approx(ours.returns[0], rel=1e-6)


def test_the_example_runs(trained_run: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE, str(trained_run), "6"], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.startswith("6 episodes, mean return ")
