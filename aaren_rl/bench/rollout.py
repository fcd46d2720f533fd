"""The benchmark "rollout": time and memory of an action against the environment step, for every rollout mode.

Every mode is first held against the model in float64, run in parallel over the steps that it looks back on.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from ..agents import DecisionModel, ModelConfig, Policy, PolicyState
from ..cli import Parser, positive
from ..errors import UsageError
from ..machine import Machine, resident_bytes, state_bytes
from ..policies.names import AGENTS, label
from ..train.settings import build_config, load_preset
from .timing import CPU, Work, add_model_size, in_turns, model_size, ratio, require, without_collection

Array: TypeAlias = npt.NDArray[np.float32]

OBSERVATION_DIM, ACTION_DIM = 11, 3  # Hopper's
TARGET_RETURN, RETURN_SCALE = 3600.0, 1000.0
CONTEXT = 20  # K of "rolling" and "window", in steps
MODES = ("decision-aaren:carry", "decision-aaren:rolling", "decision-transformer:carry", "decision-transformer:window")
EARLY = 10  # the step that all later ones are compared with
CACHED = 1000  # the last step of those whose state grows: their time grows with its square
BLOCK = 100  # actions timed at a stretch
REPEATS = 11  # blocks at every step, taken in turns
CHECKED_STEPS, TOLERANCE = 200, 1e-5
_COLOURS = ("#0072B2", "#56B4E9", "#E69F00", "#D55E00", "#009E73", "#CC79A7")  # Okabe and Ito's

HELP = "cost of an action against the environment step, for every rollout mode"
DESCRIPTION = f"""\
Acts through one long episode of random observations of Hopper's size and times an action at steps {EARLY}, 100, ...,
STEPS: medians of {REPEATS} blocks of {BLOCK} actions, taken in turns over all modes and steps. A mode whose state grows
(decision-transformer:carry, a cache of keys and values) is followed to step {CACHED:,} at most."""
EPILOG = """\
example:
  python -m aaren_rl.bench rollout --steps 100000 --plot rollout.png"""


@dataclass(frozen=True)
class Cost:
    """Of one action, at about one environment step.

    Attributes:
        step: the environment step at which every timed block begins.
        microseconds: per action, median over the blocks.
        fastest_microseconds: per action, in the fastest block.
        ratio: median over the repeats of this time over the mode's own at step 10.
        state_bytes: memory that the policy's state keeps alive.
    """

    step: int
    microseconds: float
    fastest_microseconds: float
    ratio: float
    state_bytes: int


@dataclass(frozen=True)
class Mode:
    """An agent and the rollout mode that it acts in.

    Attributes:
        name: "agent:rollout".
        costs: at rising steps.
        share: median over the repeats of its time at step 10 over that of the last mode.
        growth_bytes: of the process between the first and the last step; None where the system does not tell.
        checked_difference: largest difference between the actions and the float64 reference.
    """

    name: str
    costs: list[Cost]
    share: float
    growth_bytes: int | None
    checked_difference: float


@dataclass(frozen=True)
class RolloutResult:
    """The outcome of `measure_rollout`: all modes are of one size."""

    width: int
    layers: int
    heads: int
    modes: list[Mode]
    machine: Machine


class Episode:
    """An endless episode with observations and rewards drawn at random; no environment takes time or memory."""

    def __init__(self, length: int = 1024) -> None:
        """Draws `length` steps, which then repeat."""
        rng = np.random.default_rng(0)
        self.observations: Array = rng.standard_normal((length, 1, OBSERVATION_DIM)).astype(np.float32)
        self.rewards: Array = rng.uniform(0, 4, (length, 1)).astype(np.float32)

    def play(self, policy: Policy, state: PolicyState, steps: int) -> PolicyState:
        """Takes `steps` actions from `state`."""
        for t in range(int(state.timestep), int(state.timestep) + steps):
            _, state = policy.act(*self.step(t), state)
        return state

    def step(self, t: int) -> tuple[Array, Array]:
        """The observation of step t and the reward of the step before it, which is 0 at the first."""
        t %= len(self.rewards)
        return self.observations[t], self.rewards[t - 1] if t else np.zeros(1, np.float32)


def model_config(agent: str, width: int, layers: int, heads: int) -> ModelConfig:
    """An agent's model as `train` makes it, for the sizes of the benchmark.

    Raises:
        ValueError: no such agent can be made.
    """
    tokens = build_config(agent, 0, load_preset("default", agent)).network.tokens_per_step
    return ModelConfig(OBSERVATION_DIM, ACTION_DIM, AGENTS[agent], width, layers, heads, tokens_per_step=tokens)


def make_policy(config: ModelConfig, rollout: str = "carry") -> Policy:
    """A policy with freshly drawn weights: they do not change the cost of an action."""
    torch.manual_seed(0)
    mean, std = torch.zeros(config.observation_dim), torch.ones(config.observation_dim)
    return Policy(DecisionModel(config), mean, std, RETURN_SCALE, rollout, CONTEXT)


def begin(rollout: str, t: int) -> int:
    """The first of the steps that the action of step t is computed from."""
    half = CONTEXT // 2
    return {"carry": 0, "rolling": max(0, t // half - 1) * half, "window": max(0, t + 1 - CONTEXT)}[rollout]


@torch.no_grad()
def check(policy: Policy, episode: Episode, steps: int = CHECKED_STEPS) -> float:
    """The largest difference between acting step by step and the model run in float64 over those steps in parallel.

    Raises:
        NumericsError: it is above 1e-5, or not a number.
    """
    state, actions, to_go = policy.initial_state(1, TARGET_RETURN), [], []
    for t in range(steps):
        action, state = policy.act(*episode.step(t), state)
        actions.append(torch.tensor(action))
        to_go.append(torch.from_numpy(state.return_to_go / policy.return_scale))
    observations = torch.from_numpy(episode.observations[:steps]).transpose(0, 1).double()
    tokens = (
        (observations - policy.observation_mean) / policy.observation_std,
        torch.stack(actions, 1).double(),
        torch.stack(to_go, 1),
        torch.arange(steps).unsqueeze(0),
    )
    exact, begins = copy.deepcopy(policy.model).double(), [begin(policy.rollout, t) for t in range(steps)]
    differences = []
    for first in sorted(set(begins)):
        at = [t for t in range(steps) if begins[t] == first]
        wanted, _ = exact(*(part[:, first : at[-1] + 1] for part in tokens))
        differences.append((tokens[1][:, at] - wanted[:, [t - first for t in at]]).abs().max())
    difference = float(torch.stack(differences).max())  # not a number if one is not
    return require("the policy's actions differ from the float64 reference", difference, TOLERANCE)


class _Probe:
    """One mode, and its states at some steps of the episode."""

    def __init__(self, name: str, policy: Policy, episode: Episode, stops: list[int]) -> None:
        self.name, self._policy, self._episode = name, policy, episode
        self.difference = check(policy, episode)
        self.states = [episode.play(policy, policy.initial_state(1, TARGET_RETURN), EARLY)]
        episode.play(policy, self.states[0], BLOCK)  # warm: allocator, caches
        before = resident_bytes()
        for stop in stops:
            self._reach(stop)
        after = resident_bytes()
        self.growth = None if before is None or after is None else after - before
        self.times: list[list[float]] = []  # of an action, in microseconds: block by block of every state

    def _reach(self, stop: int) -> None:
        newest = self.states[-1]
        # At step 100 every window is full: what grows after it grows on.
        if stop > CACHED and state_bytes(newest) > state_bytes(self.states[1]):
            return
        if self._policy.rollout == "window":  # nothing before the last K steps is in the state: they are skipped
            newest = newest._replace(timestep=stop - CONTEXT)
        self.states.append(self._episode.play(self._policy, newest, stop - int(newest.timestep)))

    def blocks(self) -> list[Work]:
        """What is timed: a block of actions from every state."""
        return [partial(self._episode.play, self._policy, state, BLOCK) for state in self.states]

    def result(self, last: _Probe) -> Mode:
        """Its figures, beside those of another."""
        costs = [
            Cost(int(state.timestep), median(times), min(times), ratio(times, self.times[0]), state_bytes(state))
            for state, times in zip(self.states, self.times, strict=True)
        ]
        return Mode(self.name, costs, ratio(self.times[0], last.times[0]), self.growth, self.difference)


def measure_rollout(modes: list[str], steps: int, width: int, layers: int, heads: int) -> RolloutResult:
    """Time and memory of an action at steps 10, 100, ..., `steps` of one episode.

    Raises:
        ValueError: no such agent can be made.
        NumericsError: a policy's actions are wrong.
    """
    stops = sorted({s for s in (100, 1000, 10_000, 100_000, CACHED) if s < steps} | {steps})
    episode, probes = Episode(), []
    for name in modes:
        agent, rollout = name.split(":")
        probes.append(_Probe(name, make_policy(model_config(agent, width, layers, heads), rollout), episode, stops))
    works = {(probe, which): work for probe in probes for which, work in enumerate(probe.blocks())}
    with without_collection():
        times = in_turns(works, repeats=REPEATS, device=CPU, budget=math.inf, to_and_fro=True)
    for (probe, _), taken in times.items():
        probe.times.append([seconds / BLOCK * 1e6 for seconds in taken])
    return RolloutResult(width, layers, heads, [probe.result(probes[-1]) for probe in probes], Machine.here())


def format_rollout(result: RolloutResult) -> str:
    """An aligned table with the machine's description above it."""
    checked = max(mode.checked_difference for mode in result.modes)
    lines = [
        str(result.machine),
        f"width {result.width}, layers {result.layers}, heads {result.heads}; one environment, K = {CONTEXT}",
        f"checked against float64 over {CHECKED_STEPS} steps: {checked:.1e}",
        f"{'':<28}{'step':>10}{'us/action':>12}{'fastest':>10}{'of step ' + str(EARLY):>12}{'state, bytes':>15}",
    ]
    for mode in result.modes:
        lines += [
            f"{mode.name:<28}{cost.step:>10,}{cost.microseconds:>12.1f}{cost.fastest_microseconds:>10.1f}"
            f"{cost.ratio:>12.3f}{cost.state_bytes:>15,}"
            for cost in mode.costs
        ]
        grown = "n/a" if mode.growth_bytes is None else f"{mode.growth_bytes / 1024:,.0f} KiB"
        of = "" if mode is result.modes[-1] else f"; at step {EARLY} {mode.share:.3f} of {result.modes[-1].name}'s time"
        lines.append(f"  the process grew by {grown}{of}")
    return "\n".join(lines)


