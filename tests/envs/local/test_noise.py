"""The variance of a behavior's own action noise, and what it returns without."""

from dataclasses import replace

import numpy as np
import pytest

from aaren_rl.envs import get_task, load_episodes, make_env
from aaren_rl.envs.data.episodes import held_out
from aaren_rl.envs.local import behavior
from aaren_rl.envs.local.behavior import RECIPES, BehaviorPolicy, action_noise_variance, mode_returns, policy_rows
from aaren_rl.envs.simulation import play_episode
from aaren_rl.policies.held_out import hold_out

TASK = get_task("hopper-medium-expert")
POLICIES = (40_000, None, 380_000)


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    """Three policies, 2,000 steps each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AAREN_RL_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setitem(RECIPES["hopper"], TASK.level, behavior.Recipe(POLICIES, 1500, "a test's recipe"))
        yield load_episodes(TASK.name, "local", local_steps=6000, progress=False)


def test_moments_against_a_fine_grid():
    """The variance of tanh of a Gaussian, from no variance worth mentioning to the largest a policy has."""
    z = np.linspace(-12, 12, 100_001)
    weights = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
    tolerances = {1e-9: 1e-15, 0.3: 1e-12, 1.0: 1e-12, 2.0: 1e-6, 2.5: 1e-5, 4.0: 1e-3, np.exp(2): 2e-2}
    for std, within in tolerances.items():
        for mean in (-3.0, -0.4, 0.0, 1.7):
            values = np.tanh(mean + std * z)
            first = weights @ values
            found = behavior.squashed_moments(np.array([mean]), np.array([std]))
            np.testing.assert_allclose(found[0], first, atol=within)
            np.testing.assert_allclose(found[1], weights @ (values - first) ** 2, atol=within)


def test_variance_is_that_of_the_data_about_the_mean_action(episodes):
    variance = action_noise_variance(episodes)
    assert variance.shape == (episodes.n_steps,) and variance.dtype == np.float64
    found = policy_rows(TASK, episodes)
    assert [policy for policy, _ in found] == list(POLICIES) and found[-1][1][1] == episodes.n_steps
    for policy, (first, last) in found:
        # The share, and no more than the rest of the episode that crosses its end.
        assert 0 <= last - first - 2000 < 1000 and {first, last} <= set(episodes.offsets.tolist())
        mean = 0.0
        if policy is not None:
            played = BehaviorPolicy(behavior.weights_path(TASK, policy))
            mean = behavior.squashed_moments(*played.gaussian(episodes.observations[first:last]))[0]
        residuals = np.square(episodes.actions[first:last] - mean)
        assert residuals.mean() == pytest.approx(variance[first:last].mean(), rel=0.05)


def test_the_floor_of_the_held_out_error_is_that_of_the_held_out_steps(episodes):
    variance, rows = action_noise_variance(episodes), episodes.rows(held_out(len(episodes), 0.2, 0))
    assert hold_out(episodes, 0.2, 0).floor == variance[rows].mean() != pytest.approx(variance.mean(), rel=1e-3)


def test_only_a_whole_local_set_is_told_apart(episodes):
    cut = load_episodes(TASK.name, episodes.path, max_episode_steps=30)
    for other in (
        episodes.take(held_out(len(episodes), 0.2, 0)),
        replace(episodes, source="file"),
        replace(cut, source="local"),
    ):
        assert action_noise_variance(other) is None


def test_returns_without_noise(monkeypatch):
    monkeypatch.setitem(RECIPES["hopper"], TASK.level, behavior.Recipe((None, 40_000), 1000, "a test's recipe"))
    found = mode_returns(TASK, episodes=3, seed=7)
    policy, env = BehaviorPolicy(behavior.weights_path(TASK, 40_000)), make_env(TASK.env_id)
    still = np.zeros((1, 3), np.float32)
    total = play_episode(env, lambda seen: policy.act(seen[None], still)[0], 8, 1000).rewards.sum()
    # Products of one row and of several add up in another order, and contacts amplify that.
    assert found.shape == (3,) and found[1] == pytest.approx(total, rel=0.05)
    assert mode_returns(get_task("hopper-random")) is None and mode_returns(get_task("hopper-full-replay")) is None
