"""The benchmark "learning": held-out action error against seconds and updates, recipes side by side.

What a user waits for is a policy that imitates, so this is the headline, and updates a second are not. The error of
every recipe is that of its policy played step by step over the same held-out episodes, which is first held against the
model's own on one of them in parallel.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from ..agents import Policy
from ..cli import Parser, positive, progress_bar
from ..envs import TASKS, D4RLTask, Episodes, load_episodes
from ..errors import NumericsError, UsageError
from ..evaluate.held_out import HeldOut, action_error, hold_out
from ..machine import Machine
from ..policies.names import AGENTS, MARKS, label
from ..train.acceleration import keep_freed_memory
from ..train.batches import StepData
from ..train.settings import build_config, load_preset, override, preset_names
from ..train.trainer import Stopwatch, Trainer

RECIPES = ("default:decision-aaren", "default:decision-aaren-rsa", "default:decision-transformer", "v0:decision-aaren")
POINTS = 7  # evaluations of a recipe, the last after all its updates
FIRST = 1 / 16  # of the updates, at the first evaluation
HELD_OUT = 0.05  # of the episodes
TURN = 25  # updates of a recipe before it is the next one's turn: all see the same machine
TOLERANCE = 1e-3  # of the error, relative: played step by step against in parallel

HELP = "held-out action error against seconds and updates, recipes side by side"
DESCRIPTION = """\
Trains recipes (PRESET:AGENT) in turns, some updates each, on one data set less its held-out episodes, and prints the
error of the averaged weights on those: played step by step in the recipe's rollout mode, with each episode's own return
asked for. Seconds are those of the updates alone. "Above the floor" leaves out the variance of the behaviour's own
noise, known exactly for local sets; the last columns say what it took to come down to the error asked for."""
EPILOG = """\
example:
  python -m aaren_rl.bench learning --env hopper-medium --updates 1500 --plot learning.png"""


@dataclass(frozen=True)
class Point:
    """The error after some updates, which took some seconds."""

    updates: int
    seconds: float
    error: float
    low: float
    high: float


@dataclass(frozen=True)
class Curve:
    """A recipe's errors; `seconds_to` and `updates_to` the error asked for, None where it did not come down to it."""

    recipe: str
    points: list[Point]
    seconds_to: float | None
    updates_to: float | None


@dataclass(frozen=True)
class LearningResult:
    """The outcome of `run`: errors are in units in which actions span [-1, 1].

    Attributes:
        env: the task.
        source: of its data.
        steps: trained on.
        held_out_episodes: not trained on.
        held_out_steps: likewise.
        floor: variance of the behaviour's own noise on the held-out steps; None where it is not known.
        trivial: the error of the training data's mean action: what a policy that learnt nothing has.
        error: asked for.
        seed: of weights, batches and of which episodes are held out.
        curves: by recipe.
        machine: what it ran on.
        threads: of torch.
    """

    env: str
    source: str
    steps: int
    held_out_episodes: int
    held_out_steps: int
    floor: float | None
    trivial: float
    error: float
    seed: int
    curves: list[Curve]
    machine: Machine
    threads: int


class Learner:
    """One recipe in training.

    Args:
        recipe: PRESET:AGENT.
        task: what is learnt.
        training: the episodes to learn from.
        updates: of the whole training, which the schedule of the learning rate needs to know.
        seed: of weights and batches.
    """

    def __init__(self, recipe: str, task: D4RLTask, training: Episodes, updates: int, seed: int) -> None:
        """Draws weights."""
        preset, _, agent = recipe.partition(":")
        asked = override(load_preset(preset, agent), {"optimizer": {"updates": updates}, "data": {"env": task.name}})
        self.recipe, self.task, self.config = recipe, task, build_config(agent, seed, asked)
        data = StepData(training, self.config.data.return_scale)
        self.trainer = Trainer(self.config, data, training.action_dim, task.horizon)
        self.watch, self.points = Stopwatch(), list[Point]()

    def train(self, updates: int) -> None:
        """Some more updates."""
        with self.watch:
            for _ in range(updates):
                self.trainer.step()

    def policy(self) -> Policy:
        """What the averaged weights would act as now."""
        data, how = self.trainer.data, self.config.evaluation
        return Policy(
            self.trainer.average,
            data.observation_mean,
            data.observation_std,
            self.config.data.return_scale,
            how.rollout,
            how.rollout_context,
        )

    def evaluate(self, held_out: HeldOut) -> None:
        """Adds a point."""
        error = action_error(self.policy(), held_out)
        self.points.append(Point(self.trainer.update, self.watch.seconds, error.mean, *error.interval()))