def plot(figures: dict[str, Any]) -> Figure:
    """Time and memory of an action against the environment step, both logarithmic."""
    figure = Figure(figsize=(7.6, 3.5), layout="constrained")
    elapsed, memory = figure.subplots(1, 2)
    for mode, color in zip(figures["modes"], itertools.cycle(_COLOURS)):
        at = [cost["step"] for cost in mode["costs"]]
        agent, _, rollout = mode["name"].partition(":")
        line: dict[str, Any] = {"color": color, "marker": "o", "markersize": 4}
        elapsed.plot(at, [cost["microseconds"] for cost in mode["costs"]], label=f"{label(agent)}, {rollout}", **line)
        memory.plot(at, [cost["state_bytes"] for cost in mode["costs"]], **line)
    elapsed.set(title="time of an action (µs)")
    memory.set(title="memory of the state (bytes)")
    for axes, decades in ((elapsed, (1, 2, 5)), (memory, (1,))):
        axes.set(xlabel="environment step", xscale="log", yscale="log")
        axes.yaxis.set_major_locator(LogLocator(subs=decades))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            axis.set_minor_formatter(NullFormatter())
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, fontsize="small", frameon=False)
    title = "width {width}, layers {layers}, heads {heads}, one environment".format(**figures)
    figure.suptitle(title, fontsize="medium")
    return figure


def add_arguments(parser: Parser) -> None:
    """The benchmark's own options."""
    every = [f"{agent}:{rollout}" for agent in AGENTS for rollout in ("carry", "rolling", "window")]
    parser.add_argument(
        "--modes", nargs="+", choices=every, metavar="AGENT:ROLLOUT", default=list(MODES), help="(default: %(default)s)"
    )
    parser.add_argument("--steps", type=positive, default=100_000, help="the last step (default: %(default)s)")
    add_model_size(parser)


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Measures; returns the table to print and the figures for JSON.

    Raises:
        UsageError: no such agent can be made, or the last step is not late.
        NumericsError: a policy's actions are wrong.
    """
    if arguments.steps < 2 * CONTEXT:
        raise UsageError(f"--steps: must be at least {2 * CONTEXT}, not {arguments.steps}")
    try:
        result = measure_rollout(arguments.modes, arguments.steps, **model_size(arguments))
    except ValueError as error:
        raise UsageError(str(error)) from error
    return format_rollout(result), asdict(result)
