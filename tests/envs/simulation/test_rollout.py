"""Rollouts of a small policy in MuJoCo; recorded, they are Minari datasets, which give the same episodes again."""

import math
from collections.abc import Callable
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec
from policies import HOPPER, plain_policy

from aaren_rl.envs import SimulationError, make_env, simulation
from aaren_rl.envs.simulation import Rollouts, play_episode, rollout

Register = Callable[..., str]
TARGET, ID = 3600.0, "me/hopper/aaren-v0"


def play(**changes: object) -> Rollouts:
    return rollout(plain_policy(), HOPPER, **{"episodes": 4, "target_return": TARGET, "seed": 10, **changes})


def play_own(env_id: str, *, sizes: tuple[int, int] = (2, 1), **changes: object) -> Rollouts:
    return rollout(plain_policy(*sizes), env_id, **{"episodes": 2, "target_return": 1.0, "seed": 0, **changes})


@pytest.mark.parametrize("rollout_mode", ["recurrent", "staggered", "window"])
def test_an_episode_is_the_same_alone_and_in_a_batch(rollout_mode):
    """To the last bit, though the 40 others end, are dropped, and are simulated in other threads."""
    policy = replace(plain_policy(width=64), rollout=rollout_mode, context_length=8)
    many = rollout(policy, HOPPER, episodes=41, target_return=TARGET, seed=10, workers=2)
    for i in (0, 20, 40):
        alone = rollout(policy, HOPPER, episodes=1, target_return=TARGET, seed=10 + i)
        assert (alone.returns[0], alone.lengths[0]) == (many.returns[i], many.lengths[i])


def test_seed_and_target_alone_decide():
    here, there, other = play(episodes=5), play(workers=3, target_return=[TARGET, 500.0], episodes=5), play(seed=11)
    assert here.returns.tolist() == there.returns.tolist()[:5] and here.lengths.tolist() == there.lengths.tolist()[:5]
    assert here.returns.tolist()[1:] == other.returns.tolist() != here.returns.tolist()[:4]
    assert play(target_return=500.0, episodes=5).returns.tolist() == there.returns.tolist()[5:] != here.returns.tolist()


class Countdown(gym.Env):
    """Ends itself after a number of steps drawn at reset. Reward 1 a step; may fail at a given one.

    In the episode of seed 1 it may answer something else from the third step on.
    """

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self, fail_at=None, observation=None, reward=1.0) -> None:
        self.fail_at, self.answers, self.taken = fail_at, (observation, reward), None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        assert self.taken is None, "an environment that has ended must not be begun again"
        self.seed, self.left, self.taken = seed, int(self.np_random.integers(1, 30)), 0
        self.fail()
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.taken += 1
        self.fail()
        assert self.taken <= self.left, "an environment that has ended must not be stepped"
        observation, reward = self.answers if self.taken >= 3 and self.seed == 1 else (None, 1.0)
        observation = np.full(2, 0.5, np.float32) if observation is None else observation
        return observation, reward, self.taken == self.left, False, {}

    def fail(self):
        if self.taken == self.fail_at:
            raise RuntimeError("the simulation blew up")


LENGTHS = [int(np.random.default_rng(seed).integers(1, 30)) for seed in range(6)]


@pytest.fixture
def register(monkeypatch) -> Register:
    def add(kind: type, **kwargs: object) -> str:
        monkeypatch.setitem(gym.registry, name := f"{kind.__name__}-v0", EnvSpec(name, kind, kwargs=kwargs))
        return name

    return add


@pytest.mark.faults
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("fail_at", [0, 3])
def test_an_environment_that_raises(fail_at, workers, register):
    with pytest.raises(SimulationError, match=f"Countdown-v0 raised .*blew up.*step {fail_at}") as caught:
        play_own(register(Countdown, fail_at=fail_at), workers=workers)
    assert caught.value.exit_code == 5 and "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"observation": [0.0, math.nan]}, "not finite: column 1 is nan"),
        ({"observation": [1e300, 0.0]}, r"not finite: column 0 is 1e\+300"),
        ({"reward": math.nan}, "a reward that is not finite: nan"),
        ({"reward": 1e39}, r"reward that is not finite in float32: 1e\+39"),
        ({"observation": [0.0] * 3}, r"shape \(3,\), but .* \(2,\)"),
        ({"observation": {"x": 1}}, "is a dict, not a vector of numbers"),
        ({"reward": np.ones(1)}, "the reward array.*not a number"),
        ({"reward": "1"}, "the reward '1', which is not a number"),
    ],
)
def test_what_an_environment_must_not_return(returned, message, register):
    """The error names the environment, the episode and the step, and not the policy."""
    with pytest.raises(SimulationError, match=f"Countdown-v0 returned .*{message}.* .reset with seed 1, step 3.; fix"):
        play_own(register(Countdown, **returned))


