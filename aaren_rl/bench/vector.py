"""The benchmark "vector": environments whose episodes end at different times, against one batch at one step.

First every action is held against those of the episodes played apart, which must be the same to the last bit; of
windows, whose first steps have fewer places in a batch that is all at one step, to 1e-5.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from ..agents import ModelConfig, Policy
from ..cli import Parser, positive
from ..errors import UsageError
from ..machine import Machine
from ..policies.names import AGENTS
from ..vector import Cohort, VectorPolicy
from .rollout import ACTION_DIM, CONTEXT, OBSERVATION_DIM, TARGET_RETURN, make_policy
from .timing import CPU, add_model_size, in_turns, model_size, ratio, require, without_collection

MODES = ("decision-aaren:carry", "decision-aaren:rolling", "decision-aaren-rsa:carry", "decision-transformer:window")
SHORTEST, LONGEST = 20, 300  # steps of an episode, about hopper's
BLOCK = 10  # calls timed at a stretch
REPEATS = 15
CHECKED_STEPS = 30

HELP = "environments whose episodes end at different times, against one batch"
DESCRIPTION = f"""\
Acts by aaren_rl.vector.VectorPolicy in N environments whose episodes take {SHORTEST} to {LONGEST} steps, drawn at
random, and in one batch of as many that are all at one step: medians of {REPEATS} blocks of {BLOCK} calls, taken in
turns. Ends fall into the blocks as they come."""
EPILOG = """\
example:
  python -m aaren_rl.bench vector --envs 64"""


@dataclass(frozen=True)
class Mode:
    """An agent and the rollout mode that it acts in.

    Attributes:
        name: "agent:rollout".
        begun_apart: steps at which the episodes that go on have begun, when the measurement begins.
        calls: of the policy, for one step of all environments.
        milliseconds: of one step of all environments.
        batch_milliseconds: of one batch at one step.
        ratio: median over the repeats of the one over the other.
    """

    name: str
    begun_apart: int
    calls: int
    milliseconds: float
    batch_milliseconds: float
    ratio: float


class Episodes:
    """Observations, rewards and ends of N environments, drawn at random; they repeat after T steps."""

    def __init__(self, envs: int, steps: int = 2 * LONGEST) -> None:
        """Draws them; every environment begins an episode at step 0."""
        rng = np.random.default_rng(0)
        self.observations = rng.standard_normal((steps, envs, OBSERVATION_DIM)).astype(np.float32)
        self.rewards = rng.uniform(0, 4, (steps, envs)).astype(np.float32)
        self.started = np.zeros((steps, envs), bool)
        for e in range(envs):
            ends = rng.integers(SHORTEST, LONGEST, steps // SHORTEST).cumsum()
            self.started[[0, *ends[ends < steps]], e] = True

    def step(self, t: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Observations, rewards and starts of step t."""
        t %= len(self.started)
        return self.observations[t], self.rewards[t], self.started[t]


class _Together:
    """All environments by `VectorPolicy`."""

    def __init__(self, policy: Policy, episodes: Episodes, envs: int) -> None:
        self._agent, self._episodes = VectorPolicy(policy, n_envs=envs, target_return=TARGET_RETURN), episodes
        self.time = 0
        self.state: tuple[Cohort, ...] = ()
        self.actions = np.zeros((envs, ACTION_DIM), np.float32)

    def play(self, steps: int) -> None:
        """Some steps more."""
        for _ in range(steps):
            self.actions, self.state = self._agent.act(*self._episodes.step(self.time), self.state or None)
            self.time += 1


class _OneBatch:
    """As many environments at one step."""

    def __init__(self, policy: Policy, episodes: Episodes, envs: int) -> None:
        self._policy, self._episodes = policy, episodes
        self.time, self.state = 0, policy.initial_state(envs, TARGET_RETURN)

    def play(self, steps: int) -> None:
        """Some steps more."""
        for _ in range(steps):
            observations, rewards, _ = self._episodes.step(self.time)
            _, self.state = self._policy.act(observations, rewards, self.state)
            self.time += 1


