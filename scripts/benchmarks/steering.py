"""The benchmark "steering": whether a higher target return of trained policies achieves a higher return.

Nothing is timed. A policy without return conditioning gives a flat line, a rank correlation of about zero and a range
of zero. A policy with perfect conditioning is on the diagonal, up to the best return of the data.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from scipy import stats

from aaren_rl.base.errors import UsageError
from aaren_rl.base.fields import AUTO, COUNT, SEED
from aaren_rl.cli import Parser, aligned, progress_bar
from aaren_rl.envs import Reference, normalized_score
from aaren_rl.evaluate.play import EpisodePlan, score_policy
from aaren_rl.evaluate.scores import Score
from aaren_rl.policies.card import MARKS, PolicyCard
from aaren_rl.policies.folder import load_policy, read_card
from aaren_rl.policies.held_out import all_episodes
from aaren_rl.policies.table import label, style

from .harness import Figures

LOWEST = 0.05  # quantile of dataset returns for the lowest target; the best return is the highest

HELP = "achieved against target return of trained policies"
DESCRIPTION = """\
Plays trained policies of one environment with target returns from the 5th percentile of the data to its best episode,
evenly spaced, and with the maximum achievable return ("auto") if they can estimate it. Several runs of an agent
count as its seeds. Prints the achieved returns, Spearman's rank correlation of target and achieved return, and the
range of scores from the lowest to the highest target, in points of the normalized score."""
EPILOG = """\
example:
  scripts/bench steering runs/hopper-medium/decision-{aaren,transformer}/seed* --plot steering.svg
