"""The figures of a comparison: matplotlib figures, for the report's page and for TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...policies.names import label
from ..cells import ActionCost, Cell
from ..statistics import group
from .colours import INK, SOFT, Styles, paint, styles_of
from .overview import overview

# The names are in an alphabetical order that begins with scores, because TensorBoard shows them in one.
OVERVIEW = "all_scores"
_SIZE = (5.6, 3.7)  # inches
# An axis becomes logarithmic where its values span more than this factor.
_SPAN = 10.0

Runs = Mapping[str, Sequence[Cell]]  # agent -> its training seeds
Series = dict[float, list[float]]  # x -> one y of every seed


def figures(cells: Sequence[Cell]) -> dict[str, Figure]:
    """The figure of all scores, and every other that the cells have data for, named "<kind>/<task>"; see `DRAW`.

    An agent's thick line is the mean of its seeds, its thin ones are the seeds.
    """
    styles = styles_of(cells)
    drawn = (
        (f"{kind}/{env}", draw(env, runs, styles)) for kind, draw in DRAW.items() for env, runs in group(cells).items()
    )
    return {OVERVIEW: overview(cells)} | {name: figure for name, figure in drawn if figure is not None}


def learning_curves(env: str, runs: Runs, styles: Styles) -> Figure | None:
    """Score, or return where there is no reference, against training updates."""
    data = _common(runs, lambda cell: [(p.update, p.headline) for p in cell.curve])
    normalized = all(cell.last.normalized_score_mean is not None for cells in runs.values() for cell in cells)
    figure = _lines(data, styles, env, "training updates", "normalised score" if normalized else "return of an episode")
    return _from_zero(figure)


def target_returns(env: str, runs: Runs, styles: Styles) -> Figure | None:
    """Achieved against asked return, with the diagonal on which both are the same."""
    data = _common(runs, _steering)
    figure = _lines(data, styles, env, "asked return", "achieved return")
    if figure is not None:
        (axes,) = figure.axes
        asked = [x for series in data.values() for x in series]
        ends = [min(asked), max(asked)]
        axes.plot(ends, ends, color=SOFT, linestyle=":", label="achieved = asked", zorder=1)
        axes.legend(frameon=False, labelcolor=INK, fontsize=9)
    return _from_zero(figure)


def _from_zero(figure: Figure | None) -> Figure | None:
    """Both axes from 0 on, so that a small difference looks small; but for returns below it."""
    for axes in () if figure is None else figure.axes:
        if axes.dataLim.y0 >= 0:
            axes.set_ylim(bottom=0)
        if axes.dataLim.x0 >= 0:
            axes.set_xlim(left=0)
    return figure


def _steering(cell: Cell) -> list[tuple[float, float]]:
    """Asked and achieved returns."""
    return [(asked, score.return_mean) for score in cell.sweep if (asked := score.target_return) is not None]


def time_per_action(env: str, runs: Runs, styles: Styles) -> Figure | None:
    """Time of one action against the step of the episode."""
    return _costs(env, runs, styles, "time per action (µs)", lambda cost: cost.microseconds)


def state_memory(env: str, runs: Runs, styles: Styles) -> Figure | None:
    """Size of what a policy carries from step to step, against the step of the episode."""
    return _costs(env, runs, styles, "state memory (kB)", lambda cost: cost.state_bytes / 1000)


DRAW: dict[str, Callable[[str, Runs, Styles], Figure | None]] = {
    "learning_curves": learning_curves,
    "state_memory": state_memory,
    "target_returns": target_returns,
    "time_per_action": time_per_action,
}


def _costs(env: str, runs: Runs, styles: Styles, unit: str, value: Callable[[ActionCost], float]) -> Figure | None:
    data = _common(runs, lambda cell: [(cost.step, value(cost)) for cost in cell.action_cost])
    figure = _lines(data, styles, env, "step of the episode", unit)
    if figure is not None:
        (axes,) = figure.axes
        if _wide(x for series in data.values() for x in series):
            axes.set_xscale("log")
        if _wide(y for series in data.values() for ys in series.values() for y in ys):
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
    return figure


def _common(runs: Runs, points: Callable[[Cell], Iterable[tuple[float, float]]]) -> dict[str, Series]:
    """What all seeds of an agent have a value at: a mean over others at every x would jump where one joins."""
    data = {}
    for agent, cells in runs.items():
        curves = [dict(points(cell)) for cell in cells]
        shared = set.intersection(*(set(curve) for curve in curves))
        data[agent] = {x: [curve[x] for curve in curves] for x in sorted(shared)}
    return data


def _wide(values: Iterable[float]) -> bool:
    found = list(values)
    return min(found) > 0 and max(found) > _SPAN * min(found)


def _lines(data: Mapping[str, Series], styles: Styles, title: str, x_label: str, y_label: str) -> Figure | None:
    """A line for every agent and every seed; None where no agent has a point."""
    if not any(data.values()):
        return None
    # Not by way of pyplot, which would keep every figure and choose a window system.
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    for agent, series in data.items():
        if series:
            _curves(axes, agent, series, styles)
    axes.set_title(_plain(title), fontsize=10, fontweight="bold", color=INK)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    paint(axes)
    axes.legend(frameon=False, labelcolor=INK, fontsize=9)
    return figure


def _curves(axes: Axes, agent: str, series: Series, styles: Styles) -> None:
    color, marker = styles[agent]
    x, y = np.array(list(series)), np.array(list(series.values()))
    seeds = y.shape[1]
    name = f"{_plain(label(agent))} ({seeds} {'seeds' if seeds > 1 else 'seed'})"
    axes.plot(x, y.mean(axis=1), color=color, marker=marker, markersize=4, linewidth=2.2, label=name, zorder=3)
    if seeds > 1:
        axes.plot(x, y, color=color, alpha=0.5, linewidth=0.8, zorder=2)


def _plain(text: str) -> str:
    """Text in which matplotlib sees no mathematics, and whose first letter hides no legend entry."""
    return text.replace("$", r"\$").lstrip("_")