def check(policy: Policy, episodes: Episodes, envs: int, steps: int = CHECKED_STEPS) -> None:
    """Holds the actions of the first steps against the episodes played apart, each in a batch of its own.

    Raises:
        NumericsError: one bit differs, or, of windows, more.
    """
    together, alone = _Together(policy, episodes, envs), policy.initial_state(envs, TARGET_RETURN)
    apart = {0: (np.arange(envs), alone)}  # by the step at which they began
    most = 1e-5 if policy.rollout == "window" else 0.0
    for t in range(steps):
        observations, rewards, started = episodes.step(t)
        together.play(1)
        if t and started.any():
            apart[t] = (np.flatnonzero(started), policy.initial_state(envs, TARGET_RETURN))
        for begin, (mine, state) in apart.items():
            going = ~episodes.started[begin + 1 : t + 1, mine].any(0)
            acted, after = policy.act(observations, np.zeros_like(rewards) if t == begin else rewards, state)
            apart[begin] = mine, after
            wrong = np.abs(acted[mine[going]] - together.actions[mine[going]]).max(initial=0)
            require("the actions differ from those of the episodes played apart", float(wrong), most)


def measure_vector(modes: list[str], envs: int, width: int, layers: int, heads: int) -> list[Mode]:
    """Time of a step of environments that are at different steps of their episodes, beside that of one batch.

    Raises:
        ValueError: no such agent can be made.
        NumericsError: a policy's actions are wrong.
    """
    episodes, pairs = Episodes(envs), {}
    for name in modes:
        agent, rollout = name.split(":")
        policy = make_policy(ModelConfig(OBSERVATION_DIM, ACTION_DIM, AGENTS[agent], width, layers, heads), rollout)
        check(policy, episodes, envs)
        pairs[name] = _Together(policy, episodes, envs), _OneBatch(policy, episodes, envs)
        pairs[name][0].play(LONGEST)
        pairs[name][1].play(2 * CONTEXT)
    begun = np.array([np.flatnonzero(column)[-1] for column in episodes.started[:LONGEST].T])
    calls = {name: len(together.state) for name, (together, _) in pairs.items()}
    works = {(name, i): partial(pair[i].play, BLOCK) for name, pair in pairs.items() for i in (0, 1)}
    with without_collection():
        times = in_turns(works, repeats=REPEATS, device=CPU, budget=math.inf, to_and_fro=True)
    found = []
    for name in modes:
        mixed, batch = ([1e3 * seconds / BLOCK for seconds in times[name, i]] for i in (0, 1))
        found.append(Mode(name, len(np.unique(begun)), calls[name], median(mixed), median(batch), ratio(mixed, batch)))
    return found


def add_arguments(parser: Parser) -> None:
    """The benchmark's own options."""
    every = [f"{agent}:{rollout}" for agent in AGENTS for rollout in ("carry", "rolling", "window")]
    parser.add_argument(
        "--modes", nargs="+", choices=every, metavar="AGENT:ROLLOUT", default=list(MODES), help="(default: %(default)s)"
    )
    parser.add_argument("--envs", type=positive, default=64, help="environments (default: %(default)s)")
    add_model_size(parser)


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Measures; returns the table to print and the figures for JSON.

    Raises:
        UsageError: no such agent can be made.
        NumericsError: a policy's actions are wrong.
    """
    size = model_size(arguments)
    try:
        modes = measure_vector(arguments.modes, arguments.envs, **size)
    except ValueError as error:
        raise UsageError(str(error)) from error
    machine, envs = Machine.here(), arguments.envs
    lines = [
        str(machine),
        "width {width}, layers {layers}, heads {heads}; ".format(**size) + f"{envs} environments, K = {CONTEXT}",
        f"begun at {modes[0].begun_apart} different steps; actions equal those of the episodes played apart",
        f"{'':<28}{'calls':>8}{'ms/step':>10}{'one batch':>12}{'ratio':>8}",
    ]
    lines += [
        f"{mode.name:<28}{mode.calls:>8}{mode.milliseconds:>10.2f}{mode.batch_milliseconds:>12.2f}{mode.ratio:>8.2f}"
        for mode in modes
    ]
    return "\n".join(lines), {
        "envs": envs,
        **size,
        "modes": [asdict(mode) for mode in modes],
        "machine": asdict(machine),
    }
