import numpy as np
import pytest
from benchmarks.memory import target_distances
from checks import same
from gymnasium.utils.env_checker import check_env

from aaren_rl.envs import BUILT_IN, make_env
from aaren_rl.envs.local import reacher
from aaren_rl.envs.local.reacher import HORIZON, SHOWN, TARGET, play

TASK = BUILT_IN["reacher-recall"]


@pytest.fixture(scope="module")
def env():
    with make_env(TASK.env_id) as env:
        yield env.unwrapped


def returns(env, act, episodes):
    """The mean return of `act(observation)`."""
    total = 0.0
    for seed in range(episodes):
        observation, _ = env.reset(seed=seed)
        for _ in range(HORIZON):
            observation, reward, *_ = env.step(act(observation))
            total += reward
    return total / episodes


@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # of bounds at infinity, which are Reacher's
def test_gymnasium_checks_the_environment(env):
    check_env(env, skip_render_check=True)


def test_the_target_is_in_the_first_five_observations_alone(env):
    for seed in range(3):  # of a used environment too
        seen = [env.reset(seed=seed)[0], *(env.step(env.action_space.sample())[0] for _ in range(20))]
        seen = np.array(seen)
        np.testing.assert_array_equal(seen[:SHOWN, TARGET], np.tile(env.goal, (SHOWN, 1)))
        np.testing.assert_array_equal(seen[:, 8], np.arange(21) < SHOWN)
        assert not seen[SHOWN:, TARGET].any()
        # Of what else is seen nothing depends on the target.
        moved, qpos = env.unwrapped, env.data.qpos.copy()
        qpos[2:] = 0.1, 0.1
        moved.set_state(qpos, env.data.qvel.copy())
        np.testing.assert_allclose(moved._get_obs(), seen[-1], atol=1e-12)


def test_the_controller_reaches_the_target_and_stays(env):
    rng = np.random.default_rng(7)
    for _ in range(4):
        distances = target_distances(play(env, rng, 0.0).observations)
        assert distances[0] > 0.01
        assert distances[60:].max() < 1e-3


def test_the_data_are_the_same_every_time_and_of_spread_quality(monkeypatch):
    monkeypatch.setattr(reacher, "_EPISODES", 5)
    first, second = (reacher.make_episodes(TASK, progress=False) for _ in range(2))
    same(first, second)
    assert first.lengths.tolist() == [HORIZON] * 5
    assert first.returns.max() - first.returns.min() > 5
    np.testing.assert_array_equal(first.actions * 2**16 % 1, 0)


@pytest.mark.slow
def test_the_reference_returns_are_those_of_random_actions_and_of_the_controller(env):
    rng = np.random.default_rng(1)
    random = returns(env, lambda _: rng.uniform(-1, 1, 2), 200)
    best = np.mean([play(env, rng, 0.0).rewards.sum() for _ in range(200)])
    assert (TASK.reference.low, TASK.reference.high) == (pytest.approx(random, abs=2), pytest.approx(best, abs=0.2))
