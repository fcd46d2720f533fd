"""The pictures of docs/benchmark.md, of the results that scripts/table1 wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from table1_cells import CLONED, OURS, THEIRS, of

from aaren_rl.compare.cells import Cell
from aaren_rl.compare.figures import DATA, INK, SOFT, paint
from aaren_rl.compare.statistics import differences, group, imitation, summarize
from aaren_rl.evaluate.scores import Estimate
from aaren_rl.policies.names import label, style

RIVALS = (THEIRS, CLONED)
SHOWN = (OURS, THEIRS, CLONED)  # in figures that would be too full with every agent
COLUMNS = 2  # of panels
WIDTH = 5.0  # inches: letters keep their size on a phone
LINEAR = 1e-3  # action error below which the axis is linear: intervals reach 0 and past it


def figures(cells: Sequence[Cell]) -> dict[str, Figure]:
    """By name."""
    main = of(cells, *SHOWN)
    return {"scores": scores(main), "steering": steering(of(cells, OURS, THEIRS)), "forest": forest(main)}


def scores(cells: Sequence[Cell]) -> Figure:
    """A row a set: scores with their intervals beside what the data return, and excess MSE."""
    groups = group(cells)
    agents = list(dict.fromkeys(agent for by_agent in groups.values() for agent in by_agent))
    figure = Figure(figsize=(WIDTH, 2.4 + 1.1 * len(groups)), layout="constrained")
    left, right = figure.subplots(2, 1, sharey=True)
    at = {agent: 0.6 * ((i + 0.5) / len(agents) - 0.5) for i, agent in enumerate(agents)}
    row = {env: i for i, env in enumerate(groups)}
    for s in summarize(cells):
        _mark(left, s.mean, row[s.env] + at[s.agent], s.agent)
    errors = [(i, i.above_floor) for i in imitation(cells) if i.above_floor is not None]
    for i, above in errors:
        _mark(right, above, row[i.env] + at[i.agent], i.agent)
    for env, by_agent in groups.items():
        for name, value in next(iter(by_agent.values()))[0].last.data_headlines().items():
            if name in DATA:
                style = {"color": SOFT, "linestyle": DATA[name][1], "linewidth": 1.3, "zorder": 1}
                left.plot([value] * 2, [row[env] - 0.38, row[env] + 0.38], **style)
    left.set_yticks(range(len(groups)), list(groups), fontsize=9)
    left.set(xlabel="normalized score, local sets", ylim=(len(groups) - 0.5, -0.5))
    left.set_xlim(left=min(0.0, left.get_xlim()[0]))
    # Between agents that learn and one that has a tenth of a small set lie factors of ten.
    right.set_xscale("symlog", linthresh=LINEAR)
    # An interval past 0 ends at the axis, a value does not.
    right.set(xlabel="excess action MSE, held out", xlim=(min([0.0, *(e.value for _, e in errors)]), None))
    right.xaxis.set_major_formatter("{x:g}")
    for axes in (left, right):
        paint(axes)
    handles = [_handle(agent) for agent in agents]
    handles += [Line2D([], [], color=SOFT, linestyle=line, linewidth=1.3, label=name) for name, line in DATA.values()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=9, labelcolor=INK)
    return figure


def forest(cells: Sequence[Cell]) -> Figure:
    """A panel a rival: per set and over all, how far Decision-Aaren is ahead."""
    envs: list[str | None] = [*group(cells), None]
    figure = Figure(figsize=(WIDTH, 1.4 + 0.4 * len(envs)), layout="constrained")
    panels = figure.subplots(1, len(RIVALS), sharey=True)
    for axes, rival in zip(panels, RIVALS, strict=True):
        for pair in differences(of(cells, OURS, rival)):
            _mark(axes, pair.estimate, envs.index(pair.env), OURS)
        axes.axvline(0, color=SOFT, linewidth=1.2, zorder=1)
        axes.axhline(len(envs) - 1.5, color=SOFT, linewidth=0.8)
        axes.set(ylim=(len(envs) - 0.5, -0.5))
        axes.set_title(f"minus {label(rival)}", fontsize=9, color=INK)
        axes.tick_params(labelsize=8)
        paint(axes)
    panels[0].set_yticks(range(len(envs)), fontsize=9, labels=[env or f"mean of {len(envs) - 1}" for env in envs])
    figure.supxlabel("difference of scores: right of 0 Decision-Aaren is ahead", fontsize=9, color=INK)
    return figure


def steering(cells: Sequence[Cell]) -> Figure:
    """A panel a set."""
    groups = group(cells)
    rows = -(-len(groups) // COLUMNS)
    figure = Figure(figsize=(WIDTH, 1.3 + 2.1 * rows), layout="constrained")
    panels = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    shown: dict[str, None] = {}
    for axes, (env, runs) in zip(panels, groups.items(), strict=False):
        shown |= dict.fromkeys(_steering(axes, runs))
        axes.set_title(env, fontsize=9, color=INK)
        axes.tick_params(labelsize=8)
        paint(axes)
    for axes in panels[len(groups) :]:
        axes.set_visible(False)
    figure.supxlabel("target return", fontsize=10, color=INK)
    figure.supylabel("achieved return", fontsize=10, color=INK)
    handles = [_handle(agent) for agent in shown]
    handles.append(Line2D([], [], color=SOFT, linestyle=":", label="achieved = target"))
    figure.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False, fontsize=9, labelcolor=INK)
    return figure


def _steering(axes: Axes, runs: Mapping[str, Sequence[Cell]]) -> list[str]:
    """The agents that are drawn: means over seeds, and thin lines of the seeds."""
    drawn = []
    for agent, found in runs.items():
        if not found[0].sweep:
            continue
        color, marker = style(agent)
        asked = [score.target_return for score in found[0].sweep]
        returns = np.array([[score.return_mean for score in cell.sweep] for cell in found])
        axes.plot(asked, returns.T, color=color, alpha=0.4, linewidth=0.7)
        axes.plot(asked, returns.mean(0), color=color, marker=marker, markersize=4, linewidth=2)
        axes.plot(asked, asked, color=SOFT, linestyle=":", zorder=1)
        axes.set(xlim=(0, None), ylim=(min(0.0, returns.min()), None))
        drawn.append(agent)
    return drawn


def _mark(axes: Axes, estimate: Estimate, y: float, agent: str) -> None:
    color, marker = style(agent)
    if estimate.interval is not None:
        axes.plot(estimate.interval, [y, y], color=color, linewidth=5, alpha=0.3, solid_capstyle="butt")
    axes.plot([estimate.value], [y], color=color, marker=marker, markersize=6, markeredgewidth=0, clip_on=False)


def _handle(agent: str) -> Line2D:
    color, marker = style(agent)
    dots: dict[str, Any] = {"markersize": 6, "markeredgewidth": 0, "linewidth": 2}
    return Line2D([], [], color=color, marker=marker, label=label(agent), **dots)
