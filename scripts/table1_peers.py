"""IQL and TD3+BC on the page of Table 1: the runs that scripts/peers wrote, with Decision-Aaren's scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from table1_cells import OURS, of
from table1_figures import COLUMNS, WIDTH

from aaren_rl.compare.cells import Cell
from aaren_rl.compare.figures import INK, paint
from aaren_rl.evaluate.tables import number
from aaren_rl.policies.names import label, style

Run = dict[str, Any]  # as scripts/peers writes it

LABELS = {"iql": "IQL", "td3+bc": "TD3+BC"}
COLORS = {"iql": "C4", "td3+bc": "C5"}


def read(folder: Path) -> list[Run]:
    """The runs of a folder, by file name."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]


def peers(cells: Sequence[Cell], runs: Sequence[Run]) -> str:
    """A row per dataset: mean scores of Decision-Aaren, and the peers' last and best of every seed; then the cost."""
    if not (scores := _scores(cells, runs)):
        return "No peer was run yet."
    found = [name for name in LABELS if any(run["algorithm"] == name for run in runs)]
    head = ["dataset", label(OURS), *(f"{LABELS[name]}: last (best)" for name in found)]
    rows = [head, ["-", *["-:"] * (len(head) - 1)]]
    envs = list(scores)
    lasts = {name: [_of(runs, env, name) for env in envs] for name in found}
    for i, env in enumerate(envs):
        rows.append([env, number(fmean(scores[env])), *(_last_and_best(lasts[name][i]) for name in found)])
    if all(map(all, lasts.values())):
        own = number(fmean(map(fmean, scores.values())))
        theirs = [number(fmean(fmean(run["last"]["score"] for run in of_set) for of_set in lasts[n])) for n in found]
        rows.append([f"mean of {len(envs)}, last", own, *theirs])
    spent = [cell.updates * cell.seconds_per_update for cell in cells if cell.agent == OURS and cell.env in envs]
    seconds = {LABELS[name]: [run["seconds"] for run in runs if run["algorithm"] == name] for name in found}
    told = " and ".join(f"{name} {median(taken) / median(spent):.2g}" for name, taken in seconds.items())
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    steps = ", ".join(sorted({f"{run['steps']:,}" for run in runs}))
    on = "; ".join(sorted({run["processor"] for run in runs}))
    took = f"Training took {told} times as long as {label(OURS)}, on one thread, by medians"
    return f"{table}\n\n{took}. Peers: {steps} gradient steps, {on}."


def _scores(cells: Sequence[Cell], runs: Sequence[Run]) -> dict[str, list[float]]:
    """Decision-Aaren's scores on the datasets that have runs of peers."""
    there = {run["dataset"] for run in runs}
    found: dict[str, list[float]] = {}
    for cell in of(cells, OURS):
        if cell.env in there:
            found.setdefault(cell.env, []).append(cell.last.headline)
    return found


def _of(runs: Sequence[Run], env: str, name: str) -> list[Run]:
    return [run for run in runs if (run["dataset"], run["algorithm"]) == (env, name)]


def _last_and_best(runs: Sequence[Run]) -> str:
    if not runs:
        return "-"
    last, best = (", ".join(number(run[key]["score"]) for run in runs) for key in ("last", "best"))  # of every seed
    return f"{last} ({best})"


def figure(cells: Sequence[Cell], runs: Sequence[Run]) -> Figure:
    """Learning curves, a panel per dataset: thin lines are seeds, dots last scores, dashes Decision-Aaren's means."""
    own = _scores(cells, runs)
    sets = list(own)
    rows = -(-len(sets) // COLUMNS)
    drawn = Figure(figsize=(WIDTH, 1.3 + 2.1 * rows), layout="constrained")
    panels = drawn.subplots(rows, COLUMNS, squeeze=False).ravel()
    for axes, env in zip(panels, sets, strict=False):
        axes.axhline(fmean(own[env]), label=f"{label(OURS)}, mean", color=style(OURS)[0], linestyle="--")
        for name, color in COLORS.items():
            if not (of_set := _of(runs, env, name)):
                continue
            curves = np.array([[point["score"] for point in run["curve"]] for run in of_set])
            steps = [point["steps"] for point in of_set[0]["curve"]]
            axes.plot(steps, curves.T, color=color, alpha=0.4, linewidth=0.7)
            axes.plot(steps, curves.mean(0), color=color, linewidth=2, label=LABELS[name])
            axes.plot(
                [steps[-1]] * len(of_set), [run["last"]["score"] for run in of_set], "o", color=color, markersize=4
            )
        axes.set_title(env, fontsize=9, color=INK)
        axes.tick_params(labelsize=8)
        axes.xaxis.set_major_formatter(lambda steps, _: f"{steps / 1000:g}k")
        paint(axes)
    for axes in panels[len(sets) :]:
        axes.set_visible(False)
    drawn.supxlabel("gradient steps", fontsize=10, color=INK)
    drawn.supylabel("normalized score", fontsize=10, color=INK)
    shown = {name: line for axes in panels for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    drawn.legend(shown.values(), shown, loc="outside upper center", ncols=2, frameon=False, fontsize=9, labelcolor=INK)
    return drawn
