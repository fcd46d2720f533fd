"""The benchmark "rollout": time and memory of an action early and late in an episode.

Acting step by step is first held against the model run in float64 over all steps at once.
"""

from __future__ import annotations

import argparse
import copy
import gc
import time
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from .agents import DecisionModel, ModelConfig, Policy, PolicyState
from .cli import Parser, positive
from .config import AGENTS
from .errors import NumericsError, UsageError
from .gather import state_bytes
from .machine import Machine, resident_bytes

Array: TypeAlias = npt.NDArray[np.float32]

OBSERVATION_DIM, ACTION_DIM = 11, 3  # Hopper's
TARGET_RETURN, RETURN_SCALE = 3600.0, 1000.0
EARLY = 10  # the step that the late one is compared with
BLOCK = 200  # actions timed at a stretch
REPEATS = 15  # blocks at either step, taken in turns
CHECKED_STEPS, TOLERANCE = 200, 1e-5

HELP = "cost of an action early and late in an episode"
DESCRIPTION = f"""\
Acts through one long episode of random observations of Hopper's size and compares time and
memory of an action at step {EARLY} with those at step STEPS: medians of {REPEATS} blocks of {BLOCK}
actions from either, taken in turns."""
EPILOG = """\
example:
  python -m aaren_rl.bench rollout --steps 100000 --json rollout.json

decision-transformer keeps every step in its cache: 10,000 steps of it take minutes."""


@dataclass(frozen=True)
class Cost:
    """Of one action, at about one environment step.

    Attributes:
        step: the environment step at which every timed block begins.
        microseconds: per action, median over the blocks.
        fastest_microseconds: per action, in the fastest block.
        state_bytes: memory that the policy's state keeps alive.
    """

    step: int
    microseconds: float
    fastest_microseconds: float
    state_bytes: int


@dataclass(frozen=True)
class RolloutResult:
    """The outcome of `rollout`.

    Attributes:
        agent: its name and size.
        early: at step 10.
        late: at the last step.
        time_ratio: median over the pairs of neighbouring blocks of late time over early time.
        state_ratio: late state bytes over early ones.
        rss_growth_bytes: of the process between the two steps; None where the system does not tell.
        checked_difference: largest difference between the actions and the float64 reference.
        machine: what it ran on.
    """

    agent: dict[str, str | int]
    early: Cost
    late: Cost
    time_ratio: float
    state_ratio: float
    rss_growth_bytes: int | None
    checked_difference: float
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
        for t in range(state.timestep, state.timestep + steps):
            _, state = policy.act(*self.step(t), state)
        return state

    def step(self, t: int) -> tuple[Array, Array]:
        """The observation of step t and the reward of the step before it, which is 0 at the first."""
        t %= len(self.rewards)
        return self.observations[t], self.rewards[t - 1] if t else np.zeros(1, np.float32)


def make_policy(config: ModelConfig) -> Policy:
    """A policy in carry mode with freshly drawn weights: they do not change the cost of an action."""
    torch.manual_seed(0)
    mean, std = torch.zeros(config.observation_dim), torch.ones(config.observation_dim)
    return Policy(DecisionModel(config), mean, std, RETURN_SCALE, "carry", 20)


@torch.no_grad()
def check(policy: Policy, episode: Episode, steps: int = CHECKED_STEPS) -> float:
    """The largest difference between acting step by step and the model run in float64 over all steps in parallel.

    Raises:
        NumericsError: it is above 1e-5, or not a number.
    """
    state, actions, to_go = policy.initial_state(1, TARGET_RETURN), [], []
    for t in range(steps):
        action, state = policy.act(*episode.step(t), state)
        actions.append(torch.tensor(action))
        to_go.append(state.return_to_go / policy.return_scale)
    acted = torch.stack(actions, 1).double()
    observations = torch.from_numpy(episode.observations[:steps]).transpose(0, 1).double()
    exact, _ = copy.deepcopy(policy.model).double()(
        (observations - policy.observation_mean) / policy.observation_std,
        acted,
        torch.stack(to_go, 1),
        torch.arange(steps).unsqueeze(0),
    )
    difference = float((acted - exact).abs().max())
    if not difference <= TOLERANCE:
        raise NumericsError(
            f"the policy's actions differ from the float64 reference by {difference:.2g} (more than {TOLERANCE:g}); "
            "no figures are given for a result that is wrong"
        )
    return difference


