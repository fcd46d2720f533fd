"""The benchmark "learning": held-out action error against seconds and gradient steps, recipes compared.

The policy of every recipe runs step by step over the same held-out episodes. On one of them its error is first tested
against that of the model in parallel.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
import torch
import yaml
from matplotlib.figure import Figure

from aaren_rl.agents import Policy
from aaren_rl.base.errors import UsageError
from aaren_rl.base.fields import COUNT, POSITIVE, SEED
from aaren_rl.cli import Parser, aligned, progress_bar
from aaren_rl.envs import TASKS, Episodes, load_episodes
from aaren_rl.envs.data import episodes as arrays
from aaren_rl.envs.data.draws import draw_weights
from aaren_rl.evaluate.play import action_error
from aaren_rl.policies.card import MARKS
from aaren_rl.policies.held_out import READING, HeldOut, hold_out
from aaren_rl.policies.table import AGENTS, label, style
from aaren_rl.train.config import D4RL_SCALE, RunConfig, make_config
from aaren_rl.train.data import StepData, settle_context
from aaren_rl.train.trainer import Trainer, keep_freed_memory

from .harness import COMPARABLE, Figures, parallel_actions, require, table
from .plots import logarithmic

RECIPES = ("default:decision-aaren", "default:decision-aaren-rsa", "default:decision-transformer")
POINTS = 7  # evaluations per recipe, the last after all its gradient steps
FIRST = 1 / 16  # fraction of the gradient steps before the first evaluation
HELD_OUT = 0.05  # of the episodes
TURN = 25  # gradient steps of a recipe in each turn, so that conditions are equal
COSTS = {"seconds": "seconds", "updates": "gradient steps"}
TOLERANCE = 1e-3  # relative difference of the error, step by step and in parallel

# Settings that are options of this benchmark, or that it has no use for.
FIXED = {*READING, *"env source ref_min_score ref_max_score held_out start_from updates seed agent".split()}

HELP = "held-out action error against seconds and gradient steps, recipes compared"
DESCRIPTION = """\
Trains recipes (PRESET:AGENT, then settings of train after commas) in turns, some gradient steps each, on one dataset
without its held-out episodes, and prints the error of the EMA weights on those, step by step in the rollout mode of
the recipe, with the return of each episode as its target. Seconds are those of the gradient steps alone. "Excess" is
the error minus the noise variance of the behavior policy, known exactly for local datasets; the last table has the
cost to reach the error --error."""
EPILOG = """\
example:
  scripts/bench learning --env hopper-medium --updates 1500 --plot learning.png
  scripts/bench learning --recipes default:decision-aaren default:decision-aaren,dropout=0.1"""


def read_recipe(recipe: str, updates: int, seed: int) -> RunConfig:
    """The configuration of PRESET:AGENT,SETTING=VALUE,... Raises UsageError for an invalid part."""
    name, *changes = recipe.split(",")
    preset, _, agent = name.partition(":")
    given = {"updates": updates, "seed": seed, "agent": agent}
    try:
        if agent in AGENTS and agent not in COMPARABLE:
            raise UsageError(f"the actions of {agent} are approximate; use {', '.join(COMPARABLE)}")
        for change in changes:
            key, _, text = change.partition("=")
            if (setting := key.replace("-", "_")) in FIXED:
                raise UsageError(f"{key} is not part of a recipe; leave it out, or see scripts/bench learning --help")
            try:
                given[setting] = yaml.safe_load(text)
            except yaml.YAMLError as error:
                raise UsageError(f"{text!r} is not a value") from error
        return make_config(given, preset)
    except UsageError as error:
        raise UsageError(f"{recipe}: {error}") from error


class Learner:
    """A recipe in training."""

    def __init__(self, recipe: str, training: Episodes, horizon: int, updates: int, seed: int) -> None:
        config = read_recipe(recipe, updates, seed)
        lengths, scale = training.lengths, config.data.return_scale or D4RL_SCALE
        weights = draw_weights(training.returns, lengths, config.data.draws, config.data.draw_share)
        self.recipe, self.config = recipe, settle_context(config, float(np.average(lengths, weights=weights)))
        data = StepData(training, scale, weights=weights)
        self.trainer = Trainer(self.config, data, training.action_dim, horizon)
        self.seconds, self.points = 0.0, list[Figures]()

    def train(self, updates: int) -> None:
        """Take some more gradient steps."""
        began = time.perf_counter()
        for _ in range(updates):
            self.trainer.step()
        self.seconds += time.perf_counter() - began

    def policy(self) -> Policy:
        """The current policy of the EMA weights."""
        data, how = self.trainer.data, self.config.evaluation
        model, mean, std = self.trainer.ema, data.observation_mean, data.observation_std
        return Policy(model, mean, std, data.return_scale, how.rollout, how.rollout_context)

    def evaluate(self, held_out: HeldOut) -> None:
        """Add a point to the curve."""
        error = action_error(self.policy(), held_out)
        low, high = error.interval()
        point = {"updates": self.trainer.update, "seconds": self.seconds, "error": error.mean}
        self.points.append({**point, "low": low, "high": high})


def checkpoints(updates: int) -> list[int]:
    """Gradient steps after which errors are measured, evenly spaced in their logarithm."""
    spaced = np.geomspace(max(1, updates * FIRST), updates, POINTS)
    return sorted({round(number) for number in spaced})


def measure(arguments: argparse.Namespace) -> Figures:
    """Train all recipes in turns. Errors are in units in which actions span [-1, 1].

    Raises AarenRLError if the data cannot be loaded, UsageError for an invalid recipe or too few episodes to hold any
    out, and NumericsError if an error step by step differs from that in parallel.
    """
    env, updates, seed = arguments.env, arguments.updates, arguments.seed
    for recipe in arguments.recipes:
        read_recipe(recipe, updates, seed)  # before reading the data, so that typos fail at once
    episodes = load_episodes(env, arguments.source)
    apart = arrays.held_out(len(episodes), HELD_OUT, seed)
    training = episodes.take(np.setdiff1d(np.arange(len(episodes)), apart))
    held_out = hold_out(episodes, HELD_OUT, seed)
    if held_out is None:
        raise UsageError(f"{env}: {len(episodes)} episodes are too few to hold any out")
    keep_freed_memory()
    learners = [Learner(recipe, training, TASKS[env].horizon, updates, seed) for recipe in arguments.recipes]
    for learner in learners:
        _check(learner, held_out.episodes)
    with progress_bar(total=updates * len(learners), desc=f"{env}, {len(learners)} recipes", unit="update") as bar:
        for until in checkpoints(updates):
            while (done := learners[0].trainer.update) < until:
                for learner in learners:
                    learner.train(min(TURN, until - done))
                    bar.update(min(TURN, until - done))
            for learner in learners:
                learner.evaluate(held_out)
    wanted = learners[-1].points[-1]["error"] if arguments.error is None else arguments.error
    curves = [
        {
            "recipe": learner.recipe,
            "points": learner.points,
            **{f"{cost}_to": reached([(p[cost], p["error"]) for p in learner.points], wanted) for cost in COSTS},
        }
        for learner in learners
    ]
    return {
        "env": env,
        "source": episodes.source,
        "steps": training.n_steps,
        "held_out_episodes": len(held_out.episodes),
        "held_out_steps": held_out.episodes.n_steps,
        "floor": held_out.floor,
        # The error of the mean action of the dataset.
        "trivial": float(np.square(held_out.episodes.actions - training.actions.mean(0)).mean()),
        "error": wanted,
        "seed": seed,
        "curves": curves,
    }


def _check(learner: Learner, episodes: Episodes) -> None:
    shortest, policy = episodes.take([int(episodes.lengths.argmin())]), learner.policy()
    played = action_error(policy, HeldOut(shortest)).mean
    episode = shortest.observations, shortest.actions, shortest.returns_to_go()
    observed, actions, to_go = map(torch.from_numpy, episode)
    parallel = float((parallel_actions(policy, observed, actions, to_go) - actions).square().mean())
    what = f"{learner.recipe}: the error step by step differs from that in parallel"
    require(what, abs(played - parallel), TOLERANCE * parallel)


def reached(points: Sequence[tuple[float, float]], wanted: float) -> float | None:
    """The cost at which a curve of (cost, error) first reaches an error, log-log interpolated; None: never."""
    for k, (cost, error) in enumerate(points):
        if error <= wanted:
            if k == 0:
                return cost
            before, above = points[k - 1]
            share = np.log(above / wanted) / np.log(above / error)
            return float(before * (cost / before) ** share)
    return None


def show(figures: Figures) -> list[str]:
    """A table of errors, and one of the costs to reach the given error."""
    floor, error, curves = figures["floor"], figures["error"], figures["curves"]
    errors = [
        {**point, "recipe": curve["recipe"], "above": "-" if floor is None else f"{point['error'] - floor:.4f}"}
        for curve in curves
        for point in curve["points"]
    ]
    last = curves[-1]["seconds_to"]
    costs = [(f"to an error of {error:.4f}", "steps", "seconds", f"of {curves[-1]['recipe']}")]
    for curve in curves:
        updates, taken = curve["updates_to"], curve["seconds_to"]
        cells = ("-", "-") if taken is None else (f"{updates:,.0f}", f"{taken:.1f}")
        costs.append((curve["recipe"], *cells, "-" if taken is None or last is None else f"{taken / last:.3f}"))
    held_out = "error on {held_out_episodes} held-out episodes, {held_out_steps:,} steps; seed {seed}".format(**figures)
    under = "" if floor is None else f", noise variance {floor:.4f}"
    return [
        f"{figures['env']} ({MARKS[figures['source']]}), {figures['steps']:,} steps; {held_out}",
        f"error of the mean action {figures['trivial']:.4f}{under}; to reach: {error:.4f}",
        "",
        *table(
            "recipe|steps|seconds|error|interval|excess",
            "{recipe}|{updates:,}|{seconds:.1f}|{error:.4f}|[{low:.4f}, {high:.4f}]|{above}",
            errors,
        ),
        "",
        *aligned(costs),
    ]


def plot(figures: Figures) -> Figure:
    """Error against seconds and gradient steps, minus the noise variance where it is known; all axes logarithmic."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    floor = figures["floor"] or 0.0
    panels = figure.subplots(1, 2, sharey=True)
    for axes, cost in zip(panels, COSTS, strict=True):
        for curve in figures["curves"]:
            at = [point[cost] for point in curve["points"]]
            errors = [point["error"] - floor for point in curve["points"]]
            preset, _, agent = curve["recipe"].partition(":")
            name = label(agent) if preset == "default" else f"{label(agent)}, preset {preset}"
            axes.plot(at, errors, marker=".", color=style(agent)[0], label=name)
        axes.axhline(figures["error"] - floor, color="0.5", linewidth=0.8, linestyle="--")
        axes.set(xlabel=f"{COSTS[cost]} of training")
        logarithmic(axes)
    panels[0].set_ylabel("excess action MSE, held out" if figures["floor"] else "action MSE, held out")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2, fontsize="small")
    figure.suptitle(f"{figures['env']} ({figures['source']}), {figures['steps']:,} steps", fontsize="medium")
    return figure


def add_arguments(parser: Parser) -> None:
    """The options of this benchmark."""
    parser.add_argument("--env", choices=TASKS, metavar="NAME", default="hopper-medium", help="(default: %(default)s)")
    parser.add_argument("--source", metavar="NAME", default="auto", help="dataset source, as in train (default: auto)")
    parser.add_argument("--recipes", nargs="+", metavar="RECIPE", default=list(RECIPES), help="(default: %(default)s)")
    parser.add_argument("--updates", type=COUNT.integer, default=1500, help="of every recipe (default: %(default)s)")
    parser.add_argument("--seed", type=SEED.integer, default=0, help="of weights and held-out episodes (default: 0)")
    parser.add_argument(
        "--error", type=POSITIVE.number, metavar="X", help="error to reach (default: the last recipe's last)"
    )
    parser.add_shared(register=False)
