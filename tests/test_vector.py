"""Several environments at different steps of their episodes, the example that plays them, and stable-baselines3's."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from policies import CARTPOLE, HOPPER, make_discrete, make_policy, plain_policy
from small_run import ROOT
from stable_baselines3.common.evaluation import evaluate_policy

from aaren_rl import load_policy
from aaren_rl.agents import Policy
from aaren_rl.base.errors import ArgumentError
from aaren_rl.envs import rollout
from aaren_rl.policies.folder import read_card
from aaren_rl.vector import VectorPolicy

EXAMPLES = ROOT / "docs" / "examples"
sys.path.insert(0, str(EXAMPLES))
import vector_env  # noqa: E402
from sb3_loop import SB3Policy, make_vec_env  # noqa: E402

sys.path.remove(str(EXAMPLES))


@pytest.mark.parametrize("kind", ["recurrent", "window"])
def test_an_environment_is_served_as_if_it_were_alone(kind):
    """Whatever the order in which episodes begin."""
    rng, steps, n = np.random.default_rng(0), 12, 3
    observations, rewards = rng.normal(size=(steps, n, 11)), rng.normal(size=(steps, n))
    starts = rng.random((steps, n)) < 0.3
    policy = make_policy("attention", "window") if kind == "window" else plain_policy()
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
        VectorPolicy(make_policy("attention"), n_envs=n, target_return=1.0)


def printed(example: str, run: Path) -> str:
    command = [sys.executable, EXAMPLES / example, run, "2"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_an_episode_is_the_rollouts(trained_run):
    returns = vector_env.play(str(trained_run), episodes=3, n_envs=1, seed=10)
    card = read_card(trained_run)
    ours = rollout(load_policy(trained_run), card.env_id, episodes=1, target_return=card.target_return, seed=10)
    assert len(returns) == 3 and returns[0] == pytest.approx(ours.returns[0], rel=1e-6)
    assert printed("vector_env.py", trained_run).startswith("4 episodes, mean return ")  # one of each environment


def test_narrower_bounds_clip_actions(capsys):
    said = {"single_action_space": gym.spaces.Box(-0.01, 0.01, (3,)), "metadata": {"autoreset_mode": "SameStep"}}
    policy = VectorPolicy(plain_policy(), SimpleNamespace(num_envs=2, **said), target_return=1)
    actions, state = policy.act(np.ones((2, 11)), np.ones(2))
    assert np.abs(actions).max() == np.float32(0.01) and "which are narrower" in capsys.readouterr().err
    np.testing.assert_array_equal(state.state.previous_action[:2], actions)


def test_auto_is_infinity_for_every_environment():
    policy = make_policy(max_return_estimate=True)
    observation, reward = np.zeros((2, 11), np.float32), np.zeros(2)
    expected, _ = VectorPolicy(policy, n_envs=2, target_return=[np.inf] * 2).act(observation, reward)
    auto, _ = VectorPolicy(policy, n_envs=2, target_return="auto").act(observation, reward)
    np.testing.assert_array_equal(auto, expected)
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


def play(mode: gym.vector.AutoresetMode, agent: VectorPolicy | None = None, episodes: int = 6, env=Goto, seed=3):
    """Returns of every environment, in the one loop of the page."""
    n = 3
    envs = gym.vector.SyncVectorEnv([env] * n, autoreset_mode=mode)
    agent = agent or VectorPolicy(plain_policy(), envs, target_return=5.0)
    observations, _ = envs.reset(seed=seed)
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
    said = VectorPolicy(plain_policy(), n_envs=3, target_return=5.0, autoreset_mode="NextStep")
    assert play(modes.NEXT_STEP, said) == expected


@pytest.mark.parametrize(("mixer", "mode", "temperature"), [("aaren", "recurrent", None), ("attention", "window", 1.5)])
def test_discrete_actions(mixer, mode, temperature):
    """Episodes are those of a rollout."""
    policy = replace(make_discrete(mixer, mode), temperature=temperature)
    agent = VectorPolicy(policy, n_envs=3, target_return=100.0, seed=20)
    found = play(gym.vector.AutoresetMode.SAME_STEP, agent, 1, lambda: gym.make(CARTPOLE), seed=20)
    ours = rollout(policy, CARTPOLE, episodes=3, target_return=100.0, seed=20, workers=0).returns
    assert [own for (own,) in found] == ours.tolist()


def test_every_episode_of_an_environment_draws_from_a_seed_of_its_own():
    agent = VectorPolicy(replace(make_discrete(), temperature=1.0), n_envs=3, target_return=1.0)
    state, seen = None, []
    for started in ([True] * 3, [False, True, False], [True] * 3, [False, True, True]):
        _, state = agent.act(np.zeros((3, 4)), np.zeros(3), np.array(started), state)
        seen.append(state.state.seeds[:3].tolist())
    assert seen[0] == [0, 1, 2] and seen[1][0] == 0 and seen[1][2] == 2
    assert len({*seen[0], seen[1][1], *seen[2], *seen[3][1:]}) == 9


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"n_envs": 2, "envs": object()},
        {"n_envs": 2, "autoreset_mode": "never"},
        {"envs": SimpleNamespace(num_envs=2, metadata={})},
    ],
)
def test_environments_that_are_not_said_are_refused(given):
    with pytest.raises(ValueError, match=r"envs|autoreset_mode"):
        VectorPolicy(plain_policy(), target_return=1.0, **given)


TARGET = 20.0  # small, so that the first reward is no small part of it


def reward_minded(**changes) -> Policy:
    """A policy whose actions depend on the return-to-go so much that a wrong reward shows."""
    return replace(plain_policy(width=32, seed=1), return_scale=3.0, **changes)


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
    assert printed("sb3_loop.py", trained_run).startswith("mean return ")
