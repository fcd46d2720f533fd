"""Several environments at different steps of their episodes, and the example that plays them."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from checkout import ROOT
from policies import make_policy as make_able
from small_policy import make_policy

from aaren_rl import load_policy
from aaren_rl.base.errors import ArgumentError
from aaren_rl.envs import rollout
from aaren_rl.policies.folder import read_card
from aaren_rl.vector import VectorPolicy

EXAMPLE = ROOT / "docs" / "examples" / "vector_env.py"


@pytest.mark.parametrize("kind", ["recurrent", "window"])
def test_an_environment_is_served_as_if_it_were_alone(kind):
    """Whatever the order in which episodes begin."""
    rng, steps, n = np.random.default_rng(0), 12, 3
    observations, rewards = rng.normal(size=(steps, n, 11)), rng.normal(size=(steps, n))
    starts = rng.random((steps, n)) < 0.3
    policy = make_able("attention", "window") if kind == "window" else make_policy()
    together, state = VectorPolicy(policy, n_envs=n, target_return=[1, 2, 3]), None
    alone = [(VectorPolicy(policy, n_envs=1, target_return=e + 1), [None]) for e in range(n)]
    for t in range(steps):
        actions, state = together.act(observations[t], rewards[t], starts[t], state)
        for e, (agent, own) in enumerate(alone):
            (action,), own[0] = agent.act(observations[t, [e]], rewards[t, [e]], starts[t, [e]], own[0])
            np.testing.assert_array_equal(actions[e], action)
    with pytest.raises(ArgumentError, match="state: must be what act returned for 1 environments"):
        alone[0][0].act(observations[0, :1], rewards[0, :1], None, state)
    with pytest.raises(ArgumentError, match="its memory grows with the episode; load it with the rollout window"):
        VectorPolicy(make_able("attention"), n_envs=n, target_return=1.0)


def test_an_episode_is_the_rollouts(trained_run):
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


def test_auto_is_infinity_for_every_environment():
    policy = make_able(max_return_estimate=True)
    observation, reward = np.zeros((2, 11), np.float32), np.zeros(2)
    expected, _ = VectorPolicy(policy, n_envs=2, target_return=[np.inf] * 2).act(observation, reward)
    np.testing.assert_array_equal(
        VectorPolicy(policy, n_envs=2, target_return="auto").act(observation, reward)[0], expected
    )
    for wrong in ("best", np.inf):
        with pytest.raises(ArgumentError, match=r'target_return: must be .*"auto"'):
            VectorPolicy(policy, n_envs=2, target_return=wrong)


class Goto(gym.Env):
    """The return tells every step: the reward is the distance that is left."""

    observation_space = gym.spaces.Box(-10, 10, (11,))
    action_space = gym.spaces.Box(-1, 1, (3,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.time = self.np_random.normal(size=11).astype(np.float32), 0
        return self.at, {}

    def step(self, action):
        self.at, self.time = self.at + 0.3 * np.resize(action, 11).astype(np.float32), self.time + 1
        return self.at, -float(np.abs(self.at).sum()), self.time >= 4 + int(self.at[0] > 0), False, {}


def play(mode: gym.vector.AutoresetMode, agent: VectorPolicy | None = None, episodes: int = 6) -> list[list[float]]:
    """Returns of every environment, in the one loop of the page."""
    n = 3
    envs = gym.vector.SyncVectorEnv([Goto] * n, autoreset_mode=mode)
    agent = agent or VectorPolicy(make_policy(), envs, target_return=5.0)
    observations, _ = envs.reset(seed=3)
    rewards, ended, state = np.zeros(n), np.zeros(n, bool), None
    returns, so_far = [[] for _ in range(n)], np.zeros(n)
    while min(map(len, returns)) < episodes:
        actions, state = agent.act(observations, rewards, ended, state)
        observations, rewards, terminated, truncated, _ = envs.step(actions)
        ended = terminated | truncated
        so_far += rewards
        for i in np.flatnonzero(ended):
            returns[i].append(float(so_far[i]))
        so_far[ended] = 0
        if mode == gym.vector.AutoresetMode.DISABLED and ended.any():
            observations, _ = envs.reset(options={"reset_mask": ended})
    return [own[:episodes] for own in returns]


def test_every_autoreset_mode_plays_the_same_episodes():
    modes = gym.vector.AutoresetMode
    expected = play(modes.SAME_STEP)
    assert play(modes.NEXT_STEP) == expected and play(modes.DISABLED) == expected
    assert (
        play(modes.NEXT_STEP, VectorPolicy(make_policy(), n_envs=3, target_return=5.0, autoreset_mode="NextStep"))
        == expected
    )


@pytest.mark.parametrize("given", [{}, {"n_envs": 2, "envs": object()}, {"n_envs": 2, "autoreset_mode": "never"}])
def test_environments_that_are_not_said_are_refused(given):
    with pytest.raises(ValueError, match=r"envs|autoreset_mode"):
        VectorPolicy(make_policy(), target_return=1.0, **given)
