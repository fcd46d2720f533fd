"""The benchmark "steering": whether asking trained policies for more return gives more.

Nothing is timed. What a policy that cannot be steered would give is a flat line, a rank correlation about zero and a
span of zero; one that obeys lies on the diagonal as far as the data go.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from scipy import stats

from ..cli import Parser, positive, progress_bar
from ..envs import Reference, normalized_score
from ..errors import UsageError
from ..evaluate.held_out import all_episodes
from ..evaluate.play import EpisodePlan, guided, score_policy
from ..evaluate.scores import Score
from ..machine import Machine
from ..policies.card import PolicyCard
from ..policies.folder import load_policy, read_card
from ..policies.names import MARKS, label
from ..ranges import GUIDANCE, SEED

LOWEST = 0.05  # quantile of the data's returns that is the least asked for; the most is their best

HELP = "achieved against asked return of trained policies"
DESCRIPTION = """\
Asks trained policies of one environment for returns from the data's 5 percent quantile to its best episode's, evenly
spaced, and for the best in reach ("auto") where they hold an estimate of it; several runs of an agent are its seeds.
Prints what was achieved, the rank correlation (Spearman's) of asked and achieved, and what lies between the least and
the most asked, in points of the normalised score."""
EPILOG = """\
example:
  python -m aaren_rl.bench steering runs/hopper-medium/decision-{aaren,transformer}/seed* --plot steering.svg
"""


@dataclass(frozen=True)
class Steered:
    """One agent, over its runs.

    Attributes:
        agent: the agent.
        seeds: of its training, run by run.
        updates: of its training, run by run.
        rollout: the rollout mode.
        achieved: mean return of every asked one, run by run.
        auto: mean return when the best in reach is asked for, run by run; None where there is no estimate.
        rank_correlation: of asked returns and achieved ones' means over runs.
        difference: mean of |achieved - asked| / |asked| over asked returns, of the achieved ones' means over runs.
    """

    agent: str
    seeds: list[int]
    updates: list[int]
    rollout: str
    achieved: list[list[float]]
    auto: list[float] | None
    rank_correlation: float
    difference: float

    @property
    def means(self) -> list[float]:
        """Over runs, of every asked return."""
        return [float(mean) for mean in np.mean(self.achieved, axis=0)]


@dataclass(frozen=True)
class SteeringResult:
    """The outcome of `run`; returns are in the environment's units.

    Attributes:
        env: the task.
        env_id: what was played.
        source: of its data.
        reference: the returns that score 0 and 100; None: returns stand for scores.
        asked: the returns.
        data_mean: the mean return of the data's episodes.
        episodes: for each asked return.
        seed: environment i is reset with seed + i.
        agents: what they achieved.
        machine: what it ran on.
        guidance: W, as in `agents.guidance`.
    """

    env: str
    env_id: str
    source: str
    reference: list[float] | None
    asked: list[float]
    data_mean: float
    episodes: int
    seed: int
    agents: list[Steered]
    machine: Machine
    guidance: float = 1.0

    def points(self, value: float) -> float:
        """A return as a normalised score, where there is a reference."""
        return value if self.reference is None else normalized_score(Reference("", *self.reference), value)


def measure_steering(
    runs: Sequence[Path], *, values: int, episodes: int, seed: int, guidance: float = 1.0
) -> SteeringResult:
    """Plays all runs.

    Args:
        runs: folders of runs of one environment.
        values: number of asked returns.
        episodes: for each.
        seed: environment i is reset with seed + i.
        guidance: W, as in `agents.guidance`.

    Raises:
        UsageError: the runs are of several environments, one is none, or holds no estimate that guidance needs.
        CheckpointError: a policy cannot be read.
        DataError: the data cannot be read.
        SimulationError: the environment fails.
    """
    cards = [read_card(run) for run in runs]
    if len(of := {(card.env, card.env_id, card.source) for card in cards}) > 1:
        raise UsageError(f"the runs are of several environments or sources: {', '.join(sorted(env for env, *_ in of))}")
    returns = all_episodes(runs[0]).returns
    asked = np.linspace(np.quantile(returns, LOWEST), returns.max(), values).tolist()
    scores: dict[str, list[tuple[PolicyCard, list[Score]]]] = {}
    for run, card in zip(progress_bar(iterable=runs, desc=cards[0].env, unit="run"), cards, strict=True):
        wanted = [*asked, *([None] if card.model.get("best_return") else [])]
        plan = EpisodePlan(card.weights, episodes, wanted, seed)
        policy = guided(load_policy(run), guidance)
        scores.setdefault(card.agent, []).append((card, score_policy(policy, card, plan)))
    return SteeringResult(
        env=cards[0].env,
        env_id=cards[0].env_id,
        source=cards[0].source,
        reference=cards[0].reference_returns,
        asked=asked,
        data_mean=float(returns.mean()),
        episodes=episodes,
        seed=seed,
        agents=[_steered(agent, asked, played) for agent, played in scores.items()],
        machine=Machine.here(),
        guidance=guidance,
    )


def _steered(agent: str, asked: list[float], played: list[tuple[PolicyCard, list[Score]]]) -> Steered:
    achieved = [[s.return_mean for s in scores if s.target_return is not None] for _, scores in played]
    auto = [s.return_mean for _, scores in played for s in scores if s.target_return is None]
    return Steered(
        agent=agent,
        seeds=[card.seed for card, _ in played],
        updates=[card.updates for card, _ in played],
        rollout=played[0][0].rollout,
        achieved=achieved,
        auto=auto if len(auto) == len(played) else None,
        rank_correlation=rank_correlation(asked, np.mean(achieved, axis=0)),
        difference=float(np.mean(np.abs(np.mean(achieved, axis=0) - asked) / np.abs(asked))),
    )


def rank_correlation(asked: Sequence[float], achieved: npt.NDArray[np.float64]) -> float:
    """Spearman's; 0 where every asked return achieved the same."""
    return float(stats.spearmanr(asked, achieved).statistic) if np.ptp(achieved) else 0.0


def format_steering(result: SteeringResult) -> str:
    """The table to print: achieved returns, with scores in brackets."""
    show = "{:,.0f} ({:.1f})" if result.reference else "{:,.1f}"

    def cell(value: float) -> str:
        return f"{show.format(value, result.points(value)):>28}"

    agents = result.agents
    lines = [
        str(result.machine),
        f"{result.env} ({MARKS[result.source]}), {result.env_id}, {result.episodes} episodes an asked return from seed "
        f"{result.seed}; means over training seeds{_guided(result.guidance)}",
        f"the data's mean return is {show.format(result.data_mean, result.points(result.data_mean))}",
        "",
        f"{'asked':<20}" + "".join(f"{agent.agent:>28}" for agent in agents),
    ]
    lines += [
        f"{f'{asked:,.0f}':<20}" + "".join(cell(agent.means[k]) for agent in agents)
        for k, asked in enumerate(result.asked)
    ]
    summary: dict[str, list[str]] = {
        "auto": [f"{'-':>28}" if agent.auto is None else cell(float(np.mean(agent.auto))) for agent in agents],
        "best asked": [cell(max(agent.means)) for agent in agents],
        "least to most, points": [
            f"{result.points(agent.means[-1]) - result.points(agent.means[0]):>28.1f}" for agent in agents
        ],
        "rank correlation": [f"{agent.rank_correlation:>28.3f}" for agent in agents],
        "|achieved - asked|": [f"{f'{agent.difference:.1%} of asked':>28}" for agent in agents],
        "training seeds": [f"{', '.join(map(str, agent.seeds)):>28}" for agent in agents],
        "updates": [f"{', '.join(sorted({f'{n:,}' for n in agent.updates})):>28}" for agent in agents],
        "rollout": [f"{agent.rollout:>28}" for agent in agents],
    }
    return "\n".join([*lines, "", *(f"{name:<22}{''.join(row)[2:]}" for name, row in summary.items())])


def _guided(guidance: float) -> str:
    return "" if guidance == 1 else f"; guidance {guidance:g}"


def plot(figures: dict[str, Any]) -> Figure:
    """Achieved against asked return: a thin line a seed, a thick one their mean, "auto" dashed, the diagonal dotted."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    asked = figures["asked"]
    axes.plot([asked[0], asked[-1]], [asked[0], asked[-1]], color="0.5", linestyle=":", label="achieved = asked")
    axes.axhline(figures["data_mean"], color="0.7", linewidth=0.8, label="mean of the data")
    for k, agent in enumerate(figures["agents"]):
        for line in agent["achieved"]:
            axes.plot(asked, line, color=f"C{k}", linewidth=0.6, alpha=0.6)
        mean = np.mean(agent["achieved"], axis=0)
        axes.plot(asked, mean, color=f"C{k}", linewidth=2, marker=".", label=label(agent["agent"]))
        if agent["auto"] is not None:
            axes.axhline(np.mean(agent["auto"]), color=f"C{k}", linestyle="--", label=f"{label(agent['agent'])}, auto")
    axes.set(xlabel="asked return", ylabel="achieved return", ylim=(0, None) if asked[0] >= 0 else None)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", frameon=False)
    title = f"{figures['env']} ({figures['source']}), {figures['episodes']} episodes a point"
    axes.set_title(title + _guided(figures["guidance"]), fontsize="medium")
    return figure


def add_arguments(parser: Parser) -> None:
    """The benchmark's own options."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders of one environment")
    parser.add_argument("--values", type=positive, default=8, help="asked returns (default: %(default)s)")
    parser.add_argument("--episodes", type=positive, default=50, help="for each (default: %(default)s)")
    parser.add_argument("--seed", type=SEED.integer, default=1000, help="of the first episode (default: 1000)")
    parser.add_argument(
        "--guidance", type=GUIDANCE.number, metavar="W", default=1.0, help="as evaluate's (default: %(default)g)"
    )


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Measures; returns the table to print and the figures for JSON.

    Raises:
        CommandError: as `measure_steering`.
    """
    result = measure_steering(
        arguments.runs,
        values=arguments.values,
        episodes=arguments.episodes,
        seed=arguments.seed,
        guidance=arguments.guidance,
    )
    return format_steering(result), asdict(result)