class OfOldGym(Countdown):
    """As before Gym 0.26: four values of a step."""

    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


@pytest.mark.filterwarnings("ignore:.*old step API")
def test_an_environment_of_old_gym_is_told_what_to_do(register):
    with pytest.raises(SimulationError, match=r"OfOldGym-v0 raised .*since Gym 0\.26 .*shimmy"):
        play_own(register(OfOldGym))


@pytest.mark.parametrize("reward", [1, True, np.float32(1), np.array(1.0), torch.tensor(1.0)], ids=repr)
def test_rewards_of_every_kind_of_number(reward, register):
    result = play_own(register(Countdown, reward=reward), episodes=6)
    assert result.returns.tolist() == result.lengths.tolist() == LENGTHS


class Narrow(Countdown):
    """Takes half of the policy's actions, and may say how often it was closed."""

    action_space = gym.spaces.Box(-0.01, 0.01, (1,))
    closed = 0

    def step(self, action):
        assert self.action_space.contains(action)
        return super().step(action)

    def close(self):
        Narrow.closed += 1


@pytest.mark.parametrize("mode", ["recurrent", "staggered", "window"])
def test_narrower_bounds_clip_actions_and_a_policy_sees_what_was_executed(mode, register, monkeypatch, capsys):
    policy, seen, acted = replace(plain_policy(2, 1), rollout=mode), [], []
    plain = type(policy).act

    def act(self, observation, reward, state):
        seen.append(None if state.previous_action is None else np.array(state.previous_action)[:1])
        return plain(self, observation, reward, state)

    monkeypatch.setattr(type(policy), "act", act)
    asked = {"episodes": 1, "target_return": 1.0, "seed": 2}
    rollout(policy, register(Narrow), **asked, on_action=lambda _, taken: acted.append(taken))
    assert len(acted) > 3 and seen[0] is None and np.abs(acted).max() <= np.float32(0.01)
    np.testing.assert_array_equal(seen[1:], acted[:-1])
    said = capsys.readouterr().err.splitlines()
    assert said == ["note: actions were clipped to the bounds of the environment, which are narrower"]


@pytest.mark.parametrize("asked", [{"episodes": 0}, {"target_return": []}])
def test_no_episode_at_all_is_refused(asked):
    with pytest.raises(ValueError, match="ask for one at least"):
        play(**asked)


@pytest.mark.parametrize("workers", [0, 2])
def test_many_episodes_are_played_in_turns(workers, monkeypatch):
    """The same episodes as at once, with the same watchers."""
    told, acted = [], []
    asked = {"episodes": 7, "target_return": [TARGET, 500.0]}
    whole = play(**asked, on_step=lambda *now: told.append(now))
    assert told == [(i + 1, int((whole.lengths > i + 1).sum())) for i in range(whole.lengths.max())]
    monkeypatch.setattr(simulation, "AT_ONCE", 4)
    turns = play(**asked, workers=workers, on_action=lambda which, _: acted.extend(which))
    assert turns.returns.tolist() == whole.returns.tolist() and turns.lengths.tolist() == whole.lengths.tolist()
    assert np.bincount(acted).tolist() == whole.lengths.tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_counted_is_what_happened(workers):
    """The actions that were taken, again in one environment, give the same returns and lengths."""
    taken = [list[np.ndarray]() for _ in range(20)]

    def note(which: np.ndarray, actions: np.ndarray) -> None:
        for e, action in zip(which, actions.copy(), strict=True):
            taken[e].append(action)

    played, env = play(episodes=20, workers=workers, on_action=note), make_env(HOPPER)
    assert played.lengths.tolist() == [len(actions) for actions in taken] and len({*played.lengths}) > 1
    for e in (0, 19):
        again = play_episode(env, lambda _, e=e: taken[e].pop(0), 10 + e, 1000)
        assert again.terminated and not taken[e] and again.rewards.sum() == pytest.approx(played.returns[e], rel=1e-6)
    env.close()
