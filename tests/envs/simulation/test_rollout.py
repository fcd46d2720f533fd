"""Rollouts of a small policy in MuJoCo, against a loop written out for one environment."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from small_policy import HOPPER, TARGET, make_policy

from aaren_rl.agents import Policy
from aaren_rl.envs import SimulationError, make_env
from aaren_rl.envs.simulation import rollout as simulation
from aaren_rl.envs.simulation.recording import Recorder
from aaren_rl.envs.simulation.rollout import Rollouts, rollout
from aaren_rl.envs.simulation.stepping import make_stepper

Register = Callable[..., str]


def play_one(policy: Policy, env_id: str, seed: int) -> tuple[float, int]:
    env = make_env(env_id)
    observation, _ = env.reset(seed=seed)
    state, reward, total, length, ended = policy.initial_state(1, TARGET), 0.0, 0.0, 0, False
    while not ended:
        action, state = policy.act(observation[None].astype(np.float32), np.array([reward], np.float32), state)
        observation, reward, terminated, truncated, _ = env.step(action[0])
        total, length, ended = total + float(reward), length + 1, terminated or truncated
    env.close()
    return total, length


def play(**changes: object) -> Rollouts:
    arguments = {"episodes": 4, "target_return": TARGET, "seed": 10, **changes}
    return rollout(make_policy(), arguments.pop("env_id", HOPPER), **arguments)


def play_own(env_id: str, *, sizes: tuple[int, int] = (2, 1), **changes: object) -> Rollouts:
    return rollout(make_policy(*sizes), env_id, **{"episodes": 2, "target_return": 1.0, "seed": 0, **changes})


def test_a_rollout_is_every_environments_first_episode() -> None:
    """Environment i is reset with seed + i; what runs beside it changes nothing."""
    result = play()
    alone = [play_one(make_policy(), HOPPER, 10 + i) for i in range(4)]
    assert result.lengths.tolist() == [length for _, length in alone]
    # Batched and single matrix products round differently, and contacts amplify that over an episode.
    np.testing.assert_allclose(result.returns, [total for total, _ in alone], rtol=1e-3)
    assert len(set(result.lengths.tolist())) > 1  # episodes that ended early waited for the others
    assert result.actions_per_second > 0 and result.policy_seconds > 0


@pytest.mark.parametrize("rollout_mode", ["carry", "rolling", "window"])
def test_an_episode_is_the_same_alone_and_in_a_batch(rollout_mode: str) -> None:
    """To the last bit, though the 40 others end, are dropped, and are simulated in other processes."""
    policy = replace(make_policy(width=64), rollout=rollout_mode, context_length=8)
    many = rollout(policy, HOPPER, episodes=41, target_return=TARGET, seed=10, workers=2)
    for i in (0, 20, 40):
        alone = rollout(policy, HOPPER, episodes=1, target_return=TARGET, seed=10 + i)
        assert (alone.returns[0], alone.lengths[0]) == (many.returns[i], many.lengths[i])


def test_several_targets_at_once_are_each_alone() -> None:
    both = play(target_return=[TARGET, 500.0])
    apart = [play(target_return=target) for target in (TARGET, 500.0)]
    assert both.returns.tolist() == [*apart[0].returns, *apart[1].returns]
    assert apart[0].returns.tolist() != apart[1].returns.tolist()


def test_the_seed_alone_decides() -> None:
    here, there, other = play(workers=0, episodes=5), play(workers=3, episodes=5), play(seed=11, episodes=5)
    assert here.returns.tolist() == there.returns.tolist() and here.lengths.tolist() == there.lengths.tolist()
    assert here.returns.tolist()[1:] == other.returns.tolist()[:4] and not np.array_equal(here.returns, other.returns)


class Countdown(gym.Env):
    """Ends itself after a number of steps drawn at reset; may fail at a given one. Reward 1 a step."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self, fail_at: int = 0, fail_at_reset: bool = False) -> None:
        self.fail_at, self.fail_at_reset, self.resets = fail_at, fail_at_reset, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.fail_at_reset:
            raise RuntimeError("no ground to stand on")
        assert self.resets == 0, "an environment that has ended must not be begun again"
        self.resets, self.left, self.taken = 1, int(self.np_random.integers(1, 30)), 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.taken += 1
        if self.taken == self.fail_at:
            raise RuntimeError("the simulation blew up")
        assert self.taken <= self.left, "an environment that has ended must not be stepped"
        return np.full(2, 0.5, np.float32), 1.0, self.taken == self.left, False, {}


class Faulty(Countdown):
    """Returns something else from its third step on, in the episode of seed 1."""

    def __init__(self, observation: object = None, reward: object = 1.0) -> None:
        super().__init__()
        self.wrong = observation, reward

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        first = super().reset(seed=seed, options=options)
        self.left = 9
        return first

    def step(self, action):
        answer = super().step(action)
        if self.taken < 3 or self.seed != 1:
            return answer
        observation, reward = self.wrong
        return answer[0] if observation is None else observation, reward, *answer[2:]


@pytest.fixture
def register() -> Iterator[Register]:
    names: list[str] = []

    def add(kind: object, **kwargs: object) -> str:
        names.append(f"{kind if isinstance(kind, str) else kind.__name__}-v0".rpartition(":")[2])
        gym.register(names[-1], kind, kwargs=kwargs)
        return names[-1]

    yield add
    for name in names:
        gym.registry.pop(name)


