"""The benchmark "tree": score and time of an action with tree attention, against its budget, for every sampler.

With as many terms as tokens, every sampler is first held against softmax attention.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..agents import SAMPLERS, Policy, PolicyState, TreeConfig, tree_state, with_softmax_attention, with_tree_attention
from ..agents.fast.rollout_step import StepState
from ..agents.policy_state import Carry
from ..cli import Parser, positive, progress_bar
from ..errors import UsageError
from ..evaluate.play import EpisodePlan, score_policy
from ..evaluate.scores import mismatch
from ..machine import Machine
from ..policies.card import PolicyCard
from ..policies.folder import load_policy, read_card
from ..policies.names import asked_number
from .timing import require

BUDGETS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
CHECKED_STEPS, TOLERANCE = 30, 1e-6
SEED = 1000
COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")  # Okabe and Ito's
MARKERS = "Xos^DvP"

HELP = "tree attention: score and time of an action against the budget"
DESCRIPTION = """\
Plays episodes of a trained decision-transformer in the rollout carry with tree attention of l^E terms for l tokens,
for every budget E and every sampler, and times an action of one environment in the middle of an episode."""
EPILOG = """\
example:
  python -m aaren_rl.bench tree runs/hopper-medium/decision-transformer/seed0 --plot tree.png --json tree.json

