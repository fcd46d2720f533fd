"""The charts of docs/benchmarks, from what the benchmarks printed there: one color and one marker per agent.

Widths are those of a phone's page, on which letters keep their size; a wider page shows a chart larger.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import memory_page
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from aaren_rl.compare.report import INK, SOFT, paint
from aaren_rl.policies.table import label, style

DOCS = Path(__file__).resolve().parent.parent / "docs"
WIDTH = 5.0  # inches, of 72 points; a phone shows some 360 points
MODES = {"recurrent": "-", "window": "-", "staggered": "--"}


def rows(text: str, head: str) -> list[list[str]]:
    """The rows of the first table below a line that begins with `head`, up to an empty line."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.strip().startswith(head))
    table = []
    for line in lines[first + 1 :]:
        if not line.strip():
            break
        table.append(line.split())
    return table


def printed(name: str) -> str:
    """What `scripts/bench NAME` printed."""
    return (DOCS / "benchmarks" / f"{name}.txt").read_text(encoding="utf-8")


def number(text: str) -> float:
    """A number with commas."""
    return float(text.replace(",", ""))


def agent_line(agent: str, **more: object) -> dict[str, Any]:
    """How every chart draws an agent."""
    color, marker = style(agent)
    return {"color": color, "marker": marker, "markersize": 5, "markeredgewidth": 0, "linewidth": 1.7, **more}


def finish(axes: Axes, x: str, y: str, *, log: str = "xy") -> None:
    """Labels, plain numbers, and the colors that a dark page exchanges."""
    axes.set(xlabel=x, ylabel=y, **{f"{axis}scale": "log" for axis in log})
    for axis in (getattr(axes, f"{name}axis") for name in log):
        axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
        axis.set_minor_formatter(NullFormatter())
    paint(axes)
    axes.minorticks_off()


def legend(figure: Figure, axes: Axes, columns: int = 2) -> None:
    """One legend below all panels."""
    handles, names = axes.get_legend_handles_labels()
    shown = figure.legend(
        handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=9, labelcolor=INK,
        handlelength=2.4, columnspacing=1.2,
    )  # fmt: skip
    for line in shown.get_lines():
        line.set(linewidth=min(line.get_linewidth(), 1.7), markersize=min(line.get_markersize(), 5))


def learning() -> Figure:
    """Excess error against seconds and against gradient steps."""
    figure = Figure(figsize=(WIDTH, 5.6), layout="constrained")
    panels = figure.subplots(2, 1, sharey=True)
    points: dict[str, list[list[str]]] = {}
    for row in rows(printed("learning"), "recipe"):
        points.setdefault(row[0].partition(":")[2], []).append(row)
    for axes, column, x in zip(panels, (2, 1), ("seconds of training", "gradient steps"), strict=True):
        for agent, found in points.items():
            at = [number(row[column]) for row in found]
            axes.plot(at, [number(row[-1]) for row in found], label=label(agent), **agent_line(agent))
        finish(axes, x, "excess MSE, held out")
        axes.set_yticks([0.003, 0.01, 0.03])
    legend(figure, panels[0], 1)
    return figure


def steering() -> Figure:
    """Achieved against target return on hopper-medium, and on the right what `auto` achieves."""
    text = printed("steering")
    part = text[text.rindex("$ ") :]
    head = next(line.split() for line in part.splitlines() if line.startswith("target "))
    found = [[number(word) for word in row if "(" not in word] for row in rows(part, "target ")]
    asked = [row[0] for row in found]
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(asked, asked, color=SOFT, linestyle=":", label="achieved = target")
    mean = number(next(line for line in part.splitlines() if line.startswith("mean return")).split()[5])
    axes.axhline(mean, color=SOFT, linewidth=0.9)
    axes.annotate("mean of the data", (asked[-1], mean), va="bottom", ha="right", fontsize=9, color=SOFT)
    automatic = [number(word) for word in next(x for x in part.splitlines() if x.startswith("auto")).split()[1::2]]
    for k, agent in enumerate(head[1:]):
        axes.plot(asked, [row[k + 1] for row in found], label=label(agent), **agent_line(agent))
        axes.plot([asked[-1] * 1.08], [automatic[k]], **agent_line(agent, linestyle=""))
    axes.annotate("auto", (asked[-1] * 1.08, max(automatic)), xytext=(0, 8), textcoords="offset points", ha="center",
                  fontsize=9, color=SOFT)  # fmt: skip
    finish(axes, "target return", "achieved return", log="")
    axes.set(ylim=(0, None))
    legend(figure, axes)
    return figure


