"""The figures of a comparison: matplotlib figures, for the report's page and for TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...policies.names import label
from ..cells import ActionCost, Cell
from ..statistics import group

# Okabe and Ito's colours, which stay apart for the colour-blind; markers differ as well, for print in grey.
_FIXED = {
    "decision-aaren": ("#0072B2", "o"),
    "decision-transformer": ("#D55E00", "s"),
    "decision-aaren-rsa": ("#56B4E9", "v"),
    "decision-rsa": ("#CC79A7", "D"),
    "decision-transformer-tree": ("#E69F00", "P"),
}
_OTHERS = [("#009E73", "^"), ("#F0E442", "<"), ("#000000", "X")]

_SIZE = (5.6, 3.7)  # inches
# An axis becomes logarithmic where its values span more than this factor.
_SPAN = 10.0

Styles = Mapping[str, tuple[str, str]]  # agent -> colour, marker
Runs = Mapping[str, Sequence[Cell]]  # agent -> its training seeds
Series = dict[float, list[float]]  # x -> one y of every seed


def figures(cells: Sequence[Cell]) -> dict[str, Figure]:
    """Every figure that the cells have data for, named "<kind>/<task>"; the kinds are those of `DRAW`.

    Where the seeds of an agent differ, its line is their mean and its band reaches from the lowest to the highest.
    """
    styles = _styles(cells)
    drawn = (
        (f"{kind}/{env}", draw(env, runs, styles)) for kind, draw in DRAW.items() for env, runs in group(cells).items()
    )
    return {name: figure for name, figure in drawn if figure is not None}


def _styles(cells: Sequence[Cell]) -> Styles:
    others = sorted({cell.agent for cell in cells} - set(_FIXED))
    return _FIXED | {agent: _OTHERS[i % len(_OTHERS)] for i, agent in enumerate(others)}


def learning_curves(env: str, runs: Runs, styles: Styles) -> Figure | None:
    """Score, or return where there is no reference, against training updates."""
    data = _common(runs, lambda cell: [(p.update, p.headline) for p in cell.curve])
    normalized = all(cell.last.normalized_score_mean is not None for cells in runs.values() for cell in cells)
    return _lines(data, styles, env, "training updates", "normalised score" if normalized else "return of an episode")


def target_returns(env: str, runs: Runs, styles: Styles) -> Figure | None:
    """Achieved against asked return, with the diagonal on which both are the same."""
    data = _common(
        runs,
        _steering,
    )
    figure = _lines(data, styles, env, "asked return", "achieved return")
    if figure is not None:
        (axes,) = figure.axes
        asked = [x for series in data.values() for x in series]
        ends = [min(asked), max(asked)]
        axes.plot(ends, ends, color="0.35", linestyle=":", label="achieved = asked", zorder=1)
        axes.legend(frameon=False)
    return figure


def _steering(cell: Cell) -> list[tuple[float, float]]:
    """Asked and achieved returns."""
    return [(asked, score.return_mean) for score in cell.sweep if (asked := score.target_return) is not None]


def action_time(env: str, runs: Runs, styles: Styles) -> Figure | None:
    """Time of one action against the step of the episode."""
    return _costs(env, runs, styles, "time per action (µs)", lambda cost: cost.microseconds)


def state_memory(env: str, runs: Runs, styles: Styles) -> Figure | None:
    """Size of what a policy carries from step to step, against the step of the episode."""
    return _costs(env, runs, styles, "state memory (kB)", lambda cost: cost.state_bytes / 1000)


DRAW: dict[str, Callable[[str, Runs, Styles], Figure | None]] = {
    "learning_curves": learning_curves,
    "target_returns": target_returns,
    "action_time": action_time,
    "state_memory": state_memory,
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
    """A line and a band for every agent; None where no agent has a point."""
    if not any(data.values()):
        return None
    # Not by way of pyplot, which would keep every figure and choose a window system.
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    for agent, series in data.items():
        if series:
            _band(axes, agent, series, styles)
    axes.set_title(_plain(title))
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def _band(axes: Axes, agent: str, series: Series, styles: Styles) -> None:
    color, marker = styles[agent]
    x, y = np.array(list(series)), np.array(list(series.values()))
    seeds = y.shape[1]
    name = f"{_plain(label(agent))} ({seeds} {'seeds' if seeds > 1 else 'seed'})"
    axes.plot(x, y.mean(axis=1), color=color, marker=marker, markersize=4, linewidth=1.8, label=name, zorder=3)
    if seeds > 1:
        axes.fill_between(x, y.min(axis=1), y.max(axis=1), color=color, alpha=0.18, linewidth=0, zorder=2)


def _plain(text: str) -> str:
    """Text in which matplotlib sees no mathematics, and whose first letter hides no legend entry."""
    return text.replace("$", r"\$").lstrip("_")