Train the agent on long contexts: train --agent decision-transformer --context mixed --rollout carry."""


@dataclass(frozen=True)
class Point:
    """One sampler at one budget; softmax attention itself has neither.

    Attributes:
        sampler: its name, or "softmax".
        budget: E.
        score: mean over the episodes, normalised where the environment has reference returns, else the return.
        score_std: over the episodes, likewise.
        length: mean length of the episodes.
        milliseconds: of an action of one environment, median, at `TreeResult.step`.
    """

    sampler: str
    budget: float | None
    score: float
    score_std: float
    length: float
    milliseconds: float


@dataclass(frozen=True)
class TreeResult:
    """The outcome of the benchmark.

    Attributes:
        run: the policy's folder.
        env_id: the environment played in.
        normalized: whether scores are normalised; else they are returns.
        target_return: asked for.
        episodes: for each point.
        seed: of the first episode, and of the samples.
        step: environment step at which an action is timed.
        tokens: in the memory at that step.
        checked_difference: largest difference of an action, with as many terms as tokens, from softmax attention.
        points: softmax first, then budget by budget.
        machine: what it ran on.
    """

    run: str
    env_id: str
    normalized: bool
    target_return: float
    episodes: int
    seed: int
    step: int
    tokens: int
    checked_difference: float
    points: list[Point]
    machine: Machine


@torch.no_grad()
def check(policy: Policy, samplers: Sequence[str]) -> float:
    """The largest difference between the actions of softmax attention and of trees with all terms, in float64.

    Raises:
        NumericsError: it is above 1e-6, or not a number.
    """
    exact = replace(policy, model=copy.deepcopy(policy.model).double())
    generator, config = torch.Generator().manual_seed(0), policy.model.config
    sizes = (config.observation_dim, config.action_dim)
    observations, actions = (
        torch.randn(1, CHECKED_STEPS, size, generator=generator, dtype=torch.float64) for size in sizes
    )
    to_go = torch.linspace(3, 1, CHECKED_STEPS, dtype=torch.float64).unsqueeze(0)
    inputs = (observations, actions.tanh(), to_go, torch.arange(CHECKED_STEPS).unsqueeze(0))
    wanted, _ = exact.model(*inputs)
    worst = 0.0
    for sampler in samplers:
        found, _ = with_tree_attention(exact, TreeConfig(1.0, sampler, SEED)).model(*inputs)
        what = f"tree attention with as many terms as tokens ({sampler}) differs from softmax attention"
        worst = max(worst, require(what, float((found - wanted).abs().max()), TOLERANCE))
    return worst


class _Clock:
    """Times actions in the middle of an episode of random observations, whose begin is played once."""

    def __init__(self, policy: Policy, target_return: float, step: int, actions: int) -> None:
        self._actions, self._policy = actions, policy
        self._generator = torch.Generator().manual_seed(0)
        self._middle = self._play(policy, policy.initial_state(1, target_return), step)[0]

    @property
    def tokens(self) -> int:
        """In the memory."""
        return 3 * int(self._middle.timestep) - 1  # the last action is not yet in it

    def milliseconds(self, policy: Policy) -> float:
        """Of an action, median."""
        state = self._middle
        if policy is not self._policy:
            assert isinstance(state.memory, Carry) and not isinstance(state.memory.state, StepState | torch.Tensor)
            state = state._replace(memory=Carry(tree_state(policy.model, state.memory.state)))
        state, _ = self._play(policy, state, 2)  # warm
        return median(self._play(policy, state, self._actions)[1]) * 1e3

    def _play(self, policy: Policy, state: PolicyState, steps: int) -> tuple[PolicyState, list[float]]:
        seconds = []
        for _ in range(steps):
            drawn = torch.randn(1, len(policy.observation_mean), generator=self._generator)
            observation = policy.observation_mean + policy.observation_std * drawn
            began = time.perf_counter()
            _, state = policy.act(observation, torch.zeros(1), state)
            seconds.append(time.perf_counter() - began)
        return state, seconds


def measure(policy: Policy, card: PolicyCard, name: str, arguments: argparse.Namespace) -> TreeResult:
    """Checks, then scores and times softmax attention and every sampler at every budget.

    Raises:
        NumericsError: tree attention is wrong.
        SimulationError: the environment fails.
    """
    difference = check(policy, arguments.samplers)
    clock = _Clock(policy, asked_number(card.target_return), arguments.step, arguments.actions)
    asked = [None, *(TreeConfig(e, s, SEED) for e in arguments.budgets for s in arguments.samplers)]
    points = []
    with progress_bar(total=len(asked), desc="tree", unit="point", leave=False) as bar:
        for config in asked:
            acting = policy if config is None else with_tree_attention(policy, config)
            points.append(_point(acting, card, config, arguments.episodes, clock))
            bar.write(_line(points[-1]), file=sys.stderr)
            bar.update()
    return TreeResult(
        run=name,
        env_id=card.env_id,
        normalized=card.reference is not None,
        target_return=asked_number(card.target_return),
        episodes=arguments.episodes,
        seed=SEED,
        step=arguments.step,
        tokens=clock.tokens,
        checked_difference=difference,
        points=points,
        machine=Machine.here(),
    )


def _point(policy: Policy, card: PolicyCard, config: TreeConfig | None, episodes: int, clock: _Clock) -> Point:
    milliseconds = clock.milliseconds(policy)
    (score,) = score_policy(policy, card, EpisodePlan(card.weights, episodes, [card.target_return], SEED))
    spread = score.return_std if score.normalized_score_std is None else score.normalized_score_std
    name, budget = ("softmax", None) if config is None else (config.sampler, config.budget)
    return Point(name, budget, score.headline, spread, score.length_mean, milliseconds)


def _line(point: Point) -> str:
    budget = "-" if point.budget is None else f"{point.budget:g}"
    return (
        f"{point.sampler:<12}{budget:>6}{point.score:>9.1f}{point.score_std:>7.1f}{point.length:>9.1f}"
        f"{point.milliseconds:>12.2f}"
    )


def format_tree(result: TreeResult) -> str:
    """A table with how it was made above it."""
    score = "score" if result.normalized else "return"
    return "\n".join(
        [
            str(result.machine),
            f"{result.run}: {result.env_id}, carry, asked {result.target_return:g}, {result.episodes} episodes from "
            f"seed {result.seed}",
            f"time of an action of one environment at step {result.step} ({result.tokens:,} tokens)",
            f"as many terms as tokens: within {result.checked_difference:.1e} of softmax attention",
            f"{'sampler':<12}{'E':>6}{score:>9}{'+-':>7}{'length':>9}{'action, ms':>12}",
            *(_line(point) for point in result.points),
        ]
    )


def plot(figures: dict[str, Any]) -> Figure:
    """Score and time of an action against E, a line a sampler; softmax attention is a dashed line."""
    points = [Point(**point) for point in figures["points"]]
    # Not by way of pyplot, which would keep every figure and choose a window system.
    figure = Figure(figsize=(10.5, 4.0), layout="constrained")
    scores, times = figure.subplots(1, 2)
    _panel(scores, points, "score")
    _panel(times, points, "milliseconds")
    scores.set_ylabel("normalised score" if figures["normalized"] else "return of an episode")
    times.set_ylabel(f"time of an action at {figures['tokens']:,} tokens (ms)")
    times.set_yscale("log")
    scores.legend(frameon=False, fontsize="small")
    return figure


def _panel(axes: Axes, points: Sequence[Point], field: str) -> None:
    for point in points:
        if point.budget is None:
            axes.axhline(getattr(point, field), color="0.35", linestyle="--", label="softmax", zorder=1)
    for name, color, marker in zip(SAMPLERS, COLORS, MARKERS, strict=True):
        own = sorted((p.budget, getattr(p, field)) for p in points if p.sampler == name and p.budget is not None)
        if own:
            axes.plot(*zip(*own, strict=True), color=color, marker=marker, markersize=4, label=name)
    axes.set_xlabel("budget E: $l^E$ terms for $l$ tokens")
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)


def _budget(text: str) -> float:
    """An argument that is a budget."""
    try:
        return TreeConfig(float(text)).budget
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_arguments(parser: Parser) -> None:
    """The benchmark's own options."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder of a decision-transformer")
    parser.add_argument("--budgets", type=_budget, nargs="+", default=BUDGETS, metavar="E", help="(default: 0.3 to 1)")
    parser.add_argument(
        "--samplers", choices=SAMPLERS, nargs="+", default=tuple(SAMPLERS), metavar="NAME", help=", ".join(SAMPLERS)
    )
    parser.add_argument("--episodes", type=positive, default=5, help="for each point (default: %(default)s)")
    parser.add_argument("--step", type=positive, default=500, help="where an action is timed (default: %(default)s)")
    parser.add_argument("--actions", type=positive, default=20, help="timed for each point (default: %(default)s)")


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Measures; returns the table to print and the figures for JSON.

    Raises:
        UsageError: tree attention cannot be used with this policy.
        CheckpointError: there is no policy in the run.
        NumericsError: tree attention is wrong.
    """
    card, policy = read_card(arguments.run), with_softmax_attention(load_policy(arguments.run, rollout="carry"))
    try:
        with_tree_attention(policy, TreeConfig())
    except ValueError as error:
        raise UsageError(f"{arguments.run}: {error}") from error
    note = mismatch(card.context, card.context_length, "carry")
    result = measure(policy, card, str(arguments.run), arguments)
    return "\n".join([*([note] if note else []), format_tree(result)]), asdict(result)
