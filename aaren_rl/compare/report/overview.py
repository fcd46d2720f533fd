"""The figure that a report opens with: every training run's score, beside what the data return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from ...policies.names import MARKS, label
from ..cells import Cell
from ..statistics import Summary, group, summarize
from .colours import INK, PAGE, SOFT, paint, styles_of
from .words import interval, number

WIDE, NARROW = 10.4, 4.6  # inches: on a page, on a phone
_ROW, _PANEL = 0.52, 0.62  # inches: an agent's row, what a task has beside its rows
# What the data return: (name, line)
_LINES = {
    "mean": ("data, mean", ":"),
    "best_tenth": ("data, best tenth", "-."),
    "mode": ("behaviour without noise", "--"),
}


def overview(cells: Sequence[Cell], width: float = WIDE) -> Figure:
    """A panel a task and a row an agent: a dot a training seed, their mean, and its interval where there is one."""
    groups, summaries = group(cells), summarize(cells)
    heights = [_PANEL + _ROW * len(runs) for runs in groups.values()]
    legend_rows = 1 if width > NARROW else 3
    # Not by way of pyplot, which would keep every figure and choose a window system.
    figure = Figure(figsize=(width, sum(heights) + 0.35 + 0.25 * legend_rows), layout="constrained")
    panels = figure.subplots(len(groups), squeeze=False, height_ratios=heights)[:, 0]
    shown = dict.fromkeys(name for cell in cells for name in _LINES if name in cell.last.data_headlines())
    for axes, (env, runs) in zip(panels, groups.items(), strict=True):
        _panel(axes, runs, [s for s in summaries if s.env == env])
        title = f"{env} ({MARKS[next(iter(runs.values()))[0].last.source]})".replace("$", r"\$").lstrip("_")
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK)
    if all(s.normalized for s in summaries):
        ends = [end for axes in panels for end in axes.get_xlim()]
        for axes in panels:
            axes.set_xlim(min(ends), max(ends))
            axes.label_outer()
    only = next(iter(groups.values())) if len(groups) == 1 else None
    figure.legend(
        handles=_legend(shown, any(s.mean.interval for s in summaries), only),
        loc="outside lower center",
        ncols=6 if width > NARROW else 2,
        frameon=False,
        labelcolor=INK,
        fontsize=9,
    )
    return figure


def _panel(axes: Axes, runs: Mapping[str, Sequence[Cell]], summaries: Sequence[Summary]) -> None:
    styles = styles_of([cell for cells in runs.values() for cell in cells])
    data = next((found for cells in runs.values() for cell in cells if (found := cell.last.data_headlines())), {})
    for name, value in data.items():
        if name in _LINES:
            axes.axvline(value, color=SOFT, linestyle=_LINES[name][1], linewidth=1.4, zorder=1)
    for row, summary in enumerate(summaries):
        _agent(axes, row, summary, *styles[summary.agent])
    axes.set_ylim(len(summaries) - 0.6, -0.75)
    axes.set_yticks([])
    axes.margins(x=0.06)
    axes.autoscale(axis="x")
    if summaries[0].normalized:
        _from_zero(axes, [*(x for s in summaries for x in s.scores), *data.values()])
    axes.set_xlabel("normalised score" if summaries[0].normalized else "return of an episode")
    paint(axes)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")


def _agent(axes: Axes, row: int, summary: Summary, color: str, marker: str) -> None:
    mean = summary.mean
    if mean.interval is not None:
        axes.plot(mean.interval, [row, row], color=color, linewidth=7, alpha=0.25, solid_capstyle="butt", zorder=2)
    axes.plot([mean.value] * 2, [row - 0.24, row + 0.24], color=color, linewidth=2.6, zorder=3)
    dots: dict[str, Any] = {"linestyle": "", "marker": marker, "markersize": 7.5, "markeredgewidth": 0, "alpha": 0.75}
    axes.plot(summary.scores, [row] * len(summary.scores), color=color, zorder=4, clip_on=False, **dots)
    text: dict[str, Any] = {"color": color, "fontsize": 9.5, "va": "bottom", "transform": axes.get_yaxis_transform()}
    text["path_effects"] = [withStroke(linewidth=4, foreground=PAGE)]
    axes.text(0.0, row - 0.28, label(summary.agent).replace("$", r"\$"), ha="left", **text)
    axes.text(1.0, row - 0.28, interval(mean), ha="right", **text)


def _from_zero(axes: Axes, values: Sequence[float]) -> None:
    """Scores begin at 0; below it only where one does."""
    axes.set_xlim(min(0.0, *values) * 1.06, max(1.0, *values) * 1.06)


def _legend(shown: Mapping[str, None], intervals: bool, only: Mapping[str, Sequence[Cell]] | None) -> list[Line2D]:
    """What dots and lines are; of a single task the data's lines with their numbers."""
    grey: dict[str, Any] = {"color": SOFT}
    handles = [
        Line2D([], [], marker="o", linestyle="", markersize=7, label="a training seed", **grey),
        Line2D([], [], marker="|", linestyle="", markersize=13, markeredgewidth=2.6, label="mean", **grey),
    ]
    if intervals:
        handles.append(Line2D([], [], linewidth=7, alpha=0.35, label="95 % interval", **grey))
    values = {} if only is None else next(iter(only.values()))[0].last.data_headlines()
    for name in shown:
        text, line = _LINES[name]
        told = f"{text}: {number(values[name])}" if name in values else text
        handles.append(Line2D([], [], linewidth=1.4, label=told, **(grey | {"linestyle": line})))
    return handles