"""


def measure(arguments: argparse.Namespace) -> Figures:
    """Evaluate all runs. Returns are in units of the environment. Lists of an agent have one item per run.

    Raises UsageError if the runs are of several environments, or one is not a run. Raises CheckpointError, DataError
    and SimulationError if a policy, the data or the environment fails.
    """
    runs: list[Path] = arguments.runs
    cards = [read_card(run) for run in runs]
    if len(of := {(card.env, card.env_id, card.source) for card in cards}) > 1:
        named = "; ".join(sorted(", ".join(each) for each in of))
        raise UsageError(f"the runs are of several environments or sources: {named}")
    if len({card.source_path for card in cards}) > 1:
        raise UsageError("the runs are of several files of data; give those of one")
    if len(set(seeds := [(card.agent, card.seed) for card in cards])) < len(seeds):
        raise UsageError("two of the runs are of one agent and one training seed; leave one out")
    returns = all_episodes(runs[0], cards[0]).returns
    asked = np.linspace(np.quantile(returns, LOWEST), returns.max(), arguments.values).tolist()
    played: dict[str, list[tuple[PolicyCard, list[Score]]]] = {}
    for run, card in zip(progress_bar(iterable=runs, desc=cards[0].env, unit="run"), cards, strict=True):
        wanted = [*asked, *([AUTO] if card.model.get("max_return_estimate") else [])]
        plan = EpisodePlan(card.weights, arguments.episodes, wanted, arguments.seed)
        played.setdefault(card.agent, []).append((card, score_policy(load_policy(run), card, plan)))
    return {
        "env": cards[0].env,
        "env_id": cards[0].env_id,
        "source": cards[0].source,
        "reference": cards[0].reference_returns,
        "asked": asked,
        "data_mean": float(returns.mean()),
        "episodes": arguments.episodes,
        "seed": arguments.seed,
        "agents": [_steered(agent, asked, found) for agent, found in played.items()],
    }


def _steered(agent: str, asked: list[float], played: list[tuple[PolicyCard, list[Score]]]) -> Figures:
    achieved = [[s.return_mean for s in scores if s.target_return != AUTO] for _, scores in played]
    auto = [s.return_mean for _, scores in played for s in scores if s.target_return == AUTO]
    means, targets = np.mean(achieved, axis=0), np.array(asked)
    known = targets != 0  # of a target of 0 there are no parts
    parts = np.abs(means - targets)[known] / np.abs(targets[known])
    return {
        "agent": agent,
        "seeds": [card.seed for card, _ in played],
        "updates": [card.updates for card, _ in played],
        "rollout": played[0][0].rollout,
        "achieved": achieved,
        "auto": auto if len(auto) == len(played) else None,
        "rank_correlation": rank_correlation(asked, means),
        "difference": float(parts.mean()) if parts.size else None,  # of |achieved - target| / |target|
    }


def rank_correlation(asked: Sequence[float], achieved: npt.NDArray[np.float64]) -> float:
    """The rank correlation of Spearman; 0 if every target return achieved the same."""
    return float(stats.spearmanr(asked, achieved).statistic) if np.ptp(achieved) else 0.0


def show(figures: Figures) -> list[str]:
    """The table to print: achieved returns, with scores in brackets."""
    agents, reference = figures["agents"], figures["reference"]
    means = [np.mean(agent["achieved"], axis=0) for agent in agents]

    def points(value: float) -> float:
        return value if reference is None else float(normalized_score(Reference("", *reference), value))

    def shown(value: float) -> str:
        return f"{value:,.0f} ({points(value):.1f})" if reference else f"{value:,.1f}"

    span = "range" if reference is None else "score range in points"
    rows = [["target", *(agent["agent"] for agent in agents)]]
    rows += [[f"{asked:,.0f}", *(shown(mean[k]) for mean in means)] for k, asked in enumerate(figures["asked"])]
    rows += [
        [""] * len(rows[0]),
        ["auto", *("-" if agent["auto"] is None else shown(np.mean(agent["auto"])) for agent in agents)],
        ["best of targets", *(shown(max(mean)) for mean in means)],
        [span, *(f"{points(mean[-1]) - points(mean[0]):.1f}" for mean in means)],
        ["rank correlation", *(f"{agent['rank_correlation']:.3f}" for agent in agents)],
        ["|achieved - target|", *map(_difference, agents)],
        ["training seeds", *(", ".join(map(str, agent["seeds"])) for agent in agents)],
        ["gradient steps", *(", ".join(sorted({f"{n:,}" for n in agent["updates"]})) for agent in agents)],
        ["rollout", *(agent["rollout"] for agent in agents)],
    ]
    return [
        f"{figures['env']} ({MARKS[figures['source']]}), {figures['env_id']}, {figures['episodes']} episodes per "
        f"target return from seed {figures['seed']}; means over training seeds",
        f"mean return of the data: {shown(figures['data_mean'])}",
        "",
        *aligned(rows),
    ]


def _difference(agent: Figures) -> str:
    return "-" if agent["difference"] is None else f"{agent['difference']:.1%} of target"


def plot(figures: Figures) -> Figure:
    """Plot achieved against target return: seeds thin, their mean thick, "auto" dashed, the diagonal dotted."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    asked = figures["asked"]
    axes.plot([asked[0], asked[-1]], [asked[0], asked[-1]], color="0.5", linestyle=":", label="achieved = target")
    axes.axhline(figures["data_mean"], color="0.7", linewidth=0.8, label="mean of the data")
    for agent in figures["agents"]:
        color, marker = style(agent["agent"])
        for line in agent["achieved"]:
            axes.plot(asked, line, color=color, linewidth=0.6, alpha=0.6)
        mean = np.mean(agent["achieved"], axis=0)
        axes.plot(asked, mean, color=color, linewidth=2, marker=marker, markersize=4, label=label(agent["agent"]))
        if agent["auto"] is not None:
            axes.axhline(np.mean(agent["auto"]), color=color, linestyle="--", label=f"{label(agent['agent'])}, auto")
    axes.set(xlabel="target return", ylabel="achieved return", ylim=(0, None) if asked[0] >= 0 else None)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", frameon=False)
    title = f"{figures['env']} ({figures['source']}), {figures['episodes']} episodes per point"
    axes.set_title(title, fontsize="medium")
    return figure


def add_arguments(parser: Parser) -> None:
    """The options of this benchmark."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders of one environment")
    parser.add_argument("--values", type=COUNT.integer, default=8, help="target returns (default: %(default)s)")
    parser.add_argument("--episodes", type=COUNT.integer, default=50, help="episodes for each (default: %(default)s)")
    parser.add_argument("--seed", type=SEED.integer, default=1000, help="seed of the first episode (default: 1000)")
    parser.add_shared()