def checkpoints(updates: int) -> list[int]:
    """Numbers of updates after which errors are taken, evenly spaced in their logarithm."""
    spaced = np.geomspace(max(1, updates * FIRST), updates, POINTS)
    return sorted({round(number) for number in spaced})


def measure_learning(
    env: str, source: str, recipes: Sequence[str], *, updates: int, seed: int, error: float | None
) -> LearningResult:
    """Trains all recipes in turns.

    Args:
        env: a task of the table.
        source: of its data, see `load_episodes`.
        recipes: PRESET:AGENT each.
        updates: of every recipe.
        seed: of weights, batches and of which episodes are held out.
        error: to come down to; None: the last one of the last recipe.

    Raises:
        UsageError: too few episodes to hold any out.
        NumericsError: an error played step by step is not the model's own.
    """
    task, episodes = TASKS[env], load_episodes(env, source)
    training, held_out = hold_out(episodes, HELD_OUT, seed)
    if held_out is None:
        raise UsageError(f"{env}: {len(episodes)} episodes are too few to hold any out")
    keep_freed_memory()
    learners = [Learner(recipe, task, training, updates, seed) for recipe in recipes]
    _check(learners[0], held_out.episodes)
    with progress_bar(total=updates * len(learners), desc=f"{env}, {len(learners)} recipes", unit="update") as bar:
        for until in checkpoints(updates):
            while (done := learners[0].trainer.update) < until:
                for learner in learners:
                    learner.train(min(TURN, until - done))
                    bar.update(min(TURN, until - done))
            for learner in learners:
                learner.evaluate(held_out)
    wanted = learners[-1].points[-1].error if error is None else error
    return LearningResult(
        env=env,
        source=episodes.source,
        steps=training.n_steps,
        held_out_episodes=len(held_out.episodes),
        held_out_steps=held_out.episodes.n_steps,
        floor=held_out.floor,
        trivial=float(np.square(held_out.episodes.actions - training.actions.mean(0)).mean()),
        error=wanted,
        seed=seed,
        curves=[_curve(learner, wanted) for learner in learners],
        machine=Machine.here(),
        threads=torch.get_num_threads(),
    )


def _check(learner: Learner, episodes: Episodes) -> None:
    """Holds the error on one episode, played step by step, against the model's own in parallel."""
    shortest = episodes.take([int(episodes.lengths.argmin())])
    policy = learner.policy()
    played = action_error(policy, HeldOut(shortest)).mean
    data = learner.trainer.data
    to_go = torch.from_numpy(shortest.returns_to_go()).unsqueeze(0) / learner.config.data.return_scale
    observed = (torch.from_numpy(shortest.observations) - data.observation_mean) / data.observation_std
    actions, times = torch.from_numpy(shortest.actions), torch.from_numpy(shortest.timesteps())
    reach = policy.context_length if policy.rollout == "window" else len(actions)
    total = 0.0
    for t in range(len(actions)):
        part = slice(max(0, t + 1 - reach), t + 1)
        with torch.no_grad():
            found, _ = policy.model(*(x[None, part] for x in (observed, actions, to_go[0], times)))
        total += float((found[0, -1] - actions[t]).square().mean())
    parallel = total / len(actions)
    if not abs(played - parallel) <= TOLERANCE * parallel:
        raise NumericsError(f"{learner.recipe}: the error played step by step is {played}, in parallel {parallel}")


def _curve(learner: Learner, wanted: float) -> Curve:
    return Curve(
        learner.recipe,
        learner.points,
        reached([(point.seconds, point.error) for point in learner.points], wanted),
        reached([(point.updates, point.error) for point in learner.points], wanted),
    )


def reached(points: Sequence[tuple[float, float]], wanted: float) -> float | None:
    """Where a curve of (cost, error) first comes down to an error, both logarithmic between points; None: nowhere."""
    for k, (cost, error) in enumerate(points):
        if error <= wanted:
            if k == 0:
                return cost
            before, above = points[k - 1]
            share = np.log(above / wanted) / np.log(above / error)
            return float(before * (cost / before) ** share)
    return None


