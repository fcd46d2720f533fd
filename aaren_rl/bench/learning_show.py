"""The table and the picture of the benchmark "learning"."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from ..policies.names import MARKS, label
from .learning_result import LearningResult


def format_learning(result: LearningResult) -> str:
    """The table to print."""
    floor = "" if result.floor is None else f", floor {result.floor:.4f}"
    lines = [
        str(result.machine),
        f"{result.env} ({MARKS[result.source]}), {result.steps:,} steps; error on {result.held_out_episodes} held-out "
        f"episodes, {result.held_out_steps:,} steps; seed {result.seed}",
        f"error of the data's mean action {result.trivial:.4f}{floor}; to come down to: {result.error:.4f}",
        "",
        f"{'recipe':<36}{'updates':>9}{'seconds':>9}{'error':>9}{'interval':>19}{'above floor':>13}",
    ]
    for curve in result.curves:
        for point in curve.points:
            above = "-" if result.floor is None else f"{point.error - result.floor:.4f}"
            interval = f"[{point.low:.4f}, {point.high:.4f}]"
            lines.append(
                f"{curve.recipe:<36}{point.updates:>9,}{point.seconds:>9.1f}{point.error:>9.4f}{interval:>19}{above:>13}"
            )
    last = result.curves[-1]
    lines += [
        "",
        f"{'to an error of ' + format(result.error, '.4f'):<36}{'updates':>9}{'seconds':>9}{'of ' + last.recipe:>40}",
    ]
    for curve in result.curves:
        if curve.seconds_to is None or curve.updates_to is None:
            lines.append(f"{curve.recipe:<36}{'-':>9}{'-':>9}{'-':>40}")
            continue
        share = "-" if last.seconds_to is None else f"{curve.seconds_to / last.seconds_to:.3f}"
        lines.append(f"{curve.recipe:<36}{curve.updates_to:>9,.0f}{curve.seconds_to:>9.1f}{share:>40}")
    return "\n".join(lines)


def plot(figures: dict[str, Any]) -> Figure:
    """Error against seconds and against updates, above the floor where it is known; all axes logarithmic."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    floor = figures["floor"] or 0.0
    panels = figure.subplots(1, 2, sharey=True)
    for axes, cost in zip(panels, ("seconds", "updates"), strict=True):
        for k, curve in enumerate(figures["curves"]):
            at = [point[cost] for point in curve["points"]]
            errors = [point["error"] - floor for point in curve["points"]]
            preset, _, agent = curve["recipe"].partition(":")
            name = label(agent) if preset == "default" else f"{label(agent)}, preset {preset}"
            axes.plot(at, errors, marker=".", color=f"C{k}", label=name)
        axes.axhline(figures["error"] - floor, color="0.5", linewidth=0.8, linestyle="--")
        axes.set(xscale="log", yscale="log", xlabel=f"{cost} of training")
        for axis in (axes.xaxis, axes.yaxis):  # 50, 100, 200, ... in place of powers of ten
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("held-out action error" + (" above the floor" if figures["floor"] else ""))
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2, fontsize="small")
    figure.suptitle(f"{figures['env']} ({figures['source']}), {figures['steps']:,} steps", fontsize="medium")
    return figure
