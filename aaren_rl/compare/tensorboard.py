"""A comparison in TensorBoard: every agent's numbers under the same tags, so that one chart shows them all.

A run is a cell, `<env>/<agent>/seed<k>`; a tag is a quantity and an environment, `eval/mean_return/hopper-medium`.
Quantities that a training run logs too have the same name there. TensorBoard sorts tags by name: scores come first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from operator import attrgetter
from pathlib import Path

from matplotlib.figure import Figure
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from ..base.files import write_folder
from ..policies.names import target_words
from .cells import Cell

WHOLE = "comparison"  # the run of what belongs to no one cell
# Smoothed, a state that grows to 10 kB seems to end at 5.
SMOOTHING = "\n\nTensorBoard smooths curves: set *Smoothing* to 0 to see the measured values.\n"
Points = Callable[[Cell], list[tuple[int, float]]]  # of a curve: x and y


def _once(name: str) -> Points:
    number = attrgetter(name)
    return lambda cell: [] if number(cell) is None else [(cell.updates, number(cell))]


def _curve(items: str, x: str, y: str) -> Points:
    """By their names, what of a cell's items is drawn over what; without the latter an item has no point."""

    def points(cell: Cell) -> list[tuple[int, float]]:
        found = [(getattr(item, x), getattr(item, y)) for item in getattr(cell, items)]
        return sorted((round(at), number) for at, number in found if at is not None)

    return points


def _headlines(normalized: bool) -> Points:
    points = _curve("curve", "update", "headline")
    return lambda cell: points(cell) if normalized == (cell.last.normalized_score_mean is not None) else []


def _held_out(tag: str) -> Points:
    def points(cell: Cell) -> list[tuple[int, float]]:
        scalars = {} if cell.last.action_error is None else cell.last.action_error.scalars()
        return [(cell.updates, scalars[tag])] if tag in scalars else []

    return points


def _steering(name: str) -> Points:
    """Over targets in percent of the largest: TensorBoard's x is an integer, and returns can be small."""

    def points(cell: Cell) -> list[tuple[int, float]]:
        asked = [float(score.target_return) for score in cell.sweep]
        largest = max(map(abs, asked), default=0.0) or 1.0
        found = zip(asked, cell.sweep, strict=True)
        return sorted((round(100 * target / largest), getattr(score, name)) for target, score in found)

    return points


_LAST = "Last weights; x: gradient steps"
_ACHIEVED, _TARGETS = map(_steering, ("return_mean", "target_return"))
_TIMES, _SIZES = (_curve("action_cost", "step", name) for name in ("microseconds", "state_bytes"))
_STEERING, _STEP = "achieved return against target return", "x: step of the episode"
# The first part of the tag: (title of its chart in the page of custom scalars, what it is, points of a cell)
QUANTITIES: dict[str, tuple[str, str, Points]] = {
    "eval/normalized_score": ("score during training", "Normalized score; x: gradient step", _headlines(True)),
    "eval/mean_return": ("return during training", "No normalized score is known; x: gradient step", _headlines(False)),
    "final_score/last": ("final score", f"{_LAST}; this is the reported score", _once("last.headline")),
    "final_score/best": ("final score", "Best weights during training; x: gradient steps", _once("best_headline")),
    "final_score/mean_of_last": (
        "final score",
        "Mean of the last evaluations; x: gradient steps",
        _once("mean_of_last"),
    ),
    "model/parameters": ("parameters", "Number of weights of the model; x: gradient steps", _once("parameters")),
    "model/state_bytes": ("bytes of state", f"Memory that the policy keeps between actions; {_STEP}", _SIZES),
    "steering/achieved_return": (_STEERING, "Mean return; x: target return in percent of the largest", _ACHIEVED),
    "steering/target_return": (_STEERING, "To compare with; x: target return in percent of the largest", _TARGETS),
    "time/microseconds_per_action": ("microseconds per action", f"The policy alone, one thread; {_STEP}", _TIMES),
    "time/seconds_per_update": ("seconds per gradient step", "Median, on hparams' device", _once("seconds_per_update")),
    "train/loss": (
        "loss",
        "Mean of the last logged gradient steps, on the agent's contexts; x: gradient steps",
        _once("loss"),
    ),
    "val/accuracy": ("held-out accuracy", f"Discrete actions. {_LAST}", _held_out("val/accuracy")),
    "val/action_mse": ("held-out action MSE", f"Continuous actions. {_LAST}", _held_out("val/action_mse")),
    "val/excess_mse": ("held-out excess MSE", f"Above the behavior's noise. {_LAST}", _held_out("val/excess_mse")),
    "val/nll": ("held-out negative log-likelihood", f"Discrete actions. {_LAST}", _held_out("val/nll")),
}