def format_learning(result: LearningResult) -> str:
    """The table to print."""
    floor = "" if result.floor is None else f", floor {result.floor:.4f}"
    lines = [
        str(result.machine),
        f"{result.env} ({MARKS[result.source]}), {result.steps:,} steps; error on {result.held_out_episodes} held-out "
        f"episodes, {result.held_out_steps:,} steps; seed {result.seed}",
        f"error of the data's mean action {result.trivial:.4f}{floor}; to come down to: {result.error:.4f}",
        "",
        f"{'recipe':<30}{'updates':>9}{'seconds':>9}{'error':>9}{'interval':>19}{'above floor':>13}",
    ]
    for curve in result.curves:
        for point in curve.points:
            above = "-" if result.floor is None else f"{point.error - result.floor:.4f}"
            interval = f"[{point.low:.4f}, {point.high:.4f}]"
            lines.append(
                f"{curve.recipe:<30}{point.updates:>9,}{point.seconds:>9.1f}{point.error:>9.4f}{interval:>19}{above:>13}"
            )
    last = result.curves[-1]
    lines += [
        "",
        f"{'to an error of ' + format(result.error, '.4f'):<30}{'updates':>9}{'seconds':>9}{'of ' + last.recipe:>24}",
    ]
    for curve in result.curves:
        if curve.seconds_to is None or curve.updates_to is None:
            lines.append(f"{curve.recipe:<30}{'-':>9}{'-':>9}{'-':>24}")
            continue
        share = "-" if last.seconds_to is None else f"{curve.seconds_to / last.seconds_to:.3f}"
        lines.append(f"{curve.recipe:<30}{curve.updates_to:>9,.0f}{curve.seconds_to:>9.1f}{share:>24}")
    return "\n".join(lines)


def plot(figures: dict[str, Any]) -> Figure:
    """Error against seconds and against updates, above the floor where it is known; all axes logarithmic."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    floor = figures["floor"] or 0.0
    panels = figure.subplots(1, 2, sharey=True)
    for axes, cost in zip(panels, ("seconds", "updates"), strict=True):
        for k, curve in enumerate(figures["curves"]):
            at = [point[cost] for point in curve["points"]]
            errors = [point["error"] - floor for point in curve["points"]]
            preset, _, agent = curve["recipe"].partition(":")
            name = label(agent) if preset == "default" else f"{label(agent)}, preset {preset}"
            axes.plot(at, errors, marker=".", color=f"C{k}", label=name)
        axes.axhline(figures["error"] - floor, color="0.5", linewidth=0.8, linestyle="--")
        axes.set(xscale="log", yscale="log", xlabel=f"{cost} of training")
        axes.grid(alpha=0.3, which="both")
    panels[0].set_ylabel("held-out action error" + (" above the floor" if figures["floor"] else ""))
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2, fontsize="small")
    figure.suptitle(f"{figures['env']} ({figures['source']}), {figures['steps']:,} steps", fontsize="medium")
    return figure


def add_arguments(parser: Parser) -> None:
    """The benchmark's own options."""
    every = [f"{preset}:{agent}" for preset in preset_names() for agent in AGENTS]
    parser.add_argument("--env", choices=TASKS, metavar="NAME", default="hopper-medium", help="(default: %(default)s)")
    parser.add_argument("--source", metavar="NAME", default="auto", help="of the data, as train's (default: auto)")
    parser.add_argument(
        "--recipes",
        nargs="+",
        choices=every,
        metavar="PRESET:AGENT",
        default=list(RECIPES),
        help="(default: %(default)s)",
    )
    parser.add_argument("--updates", type=positive, default=1500, help="of every recipe (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and held-out episodes (default: 0)")
    parser.add_argument("--error", type=float, metavar="X", help="to come down to (default: the last recipe's last)")


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Measures; returns the table to print and the figures for JSON.

    Raises:
        EnvsError: the data cannot be loaded.
        UsageError: too few episodes to hold any out.
        NumericsError: an error played step by step is not the model's own.
    """
    result = measure_learning(
        arguments.env,
        arguments.source,
        arguments.recipes,
        updates=arguments.updates,
        seed=arguments.seed,
        error=arguments.error,
    )
    return format_learning(result), asdict(result)