def rollout() -> Figure:
    """Time of an action and size of the state by the step of the episode."""
    figure = Figure(figsize=(WIDTH, 5.6), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    modes: dict[str, list[list[str]]] = {}
    for row in rows(printed("rollout").partition("  at step 10")[0] + "\n\n", "step "):
        modes.setdefault(row[0], []).append(row)
    for name, found in modes.items():
        agent, mode = name.split(":")
        line = agent_line(agent, linestyle=MODES[mode])
        if (agent, mode) == ("decision-transformer", "recurrent"):
            line |= {"linestyle": ":", "markerfacecolor": "none", "markeredgewidth": 1.2}
        at = [number(row[1]) for row in found]
        what = "KV cache" if agent == "decision-transformer" and mode == "recurrent" else mode
        panels[0].plot(at, [number(row[2]) / 1000 for row in found], label=f"{label(agent)}, {what}", **line)
        panels[1].plot(at, [number(row[5]) / 1000 for row in found], **line)
    finish(panels[0], "", "time of an action, ms")
    finish(panels[1], "step of the episode", "state, kB")
    legend(figure, panels[0], 1)
    return figure


def scan() -> Figure:
    """Time of the scan against its length: forward solid, forward and backward dashed."""
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.add_subplot()
    found = rows(printed("scan"), "length ")
    looks = {"copy": (SOFT, "o"), "numba": (style("decision-aaren")[0], "o"), "blocked": ("#009e73", "v"),
             "attention": (style("decision-transformer")[0], "s")}  # fmt: skip
    for method, (color, marker) in looks.items():
        of = [row for row in found if row[1] == method]
        line: dict[str, Any] = {"color": color, "marker": marker, "markersize": 5, "linewidth": 1.7}
        axes.plot([number(row[0]) for row in of], [number(row[2]) for row in of], label=method, **line)
        if method != "copy":
            axes.plot([number(row[0]) for row in of], [number(row[-2]) for row in of], linestyle="--", **line)
    axes.plot([], [], color=SOFT, linestyle="--", label="with backward")
    finish(axes, "positions", "ms")
    axes.set_xticks([1024, 4096, 8192])
    legend(figure, axes, 3)
    return figure


def train() -> Figure:
    """Milliseconds of a gradient step, by agent or package and precision, at two sizes."""
    figure = Figure(figsize=(WIDTH, 6.6), layout="constrained")
    parts = printed("train").split("\nwidth ")[1:3]
    for axes, part in zip(figure.subplots(2, 1), parts, strict=True):
        table = rows(part.partition(" takes ")[0] + "\n\n", "precision")
        table = [row for row in table if row[-1].endswith("%")][::-1]
        names = [" ".join(row[:-6]).replace("DecisionTransformerModel", "").strip() for row in table]
        colors = [style(name.partition(",")[0])[0] if "decision" in name else "#9e9e9e" for name in names]
        labels = [
            f"{name}, {row[-6].replace('float', '')} bit".replace("b16", "16")
            for name, row in zip(names, table, strict=True)
        ]
        times = [float(row[-5]) for row in table]
        bars = axes.barh(labels, times, color=colors, height=0.66)
        axes.bar_label(bars, [f"{time:,.0f}" for time in times], padding=3, fontsize=9, color=INK)
        axes.set_title(f"width {part.splitlines()[0]}", fontsize=9, color=INK)
        finish(axes, "ms per gradient step", "", log="")
        axes.tick_params(axis="y", labelsize=8.5, length=0)
        axes.set_xlim(0, 1.15 * max(times))
    return figure


def several() -> Figure:
    """Hopper's logs of six controllers: scores by recipe, a point per seed; when a controller and a policy fall."""
    found = json.loads((DOCS / "results" / "measured.json").read_text(encoding="utf-8"))["several"]["sets"]["hopper"]
    figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
    scores, falls = figure.subplots(2, 1, height_ratios=(3, 1))
    names = {
        "uniform": "all episodes\nalike",
        "decision_transformer": "Decision\nTransformer",
        "clone": "best tenth\ncloned",
        "default": "the default",
    }
    colors = [SOFT, style("decision-transformer")[0], style("bc-top10")[0], style("decision-aaren")[0]]
    for place, (name, color) in enumerate(zip(names, colors, strict=True)):
        values = found[name] if isinstance(found[name], list) else [found[name]]
        scores.plot([place] * len(values), values, "o", color=color, markersize=6, alpha=0.8, markeredgewidth=0)
    for text, name in (
        ("best tenth of the episodes", "best_tenth"),
        ("best controller", "best_controller"),
        ("all", "data_mean"),
    ):
        scores.axhline(found[name], color=SOFT, linestyle=":", linewidth=1.1)
        scores.annotate(text, (-0.45, found[name]), va="bottom", fontsize=9, color=SOFT)
    finish(scores, "", "normalized score", log="")
    scores.set(xlim=(-0.5, 3.5), ylim=(0, 125), xticks=range(4), xticklabels=names.values())
    for place, (name, color) in enumerate({"policy_falls": colors[3], "controller_falls": SOFT}.items()):
        falls.plot(found[name], [place] * len(found[name]), "|", color=color, markersize=16, markeredgewidth=1.3)
    finish(falls, "step at which it falls", "", log="")
    falls.set(xlim=(0, 1000), ylim=(-0.7, 1.7), yticks=(0, 1), yticklabels=("policy\nof 81.2", "controller\nTRPO"))
    return figure


def memory_tasks() -> Figure:
    """Tasks that need memory: scores over seconds of training, a line per agent."""
    found = memory_page.results()[1]
    figure = Figure(figsize=(WIDTH, 0.6 + 1.9 * ((len(found) + 1) // 2)), layout="constrained")
    panels = figure.subplots((len(found) + 1) // 2, 2, squeeze=False).ravel()
    for axes in panels[len(found) :]:
        axes.axis("off")
    for axes, (task, of) in zip(panels, found.items(), strict=False):
        for agent, runs in of.items():
            ours = agent in ("decision-aaren", memory_page.NO_GATE)
            line = agent_line("decision-aaren" if ours else agent, markersize=3)
            dashed = {"linestyle": "--"} if agent == memory_page.NO_GATE else {}
            axes.plot(*zip(*memory_page.mean_curve(runs), strict=True), label=memory_page.name(agent), **line, **dashed)
        axes.set_title(task, fontsize=8.5, color=INK)
        finish(axes, "seconds of training", "%", log="")
        axes.set_ylim(0, 105)
    # Not every agent is in every panel.
    lines = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


CHARTS: dict[str, Callable[[], Figure]] = {
    "several": several,
    "learning": learning,
    "steering": steering,
    "rollout": rollout,
    "memory_tasks": memory_tasks,
    "scan": scan,
    "train": train,
}


def names(folder: Path) -> Sequence[Path]:
    """All drawings and charts of the documentation."""
    return sorted(file for part in ("figures", "results", "benchmarks") for file in (folder / part).rglob("*.svg"))
