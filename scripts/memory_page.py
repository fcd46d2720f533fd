"""What scripts/memory_tasks measured, as docs/memory.md shows it: two tables, and the curves of a chart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, TypeAlias

from aaren_rl.policies.table import label

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results" / "memory_tasks.json"
NO_GATE = "no-gate"  # Decision-Aaren without its forget gate
LONG_WINDOW = "long-window"  # Decision Transformer with a window that most episodes fit into
RECURRENT = ("decision-aaren", NO_GATE, "decision-gru", "decision-mingru", "decision-rsa")
AGENTS = (*RECURRENT, "decision-transformer", LONG_WINDOW, "bc")
TUNED = "RepeatPreviousEasy"  # whose learning rates other tasks have
COSTS = "Recall"  # the task whose actions and states are shown: they depend on the size of an observation
ENOUGH = 0.95  # of the best score of a task, which stops the clock

Table: TypeAlias = tuple[list[str], list[list[str]]]  # head and rows


def results() -> tuple[dict[str, Any], dict[str, dict[str, list[dict[str, Any]]]]]:
    """What is known of every task of scripts/memory_tasks, and by task and agent the runs with the chosen rate."""
    tree = json.loads(RESULTS.read_text(encoding="utf-8"))
    kept = {
        task: {
            agent: [run for run in runs if run["rate"] == chosen_rate(tree, task, agent)] for agent, runs in of.items()
        }
        for task, of in tree["runs"].items()
    }
    return tree["tasks"], {task: {agent: runs for agent, runs in of.items() if runs} for task, of in kept.items()}


def chosen_rate(tree: Mapping[str, Any], task: str, agent: str) -> float:
    """The learning rate of an agent on a task, times the default."""
    rates = tree.get("rates", {})
    found: float = rates.get(task, rates.get(TUNED, {})).get(agent, 1.0)
    return found


def mean_curve(runs: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Seconds of training and the score then, the means over seeds."""
    speed = fmean(run["ms_per_update"] for run in runs) / 1000
    return [
        (speed * point[0][0], fmean(score for _, score in point))
        for point in zip(*(run["curve"] for run in runs), strict=True)
    ]


def tasks() -> Table:
    """Scores and seconds of training until they stay at ENOUGH of the best, by task and agent; what an action costs."""
    known, found = results()
    agents = [agent for agent in AGENTS if any(agent in of for of in found.values())]

    def cell(runs: Sequence[Mapping[str, Any]], best: float, learned: bool) -> str:
        scores, curve = [run["score"] for run in runs], mean_curve(runs)
        deviation = f" ± {stdev(scores):.0f}" if len(scores) > 1 else ""
        below = max((i for i, (_, score) in enumerate(curve) if score < ENOUGH * best), default=-1)
        seconds = f"{curve[below + 1][0]:.0f}\N{NO-BREAK SPACE}s" if below + 1 < len(curve) else "never"
        return f"{fmean(scores):.0f}{deviation}" + (f", {seconds}" if learned else "")

    lines = []
    for task, of in found.items():
        best = max(mean_curve(runs)[-1][1] for runs in of.values())
        # Where nobody is as good as the data there is nothing to be fast at.
        learned = max(fmean(run["score"] for run in runs) for runs in of.values()) >= known[task]["data"]
        cells = [cell(of[agent], best, learned) if agent in of else "-" for agent in agents]
        seeds = max(len(runs) for runs in of.values())
        lines.append([task, str(seeds), *(f"{known[task][key]:.0f}" for key in ("one_action", "data")), *cells])
    for text, key, form in (("ms of an action", "ms_per_action", ".2f"), ("bytes of the state", "bytes", ",.0f")):
        runs_of = found.get(COSTS, {})
        costs = [
            format(median(run[key] for run in runs_of[agent]), form) if agent in runs_of else "-" for agent in agents
        ]
        lines.append([f"{text} ({COSTS})", "", "", "", *costs])
    return ["task", "seeds", "one action", "data", *map(name, agents)], lines


def lengths() -> Table:
    """Scores by the number of pairs and by the size of the room, where agents of constant cost are apart."""
    lines = []
    for task, of in results()[1].items():
        shown = [of.get(agent, []) for agent in AGENTS]
        for variant in next(iter(of.values()))[0]["variants"]:
            scores = [[run["variants"][variant] for run in runs] for runs in shown]
            means = [f"{fmean(values):.0f}" if values else "-" for values in scores]
            if len({*means[:4]}) > 1:
                lines.append([task, variant, *means])
    return ["task", "pairs, or size", *map(name, AGENTS)], lines


def last_actions() -> Table:
    """Scores without `--action-dropout`, where training always sees the last action, and with it, where apart."""
    always, found = json.loads(RESULTS.read_text(encoding="utf-8"))["always_seen"], results()[1]
    lines = []
    for task, of in always.items():
        pairs = [(fmean(of[agent]), fmean(run["score"] for run in found[task][agent])) for agent in of]
        if any(abs(one - two) > 1.5 for one, two in pairs):
            lines.append([task, *(f"{one:.0f}, {two:.0f}" for one, two in pairs)])
    return ["task", *map(name, RECURRENT[:4])], lines


def name(agent: str) -> str:
    """The head of an agent's column."""
    names = {
        NO_GATE: "without its gate",
        "decision-transformer": "window of 20",
        LONG_WINDOW: "window of 128",
        "bc": "two steps",
    }
    return names.get(agent, label(agent))