# Of the table of hparams, the last point of each. TensorBoard finds a metric by its tag: these are of no environment.
METRICS = {
    "hparam/normalized_score": _once("last.normalized_score_mean"),
    "hparam/mean_return": _once("last.return_mean"),
    "hparam/best_score": _once("best_headline"),
    "hparam/parameters": _once("parameters"),
    "hparam/seconds_per_update": _once("seconds_per_update"),
    "hparam/microseconds_per_action": _TIMES,
    "hparam/state_bytes": _SIZES,
}


def write_board(out: Path, cells: Sequence[Cell], figures: Mapping[str, Figure], summary: str) -> None:
    """Writes `<out>/tensorboard/`, in place of what an earlier comparison wrote there.

    It shows every cell's curves (Scalars), all agents in one chart (Custom Scalars), a table of settings and scores
    (HParams), the figures (Images), by name, and the summary (Text), in Markdown.
    """

    def fill(fresh: Path) -> None:
        # In a run of its own: TensorBoard calls one that lies in its folder itself ".".
        with SummaryWriter(str(fresh / WHOLE)) as writer:
            _write_whole(writer, cells, figures, summary)
        for cell in cells:
            with SummaryWriter(str(fresh / cell.env / cell.agent / f"seed{cell.seed}")) as writer:
                _write_cell(writer, cell)

    write_folder(out / "tensorboard", fill)


def _write_whole(writer: SummaryWriter, cells: Sequence[Cell], figures: Mapping[str, Figure], summary: str) -> None:
    writer.add_custom_scalars(_layout(cells))
    writer.add_text("summary", summary.rstrip() + SMOOTHING)
    for name, figure in figures.items():
        writer.add_figure(f"figures/{name}", figure, close=False)
    # The table's columns, with each setting's values to filter by. Those of single cells would not do: TensorBoard
    # reads the first that it finds.
    settings = [_settings(cell) for cell in cells]
    values = {name: list(dict.fromkeys(row[name] for row in settings)) for name in settings[0]}
    metrics = {name: 0.0 for name, points in METRICS.items() if any(map(points, cells))}
    columns, _, _ = hparams(settings[-1], metrics, values)
    writer._get_file_writer().add_summary(columns)


def _write_cell(writer: SummaryWriter, cell: Cell) -> None:
    def add(tag: str, step: int, number: float, description: str = "") -> None:
        # Not by add_scalar, which takes no description; TensorBoard shows it beside the chart's title.
        metadata = SummaryMetadata(summary_description=description)
        value = Summary.Value(tag=tag, simple_value=number, metadata=metadata)
        writer._get_file_writer().add_summary(Summary(value=[value]), step)

    for tag, (_, description, points) in QUANTITIES.items():
        for step, number in points(cell):
            add(f"{tag}/{cell.env}", step, number, description)
    # Straight into the cell's run: SummaryWriter.add_hparams would make a run of its own for them.
    _, start, end = hparams(_settings(cell), {})
    writer._get_file_writer().add_summary(start)
    for tag, points in METRICS.items():
        if found := points(cell):
            add(tag, cell.updates, found[-1][1])
    writer._get_file_writer().add_summary(end)


def _layout(cells: Sequence[Cell]) -> dict[str, dict[str, tuple[str, list[str]]]]:
    layout: dict[str, dict[str, tuple[str, list[str]]]] = {cell.env: {} for cell in cells}
    for env, (tag, (title, _, points)) in product(layout, QUANTITIES.items()):
        if any(points(cell) for cell in cells if cell.env == env):
            # The plugin takes regular expressions and matches beginnings: hopper-medium would match -medium-replay.
            layout[env].setdefault(title, ("Multiline", []))[1].append(f"^{re.escape(f'{tag}/{env}')}$")
    return layout


def _settings(cell: Cell) -> dict[str, str | float]:
    # TensorBoard sorts the columns by name, shows only the first five at first, and writes a number 3 as 3.0000: hence
    # names that begin late in the alphabet for what is of less interest, and texts for what nobody computes with.
    last = cell.last
    return {
        "agent": cell.agent,
        "env": cell.env,
        "rollout": last.acting() + last.choosing(),
        "seed": str(cell.seed),
        "target_return": target_words(last.target_return),
        "timed_on": cell.device,
        "trained_on": last.source,
        "training_context": last.context,
        "updates": cell.updates,
        "weights": last.weights,
    }
