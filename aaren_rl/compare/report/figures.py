"""The figures of a comparison: matplotlib figures, for the report's page and for TensorBoard."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from ...policies.names import MARKS, label, style
from ..cells import Cell
from ..statistics import Summary, group, summarize
from .tables import digits_of, interval, number

INK, SOFT, LINE = "#1c1f23", "#5a6270", "#d9dde3"  # text, what stands behind it, grids
PAGE = "#fffffe"  # the page's own, around a text that lines run behind

# What each becomes on a dark page; the others are seen on both.
DARK = {
    **{INK: "#e6e9ed", SOFT: "#a3acb8", LINE: "#363d47", PAGE: "#14181d"},
    **{"#0072b2": "#4aa8ec", "#56b4e9": "#a9dcff", "#d55e00": "#ff8b45", "#aa3377": "#e07bb0", "#000000": "#ffffff"},
}

# The names are in an alphabetical order that begins with scores, because TensorBoard shows them in one.
OVERVIEW = "all_scores"
WIDE, NARROW = 10.4, 4.6  # inches: the overview on a page, on a phone
_ROW, _PANEL = 0.52, 0.62  # inches: an agent's row, what a task has beside its rows
# What the data return: (name, line)
DATA: dict[str, tuple[str, Any]] = {
    "mean": ("data, mean", ":"),
    "best_tenth": ("data, best tenth", "-."),
    "mode": ("deterministic behavior policy", "--"),
}
_SIZE = (5.6, 3.7)  # inches, of the other figures
_SPAN = 10.0  # an axis of steps or costs becomes logarithmic where its values span more than this factor
_STEP = "step of the episode"
_LEGEND: dict[str, Any] = {"frameon": False, "labelcolor": INK, "fontsize": 9}
# kind: (x, y, a run's points)
_KINDS: dict[str, tuple[str, str, Callable[[Cell], list[tuple[float, float]]]]] = {
    "learning_curves": ("gradient steps", "score", lambda run: [(p.update, p.headline) for p in run.curve]),
    "state_memory": (_STEP, "state memory (kB)", lambda run: [(c.step, c.state_bytes / 1000) for c in run.action_cost]),
    "target_returns": (
        "target return",
        "achieved return",
        lambda run: [(s.target_return, s.return_mean) for s in run.sweep if not isinstance(s.target_return, str)],
    ),
    "time_per_action": (_STEP, "time per action (µs)", lambda run: [(c.step, c.microseconds) for c in run.action_cost]),
}

Runs = Mapping[str, Sequence[Cell]]  # agent -> its training seeds


def paint(axes: Axes) -> None:
    """Gives axes colors that `DARK` has a counterpart of."""
    axes.tick_params(which="both", color=SOFT, labelcolor=INK)
    axes.spines[:].set_color(SOFT)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(color=LINE, linewidth=0.8)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)


def figures(cells: Sequence[Cell]) -> dict[str, Figure]:
    """The figure of all scores, and every other that the cells have data for, named "<kind>/<task>"."""
    drawn = {f"{kind}/{env}": _curves(kind, env, runs) for kind in _KINDS for env, runs in group(cells).items()}
    return {OVERVIEW: overview(cells)} | {name: figure for name, figure in drawn.items() if figure is not None}


def overview(cells: Sequence[Cell], width: float = WIDE) -> Figure:
    """A panel a task and a row an agent: a dot a training seed, their mean, and its interval where there is one."""
    groups, summaries = group(cells), summarize(cells)
    heights = [_PANEL + _ROW * len(runs) for runs in groups.values()]
    legend_rows = 1 if width > NARROW else 3
    # Not by way of pyplot, which would keep every figure and choose a window system.
    figure = Figure(figsize=(width, sum(heights) + 0.35 + 0.25 * legend_rows), layout="constrained")
    panels = figure.subplots(len(groups), squeeze=False, height_ratios=heights)[:, 0]
    # What the tasks' data return, by the names in `DATA`.
    data: dict[str, dict[str, float]] = {env: {} for env in groups}
    for cell in cells[::-1]:
        found = cell.last.data_headlines()
        data[cell.env] |= {name: found[name] for name in DATA if name in found}
    for axes, (env, runs) in zip(panels, groups.items(), strict=True):
        _panel(axes, [s for s in summaries if s.env == env], data[env])
        mark = MARKS[next(iter(runs.values()))[0].last.source]
        axes.set_title(_plain(f"{env} ({mark})"), loc="left", fontsize=10, fontweight="bold", color=INK)
    if all(s.normalized for s in summaries):
        ends = [end for axes in panels for end in axes.get_xlim()]
        for axes in panels:
            axes.set_xlim(min(ends), max(ends))
            axes.label_outer()
    handles = _legend(data, any(s.mean.interval for s in summaries), digits_of(summaries[0]))
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": 6 if width > NARROW else 2}
    figure.legend(handles=handles, **_LEGEND, **place)
    return figure


def _panel(axes: Axes, summaries: Sequence[Summary], data: Mapping[str, float]) -> None:
    for name, value in data.items():
        axes.axvline(value, color=SOFT, linestyle=DATA[name][1], linewidth=1.4, zorder=1)
    for row, summary in enumerate(summaries):
        _agent(axes, row, summary, *style(summary.agent))
    axes.set_ylim(len(summaries) - 0.6, -0.75)
    axes.set_yticks([])
    axes.margins(x=0.06)
    axes.autoscale(axis="x")
    normalized = summaries[0].normalized
    if normalized:  # from 0 on, or from a score below it
        values = [*(x for s in summaries for x in s.scores), *data.values()]
        axes.set_xlim(min(0.0, *values) * 1.06, max(1.0, *values) * 1.06)
    axes.set_xlabel(_score_label(normalized))
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
    axes.text(1.0, row - 0.28, interval(mean, digits_of(summary)), ha="right", **text)


def _legend(data: Mapping[str, Mapping[str, float]], intervals: bool, digits: int | None) -> list[Line2D]:
    handles = [
        Line2D([], [], marker="o", linestyle="", markersize=7, label="a training seed", color=SOFT),
        Line2D([], [], marker="|", linestyle="", markersize=13, markeredgewidth=2.6, label="mean", color=SOFT),
    ]
    if intervals:
        handles.append(Line2D([], [], linewidth=7, alpha=0.35, label="95% interval", color=SOFT))
    for name in dict.fromkeys(name for of_task in data.values() for name in of_task):
        text, line = DATA[name]
        told = "".join(f": {number(of_task[name], digits)}" for of_task in data.values() if len(data) == 1)
        handles.append(Line2D([], [], linewidth=1.4, label=text + told, color=SOFT, linestyle=line))
    return handles


def _curves(kind: str, env: str, runs: Runs) -> Figure | None:
    x_label, y_label, points = _KINDS[kind]
    data = {agent: curve for agent, cells in runs.items() if (curve := _shared([dict(points(c)) for c in cells]))}
    if not data:
        return None
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    for agent, curve in data.items():
        (color, marker), y = style(agent), np.array(list(curve.values()))
        seeds = f"{y.shape[1]} {'seeds' if y.shape[1] > 1 else 'seed'}"
        mean = axes.plot(list(curve), y.mean(axis=1), color=color, marker=marker, markersize=4, linewidth=2.2, zorder=3)
        mean[0].set_label(f"{_plain(label(agent))} ({seeds})")
        if y.shape[1] > 1:
            axes.plot(list(curve), y, color=color, alpha=0.5, linewidth=0.8, zorder=2)
    xs = [x for curve in data.values() for x in curve]
    ys = [y for curve in data.values() for seeds in curve.values() for y in seeds]
    if kind == "target_returns":
        ends = [min(xs), max(xs)]
        axes.plot(ends, ends, color=SOFT, linestyle=":", label="achieved = target", zorder=1)
    # From 0 on, so that a small difference looks small; but for returns below it.
    for name, values, least in (("x", xs, axes.dataLim.x0), ("y", ys, axes.dataLim.y0)):
        if x_label == _STEP and 0 < _SPAN * min(values) < max(values):
            axes.set(**{f"{name}scale": "log"})
        elif least >= 0:
            axes.set(**{f"{name}lim": (0, None)})
    if kind == "learning_curves":
        y_label = _score_label(all(c.last.normalized_score_mean is not None for cells in runs.values() for c in cells))
    axes.set_title(_plain(env), fontsize=10, fontweight="bold", color=INK)
    axes.set(xlabel=x_label, ylabel=y_label)
    paint(axes)
    axes.legend(**_LEGEND)
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
