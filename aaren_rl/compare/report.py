"""The report of a comparison: tables in Markdown, those of scores for the terminal, and figures."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..base.files import write_folder, write_text
from ..cli import listed
from ..evaluate.scores import interval, markdown, memory, number
from ..policies.card import MARKS
from ..policies.table import label, style
from .measure import Cell
from .statistics import MIN_SEEDS, RESAMPLES, aggregate, group, imitation, improvements, rows_of, summarize

Table = tuple[str, list[str], list[list[str]]]  # title, heads, rows

NOTES = f"""\
Scores are those of the last gradient step. The column *best* has the weights that were best during training, on
episodes that did not choose them. *sd*: standard deviation over training seeds. *IQM*: interquartile mean, without the
lowest and the highest quarter of the runs. In brackets: 95% intervals by a stratified bootstrap over training seeds
({RESAMPLES:,} resamples), given from {MIN_SEEDS} seeds on; of three seeds, they reach from the worst to the best.
Intervals of held-out errors are over episodes. The probability of improvement is that a run of the one agent scores
above a run of the other: Mann and Whitney's U over the number of pairs, a tie counting half. Only scores on D4RL's own
files, marked D4RL, are D4RL results."""


def scores(cells: Sequence[Cell]) -> list[Table]:
    """Every agent on every task, over the tasks, and in pairs."""
    mark = {cell.env: MARKS[cell.last.source] for cell in cells}
    rows = []
    for s in summarize(cells):
        digits = 1 if s.normalized else None
        means = interval(s.mean, digits), number(s.std, digits), interval(s.iqm, digits), number(s.best, digits)
        rows.append([s.env, label(s.agent), mark[s.env], *means, number(s.mean_of_last, digits), listed(s.seeds)])
    heads = ["task", "agent", "data", "mean [95%]", "sd", "IQM [95%]", "best", "mean of last", "seeds"]
    over = [[label(a.agent), interval(a.mean), interval(a.iqm), str(a.runs)] for a in aggregate(cells)]
    pairs = [
        [pair.env or "all", f"{label(pair.first)} above {label(pair.second)}", interval(pair.estimate, 2)]
        for pair in improvements(cells)
    ]
    return [
        ("Scores", heads, rows),
        ("Over all tasks", ["agent", "mean of means [95%]", "IQM of all runs [95%]", "runs"], over),
        ("Probability of improvement", ["task", "a run of", "P [95%]"], pairs),
    ]


def errors(cells: Sequence[Cell]) -> Table:
    """Held-out errors."""
    rows = []
    for i in imitation(cells):
        more = interval(i.above_floor, 4) if i.accuracy is None else f"accuracy {i.accuracy:.3f}"
        rows.append([i.env, label(i.agent), i.measure, interval(i.error, 4), more, f"{i.episodes:,}"])
    return "Held-out error", ["task", "agent", "measure", "error [95%]", "excess MSE [95%]", "episodes"], rows


def cost(cells: Sequence[Cell]) -> Table:
    """Parameters and times, and the memory of the state at the last step that was measured: medians over seeds."""
    rows = []
    for env, agent, runs in rows_of(cells):
        seconds = [run.seconds_per_update for run in runs if run.seconds_per_update is not None]
        late = [run.action_cost[-1] for run in runs if run.action_cost]
        parameters = listed(f"{count:,}" for count in sorted({run.parameters for run in runs}))
        update = f"{1000 * median(seconds):,.1f} ms" if seconds else "-"
        action = f"{median(cost.microseconds for cost in late):,.0f} µs" if late else "-"
        state = memory(median(cost.state_bytes for cost in late)) if late else "-"
        devices = listed(sorted({run.device for run in runs}))
        rows.append([env, label(agent), parameters, update, devices, action, state])
    heads = ["task", "agent", "parameters", "gradient step", "trained on", "an action", "state memory"]
    return "Cost (medians; an action: the policy alone, one environment, one thread)", heads, rows


def runs(cells: Sequence[Cell]) -> Table:
    """Every run."""
    rows = []
    for cell in (cell for _, _, of_agent in rows_of(cells) for cell in of_agent):
        last, digits = cell.last, 1 if cell.last.normalized_score_mean is not None else None
        scored = number(last.headline, digits), number(cell.best_headline, digits)
        returns = f"{number(last.return_mean, None)} ± {number(last.return_std, None)}", number(last.length_mean)
        held_out = "-" if last.action_error is None else last.action_error.short()
        more = f"{cell.loss:.4f}", held_out, path(cell.run)
        rows.append([cell.env, label(cell.agent), str(cell.seed), *scored, *returns, *more])
    heads = ["task", "agent", "seed", "score", "best", "return", "episode length", "loss", "held out", "run"]
    return "Every run", heads, rows


def write_report(out: Path, cells: Sequence[Cell], settings: Mapping[str, Any]) -> None:
    """Writes report.md and the folder figures/ into `out`; shows all `settings`."""
    drawn = figures(cells)

    def draw(fresh: Path) -> None:
        # Without a date and with a salt of its own the same results give the same files.
        with matplotlib.rc_context({"svg.hashsalt": "aaren-rl"}):
            for name, figure in drawn.items():
                figure.savefig(fresh / f"{name}.svg", metadata={"Date": None})

    tasks = listed(group(cells))
    parts = [f"# Comparison on {escaped(tasks)}", *(f"![{name}](figures/{name}.svg)" for name in drawn)]
    tables = [*scores(cells), errors(cells), cost(cells), runs(cells)]
    parts += [f"## {title}\n\n{markdown(heads, rows, escaped)}" for title, heads, rows in tables if rows]
    parts += [NOTES, *data_returns(cells)]
    parts += ["## Settings", *(f"    {' '.join(f'{name}: {value}'.split())}" for name, value in settings.items())]
    write_folder(out / "figures", draw)
    write_text(out / "report.md", "\n\n".join(parts) + "\n")


def format_comparison(cells: Sequence[Cell]) -> str:
    """The scores and held-out errors as text, for the end of the command."""
    tables = [table for table in (*scores(cells), errors(cells)) if table[2]]
    return "\n\n".join([*(f"{title}\n{markdown(heads, rows)}" for title, heads, rows in tables), *data_returns(cells)])


def data_returns(cells: Sequence[Cell]) -> list[str]:
    """For every task whose data's returns are known, a line of what they return and score."""
    lines = {cell.env: line for cell in cells[::-1] if (line := cell.last.data()) is not None}
    return [f"{env}, {lines[env]}" for env in group(cells) if env in lines]


def path(text: str) -> str:
    """A path without the name of the user whose folder it lies in, here or elsewhere: a report is shown to others."""
    return re.sub(rf"^({re.escape(os.path.expanduser('~'))}|/home/[^/]+|/Users/[^/]+|/root)(?=/|$)", "~", text)


def escaped(text: str) -> str:
    """Names and paths as they are in Markdown: no markup, no link, no new line or column."""
    return re.sub(r"([\\`*_|<>&#~]|(?<=\])\()", r"\\\1", " ".join(text.split()))


INK, SOFT, LINE = "#1c1f23", "#5a6270", "#d9dde3"  # text, what stands behind it, grids
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
    return {"all_scores": overview(cells)} | {env: figure for env, figure in drawn.items() if figure is not None}


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
        x_label = "return of an episode" if score.normalized_score_mean is None else "normalized score"
        axes.set_yticks(range(len(runs)), [_plain(label(agent)) for agent in runs])
        axes.set(ylim=(len(runs) - 0.5, -0.5), xlabel=x_label)
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


def _plain(text: str) -> str:
    """Text in which matplotlib sees no mathematics, and whose first letter hides no legend entry."""
    return text.replace("$", r"\$").lstrip("_")
