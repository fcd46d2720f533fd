"""The picture of docs/benchmark.md, of the results that scripts/table1 wrote."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from table1_cells import CLONED, OURS, THEIRS, of
from table1_statistics import differences

from aaren_rl.compare.measure import Cell
from aaren_rl.compare.report import INK, SOFT, paint
from aaren_rl.compare.statistics import group
from aaren_rl.evaluate.scores import Estimate
from aaren_rl.policies.table import label, style

RIVALS = (THEIRS, CLONED)
WIDTH = 5.0  # inches: letters keep their size on a phone


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


def _mark(axes: Axes, estimate: Estimate, y: float, agent: str) -> None:
    color, marker = style(agent)
    if estimate.interval is not None:
        axes.plot(estimate.interval, [y, y], color=color, linewidth=5, alpha=0.3, solid_capstyle="butt")
    axes.plot([estimate.value], [y], color=color, marker=marker, markersize=6, markeredgewidth=0, clip_on=False)