def measure_rollout(config: ModelConfig, agent: str, steps: int) -> RolloutResult:
    """Time and memory of an action at step 10 and at step `steps` of one episode."""
    policy, episode = make_policy(config), Episode()
    difference = check(policy, episode)
    early = episode.play(policy, policy.initial_state(1, TARGET_RETURN), EARLY)
    episode.play(policy, early, BLOCK)  # warm: allocator, caches
    before = resident_bytes()
    late = episode.play(policy, early, steps - EARLY)
    after = resident_bytes()
    blocks: tuple[list[float], list[float]] = ([], [])
    gc.disable()
    try:
        for repeat in range(REPEATS):
            # In turns, and each first every other time, so that a drift of the machine's speed cancels.
            for which in (0, 1) if repeat % 2 else (1, 0):
                began = time.perf_counter()
                episode.play(policy, (early, late)[which], BLOCK)
                blocks[which].append((time.perf_counter() - began) / BLOCK * 1e6)
    finally:
        gc.enable()
    costs = [
        Cost(state.timestep, median(times), min(times), state_bytes(state))
        for state, times in zip((early, late), blocks, strict=True)
    ]
    return RolloutResult(
        agent={"name": agent, "width": config.width, "layers": config.layers, "heads": config.heads},
        early=costs[0],
        late=costs[1],
        time_ratio=median(b / a for a, b in zip(*blocks, strict=True)),
        state_ratio=costs[1].state_bytes / costs[0].state_bytes,
        rss_growth_bytes=None if before is None or after is None else after - before,
        checked_difference=difference,
        machine=Machine.here(),
    )


def format_rollout(result: RolloutResult) -> str:
    """An aligned table with the machine's description above it."""
    costs = (result.early, result.late)
    growth = "n/a" if result.rss_growth_bytes is None else f"{result.rss_growth_bytes / 1024:,.0f} KiB"
    size = "width {width}, layers {layers}, heads {heads}".format(**result.agent)
    rows = [
        ("", *(f"step {cost.step:,}" for cost in costs), "ratio"),
        ("time per action, us", *(f"{cost.microseconds:.1f}" for cost in costs), f"{result.time_ratio:.3f}"),
        ("  fastest block, us", *(f"{cost.fastest_microseconds:.1f}" for cost in costs), ""),
        ("state, bytes", *(f"{cost.state_bytes:,}" for cost in costs), f"{result.state_ratio:.3f}"),
        ("growth of the process", "", growth, ""),
    ]
    table = [f"{name:<22}{early:>14}{late:>16}{ratio:>8}".rstrip() for name, early, late, ratio in rows]
    return "\n".join(
        [
            str(result.machine),
            f"{result.agent['name']} ({size}), carry mode, one environment",
            f"checked against float64 over {CHECKED_STEPS} steps: {result.checked_difference:.1e}",
            *table,
        ]
    )


def add_arguments(parser: Parser) -> None:
    """The benchmark's own options."""
    parser.add_argument("--steps", type=positive, default=100_000, help="the late step (default: %(default)s)")
    parser.add_argument("--agent", choices=AGENTS, default="decision-aaren", help="(default: %(default)s)")
    parser.add_argument("--width", type=positive, default=128, help="channels of a token (default: %(default)s)")
    parser.add_argument("--layers", type=positive, default=3, help="number of blocks (default: %(default)s)")
    parser.add_argument("--heads", type=positive, default=4, help="heads of a mixer (default: %(default)s)")


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Measures; returns the table to print and the figures for JSON.

    Raises:
        UsageError: no such agent can be made, or the late step is not late.
        NumericsError: the policy's actions are wrong.
    """
    if arguments.steps <= EARLY:
        raise UsageError(f"--steps: must be more than {EARLY}, not {arguments.steps}")
    sizes = {name: getattr(arguments, name) for name in ("width", "layers", "heads")}
    try:
        config = ModelConfig(OBSERVATION_DIM, ACTION_DIM, AGENTS[arguments.agent], **sizes)
    except ValueError as error:
        raise UsageError(str(error)) from error
    result = measure_rollout(config, arguments.agent, arguments.steps)
    return format_rollout(result), asdict(result)