def test_an_environment_that_has_ended_is_left_alone(register: Register) -> None:
    result = play_own(register(Countdown), episodes=6)
    lengths = [int(np.random.default_rng(i).integers(1, 30)) for i in range(6)]
    assert result.lengths.tolist() == lengths and result.returns.tolist() == lengths


@pytest.mark.faults(24)
@pytest.mark.parametrize(
    ("failure", "message"),
    [({"fail_at": 3}, "the simulation blew up"), ({"fail_at_reset": True}, "no ground to stand on")],
)
def test_an_environment_that_raises(failure: dict[str, object], message: str, register: Register) -> None:
    with pytest.raises(SimulationError, match=f"Countdown-v0 raised .*{message}") as caught:
        play_own(register(Countdown, **failure))
    assert caught.value.exit_code == 5 and "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"observation": [0.0, math.nan]}, "not finite: column 1 is nan"),
        ({"observation": [-math.inf, 0.0]}, "not finite: column 0 is -inf"),
        ({"observation": [1e300, 0.0]}, r"not finite: column 0 is 1e\+300"),
        ({"reward": math.nan}, "a reward that is not finite: nan"),
        ({"reward": 1e39}, r"reward that is not finite in float32: 1e\+39"),
        ({"observation": [0.0] * 3}, r"shape \(3,\), where .* \(2,\)"),
        ({"observation": {"x": 1}}, "no vector of numbers but a dict"),
        ({"reward": [0.5]}, r"the reward \[0.5\], which is not a number"),
        ({"reward": np.ones(1)}, "the reward array.*not a number"),
        ({"reward": None}, "the reward None, which is not a number"),
        ({"reward": "1"}, "the reward '1', which is not a number"),
    ],
)
def test_what_an_environment_must_not_return(returned: dict[str, object], message: str, register: Register) -> None:
    """The error names the environment, the episode and the step, and not the policy."""
    with pytest.raises(SimulationError, match=f"Faulty-v0 gave .*{message}.* .reset with seed 1, step 3.; repair"):
        play_own(register(Faulty, **returned))


@pytest.mark.parametrize("reward", [1, True, np.float32(1), np.array(1.0), torch.tensor(1.0)], ids=repr)
def test_rewards_of_every_kind_of_number(reward: object, register: Register) -> None:
    assert play_own(register(Faulty, reward=reward)).returns.tolist() == [9, 9]


@pytest.mark.parametrize("workers", [0, 2])
def test_many_episodes_are_played_in_turns(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same episodes as at once, with the same watchers; never more simulators than AT_ONCE."""
    kept, told, acted, sizes = [Recorder(), Recorder()], [], [], []
    asked = {"episodes": 7, "target_return": [TARGET, 500.0]}
    whole = play(**asked, recorder=kept[0], on_step=lambda *now: told.append(now))
    assert told == [(i + 1, int((whole.lengths > i + 1).sum())) for i in range(whole.lengths.max())]

    def making(env_id, env_kwargs, seeds, count):
        sizes.append(len(seeds))
        return make_stepper(env_id, env_kwargs, seeds, count)

    monkeypatch.setattr(simulation, "AT_ONCE", 4)
    monkeypatch.setattr(simulation, "make_stepper", making)
    told.clear()
    watchers = {"on_step": lambda _, running: told.append(running), "on_action": lambda which, _: acted.extend(which)}
    turns = play(**asked, recorder=kept[1], workers=workers, **watchers)
    assert sizes == [4, 4, 4, 2]
    assert turns.returns.tolist() == whole.returns.tolist() and turns.lengths.tolist() == whole.lengths.tolist()
    assert told == sorted(told, reverse=True) and told[-1] == 0 and told[0] >= 10
    assert np.bincount(acted).tolist() == whole.lengths.tolist()
    (first, finals), (again, same) = (recorder.episodes("mine", HOPPER) for recorder in kept)
    for name in ("observations", "actions", "rewards", "offsets", "terminated"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    np.testing.assert_array_equal(finals, same)


def test_an_unknown_environment() -> None:
    with pytest.raises(SimulationError, match="Hoper-v4"):
        play(env_id="Hoper-v4")


@pytest.mark.faults(24)
def test_an_environment_that_raises_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, register: Register
) -> None:
    (tmp_path / "stumbling.py").write_text(
        "from gymnasium.envs.classic_control import PendulumEnv\n"
        "class Stumbling(PendulumEnv):\n"
        "    def step(self, action):\n"
        "        raise RuntimeError('fell\\nover')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SimulationError, match=r"Stumbling-v0 raised RuntimeError.*fell.*over") as caught:
        play_own(register("stumbling:Stumbling"), sizes=(3, 1), workers=2)
    assert "\n" not in str(caught.value)
    with pytest.raises(SimulationError, match="no other process can make it"):  # and this one does not in their place
        play_own(register(Countdown), workers=2)


def children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()}


@pytest.mark.faults(25)
def test_25_a_killed_worker_is_noticed_at_once_and_leaves_none_behind() -> None:
    before, killed_at = children(), 0.0

    def kill(step: int, running: int) -> None:
        nonlocal killed_at
        if step == 3:
            os.kill(min(children() - before), signal.SIGKILL)
            killed_at = time.monotonic()

    with pytest.raises(SimulationError, match="code -9") as caught:
        play(workers=2, on_step=kill)
    assert time.monotonic() - killed_at < 5 and caught.value.exit_code == 5
    assert children() == before
