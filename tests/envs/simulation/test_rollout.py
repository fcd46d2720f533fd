"""Rollouts of a small policy in MuJoCo, against a loop written out for one environment."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from small_policy import HOPPER, TARGET, make_policy

from aaren_rl.agents import Policy
from aaren_rl.envs import SimulationError, make_env
from aaren_rl.envs.simulation import rollout as simulation
from aaren_rl.envs.simulation.recording import Recorder
from aaren_rl.envs.simulation.rollout import Rollouts, rollout
from aaren_rl.envs.simulation.stepping import make_stepper


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


def test_processes_change_nothing() -> None:
    here, there = play(workers=0, episodes=5), play(workers=3, episodes=5)
    assert here.returns.tolist() == there.returns.tolist() and here.lengths.tolist() == there.lengths.tolist()


def test_the_same_seed_gives_the_same_rollout() -> None:
    first, again, other = play(), play(), play(seed=11)
    assert np.array_equal(first.returns, again.returns) and np.array_equal(first.lengths, again.lengths)
    assert not np.array_equal(first.returns, other.returns)


def test_progress_is_told_after_every_step() -> None:
    told: list[tuple[int, int]] = []
    result = play(on_step=lambda step, running: told.append((step, running)))
    assert [step for step, _ in told] == list(range(1, int(result.lengths.max()) + 1))
    assert told[-1][1] == 0
    assert [running for _, running in told] == [int((result.lengths > step).sum()) for step, _ in told]


class Countdown(gym.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Ends itself after a number of steps drawn at reset; may fail at a given one. Reward 1 a step."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self, fail_at: int = 0, fail_at_reset: bool = False) -> None:
        self.fail_at, self.fail_at_reset, self.resets = fail_at, fail_at_reset, 0

    def reset(
        self, *, seed: int | None = None, options: object = None
    ) -> tuple[NDArray[np.float32], dict[str, object]]:
        super().reset(seed=seed)
        if self.fail_at_reset:
            raise RuntimeError("no ground to stand on")
        assert self.resets == 0, "an environment that has ended must not be begun again"
        self.resets, self.left, self.taken = 1, int(self.np_random.integers(1, 30)), 0
        return np.zeros(2, np.float32), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, object]]:
        self.taken += 1
        if self.taken == self.fail_at:
            raise RuntimeError("the simulation blew up")
        assert self.taken <= self.left, "an environment that has ended must not be stepped"
        return np.full(2, 0.5, np.float32), 1.0, self.taken == self.left, False, {}


@pytest.fixture
def countdown() -> Iterator[str]:
    gym.register("Countdown-v0", Countdown)
    yield "Countdown-v0"
    gym.registry.pop("Countdown-v0")


def test_an_environment_that_has_ended_is_left_alone(countdown: str) -> None:
    result = rollout(make_policy(2, 1), countdown, episodes=6, target_return=1.0, seed=0)
    lengths = [int(np.random.default_rng(i).integers(1, 30)) for i in range(6)]
    assert result.lengths.tolist() == lengths and result.returns.tolist() == lengths


@pytest.mark.faults(24)
@pytest.mark.parametrize(
    ("failure", "message"),
    [({"fail_at": 3}, "the simulation blew up"), ({"fail_at_reset": True}, "no ground to stand on")],
)
def test_an_environment_that_raises(failure: dict[str, object], message: str) -> None:
    gym.register("Failing-v0", Countdown, kwargs=failure)
    try:
        with pytest.raises(SimulationError, match=f"Failing-v0 raised .*{message}") as caught:
            rollout(make_policy(2, 1), "Failing-v0", episodes=2, target_return=1.0, seed=0)
    finally:
        gym.registry.pop("Failing-v0")
    assert caught.value.exit_code == 5 and "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)


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


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        pytest.param({"observation": [0.0, math.nan]}, "not finite: column 1 is nan", marks=pytest.mark.defect(7)),
        pytest.param({"observation": [-math.inf, 0.0]}, "not finite: column 0 is -inf", marks=pytest.mark.defect(7)),
        pytest.param({"observation": [1e300, 0.0]}, r"not finite: column 0 is 1e\+300", marks=pytest.mark.defect(7)),
        pytest.param({"reward": math.nan}, "a reward that is not finite: nan", marks=pytest.mark.defect(7)),
        pytest.param({"reward": 1e39}, r"reward that is not finite in float32: 1e\+39", marks=pytest.mark.defect(15)),
        pytest.param({"observation": [0.0] * 3}, r"shape \(3,\), where .* \(2,\)", marks=pytest.mark.defect(16)),
        pytest.param({"observation": {"x": 1}}, "no vector of numbers but a dict", marks=pytest.mark.defect(16)),
        pytest.param({"reward": [0.5]}, r"the reward \[0.5\], which is not a number", marks=pytest.mark.defect(16)),
        pytest.param({"reward": np.ones(1)}, "the reward array.*not a number", marks=pytest.mark.defect(16)),
        pytest.param({"reward": None}, "the reward None, which is not a number", marks=pytest.mark.defect(16)),
    ],
)
def test_what_an_environment_must_not_return(returned: dict[str, object], message: str) -> None:
    """The environment is told of, with the episode and the step, and not the policy."""
    gym.register("Faulty-v0", Faulty, kwargs=returned)
    try:
        with pytest.raises(SimulationError, match=f"Faulty-v0 gave .*{message}.* .reset with seed 1, step 3.; repair"):
            rollout(make_policy(2, 1), "Faulty-v0", episodes=2, target_return=1.0, seed=0)
    finally:
        gym.registry.pop("Faulty-v0")


@pytest.mark.parametrize("reward", [1, True, np.float32(1), np.array(1.0), torch.tensor(1.0)], ids=repr)
def test_rewards_of_every_kind_of_number(reward: object) -> None:
    gym.register("Faulty-v0", Faulty, kwargs={"reward": reward})
    try:
        assert rollout(make_policy(2, 1), "Faulty-v0", episodes=2, target_return=1.0, seed=0).returns.tolist() == [9, 9]
    finally:
        gym.registry.pop("Faulty-v0")


@pytest.mark.defect(8)
@pytest.mark.parametrize("workers", [0, 2])
def test_many_episodes_are_played_in_turns(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same episodes as at once; never more simulators than AT_ONCE."""
    kept, told, acted, sizes = [Recorder(), Recorder()], [], [], []
    whole = play(episodes=7, target_return=[TARGET, 500.0], recorder=kept[0])

    def making(env_id, env_kwargs, seeds, count):
        sizes.append(len(seeds))
        return make_stepper(env_id, env_kwargs, seeds, count)

    monkeypatch.setattr(simulation, "AT_ONCE", 4)
    monkeypatch.setattr(simulation, "make_stepper", making)
    turns = play(
        episodes=7,
        target_return=[TARGET, 500.0],
        recorder=kept[1],
        workers=workers,
        on_step=lambda _, running: told.append(running),
        on_action=lambda which, _: acted.extend(which),
    )
    assert sizes == [4, 4, 4, 2]
    assert turns.returns.tolist() == whole.returns.tolist() and turns.lengths.tolist() == whole.lengths.tolist()
    assert told == sorted(told, reverse=True) and told[-1] == 0 and told[0] >= 10
    assert np.bincount(acted).tolist() == whole.lengths.tolist()
    (first, finals), (again, same) = (recorder.episodes("mine", HOPPER) for recorder in kept)
    for name in ("observations", "actions", "rewards", "offsets", "terminated"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    np.testing.assert_array_equal(finals, same)


ABANDONED = """
import sys
import numpy as np
from aaren_rl.envs.simulation.stepping import make_stepper
stepper = make_stepper("Hopper-v4", {}, list(range(4000)), 2)
print(*[worker._process.pid for worker in stepper._workers], flush=True)
stepper.reset()
"""


@pytest.mark.defect(8)
def test_workers_die_with_a_parent_that_is_killed_while_they_make_simulators() -> None:
    parent = subprocess.Popen([sys.executable, "-c", ABANDONED], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.communicate()
    time.sleep(2)
    assert len(workers) == 2 and not any(is_running(pid) for pid in workers)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_unknown_environment() -> None:
    with pytest.raises(SimulationError, match="Hoper-v4"):
        play(env_id="Hoper-v4")


@pytest.mark.faults(24)
def test_an_environment_that_raises_in_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stumbling.py").write_text(
        "from gymnasium.envs.classic_control import PendulumEnv\n"
        "class Stumbling(PendulumEnv):\n"
        "    def step(self, action):\n"
        "        raise RuntimeError('fell\\nover')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    gym.register("Stumbling-v0", "stumbling:Stumbling", max_episode_steps=5)
    try:
        with pytest.raises(SimulationError, match=r"Stumbling-v0 raised RuntimeError.*fell.*over") as caught:
            rollout(make_policy(3, 1), "Stumbling-v0", episodes=2, target_return=1.0, seed=0, workers=2)
    finally:
        gym.registry.pop("Stumbling-v0")
    assert "\n" not in str(caught.value)


def test_processes_are_not_replaced_by_this_one(countdown: str) -> None:
    with pytest.raises(SimulationError, match="no other process can make it"):
        rollout(make_policy(2, 1), countdown, episodes=2, target_return=1.0, seed=0, workers=2)


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
