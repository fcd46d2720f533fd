"""The figures of a comparison, as matplotlib figures, for the report and for TensorBoard."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..policies.names import MARKS, label, style
from .cells import Cell
from .statistics import group, summarize

INK, SOFT, LINE = "#1c1f23", "#5a6270", "#d9dde3"  # text, what stands behind it, grids
# TensorBoard shows figures in alphabetical order: scores come first.
OVERVIEW = "all_scores"
# What the data return: (name, line)
DATA: dict[str, tuple[str, Any]] = {
    "mean": ("data, mean", ":"),
    "best_tenth": ("data, best tenth", "-."),
    "mode": ("deterministic behavior policy", "--"),
}
_STEP = "step of the episode"
Points = Callable[[Cell], list[tuple[float, float]]]
# Panels of a task: (x, y, the points of a run)
_PANELS: tuple[tuple[str, str, Points], ...] = (
    ("gradient steps", "score", lambda run: [(p.update, p.headline) for p in run.curve]),
    (
        "target return",
        "achieved return",
        lambda run: [(s.target_return, s.return_mean) for s in run.sweep if not isinstance(s.target_return, str)],
    ),
    (_STEP, "time per action (µs)", lambda run: [(c.step, c.microseconds) for c in run.action_cost]),
    (_STEP, "state memory (kB)", lambda run: [(c.step, c.state_bytes / 1000) for c in run.action_cost]),
)


def paint(axes: Axes) -> None:
    """Gives axes the colors of this package's figures."""
    axes.tick_params(which="both", color=SOFT, labelcolor=INK)
    axes.spines[:].set_color(SOFT)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(color=LINE, linewidth=0.8)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)


def figures(cells: Sequence[Cell]) -> dict[str, Figure]:
    """The figure of all scores, and for each task that of its curves, named after it."""
    drawn = {env: _curves(env, runs) for env, runs in group(cells).items()}
    return {OVERVIEW: overview(cells)} | {env: figure for env, figure in drawn.items() if figure is not None}


def overview(cells: Sequence[Cell]) -> Figure:
    """A panel per task and a row per agent: a dot per training seed, their mean, and its interval if there is one."""
    groups, summaries = group(cells), summarize(cells)
    heights = [0.7 + 0.4 * len(runs) for runs in groups.values()]
    # Not by way of pyplot, which would keep every figure and choose a window system.
    figure = Figure(figsize=(8, sum(heights) + 0.5), layout="constrained")
    panels = figure.subplots(len(groups), squeeze=False, height_ratios=heights)[:, 0]
    shown: dict[str, Any] = {}
    for axes, (env, runs) in zip(panels, groups.items(), strict=True):
        score = next(iter(runs.values()))[0].last
        for row, summary in enumerate(s for s in summaries if s.env == env):
            (color, marker), mean = style(summary.agent), summary.mean
            if mean.interval is not None:
                ends = axes.plot(mean.interval, [row, row], color=color, linewidth=7, alpha=0.25)
                shown["95% interval"] = ends[0]
            shown["mean"] = axes.plot([mean.value] * 2, [row - 0.25, row + 0.25], color=color, linewidth=2.6)[0]
            dots: dict[str, Any] = {"linestyle": "", "marker": marker, "markersize": 7, "alpha": 0.75}
            shown["a training seed"] = axes.plot(summary.scores, [row] * len(summary.scores), color=color, **dots)[0]
        for name, value in score.data_headlines().items():
            if name in DATA:
                shown[DATA[name][0]] = axes.axvline(value, color=SOFT, linestyle=DATA[name][1], linewidth=1.4)
        axes.set_yticks(range(len(runs)), [_plain(label(agent)) for agent in runs])
        axes.set(ylim=(len(runs) - 0.5, -0.5), xlabel=_score_label(score.normalized_score_mean is not None))
        axes.set_title(_plain(f"{env} ({MARKS[score.source]})"), loc="left", fontsize=10, color=INK)
        paint(axes)
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=3, frameon=False, labelcolor=INK)
    return figure


def _curves(env: str, runs: Mapping[str, Sequence[Cell]]) -> Figure | None:
    """Of a task: the panels that there are numbers for. Thick lines are means over seeds, thin ones the seeds."""
    panels = []
    for x_label, y_label, points in _PANELS:
        curves = {agent: _shared([dict(points(run)) for run in of]) for agent, of in runs.items()}
        if curves := {agent: curve for agent, curve in curves.items() if curve}:
            panels.append((x_label, y_label, curves))
    if not panels:
        return None
    figure = Figure(figsize=(5 * min(2, len(panels)), 3.5 * -(-len(panels) // 2)), layout="constrained")
    for place, (x_label, y_label, curves) in enumerate(panels, start=1):
        axes = figure.add_subplot(-(-len(panels) // 2), min(2, len(panels)), place)
        for agent, curve in curves.items():
            color, marker = style(agent)
            xs, ys = list(curve), np.array(list(curve.values()))
            axes.plot(xs, ys, color=color, alpha=0.5, linewidth=0.8)
            axes.plot(xs, ys.mean(axis=1), color=color, marker=marker, markersize=4, linewidth=2)
        if y_label == "achieved return":
            axes.axline((0, 0), slope=1, color=SOFT, linestyle=":")
        if x_label == _STEP:
            axes.set(xscale="log", yscale="log")
        axes.set(xlabel=x_label, ylabel=y_label)
        paint(axes)
    handles = [
        Line2D([], [], color=color, marker=marker, label=_plain(label(agent)))
        for agent, (color, marker) in zip(runs, map(style, runs), strict=True)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, labelcolor=INK)
    figure.suptitle(_plain(env), fontsize=10, color=INK)
    return figure


def _shared(curves: Sequence[Mapping[float, float]]) -> dict[float, list[float]]:
    """x -> every seed's y, where all have one: a mean over others at every x would jump where one joins."""
    shared = set.intersection(*(set(curve) for curve in curves))
    return {x: [curve[x] for curve in curves] for x in sorted(shared)}


def _score_label(normalized: bool) -> str:
    return "normalized score" if normalized else "return of an episode"


def _plain(text: str) -> str:
    """Text in which matplotlib sees no mathematics, and whose first letter hides no legend entry."""
    return text.replace("$", r"\$").lstrip("_")
