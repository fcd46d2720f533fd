"""A comparison in TensorBoard: every agent's numbers under the same tags, so that one chart shows them all.

A run is a cell, `<env>/<agent>/seed<k>`; a tag is a quantity and an environment, `eval/mean_return/hopper-medium`.
Quantities that a training run logs too have the same name there. TensorBoard sorts tags by name: scores come first.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

from matplotlib.figure import Figure
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from torch.utils.tensorboard import SummaryWriter

from ..base.files import write_folder
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
_STEP = "x: step of the episode"
# The first part of the tag: (what it is, points of a cell)
QUANTITIES: dict[str, tuple[str, Points]] = {
    "eval/normalized_score": ("Normalized score during training; x: gradient step", _headlines(True)),
    "eval/mean_return": ("Return during training. No normalized score is known; x: gradient step", _headlines(False)),
    "final_score/last": (f"{_LAST}; this is the reported score", _once("last.headline")),
    "final_score/best": ("Best weights during training; x: gradient steps", _once("best_headline")),
    "final_score/mean_of_last": ("Mean of the last evaluations; x: gradient steps", _once("mean_of_last")),
    "model/parameters": ("Number of weights of the model; x: gradient steps", _once("parameters")),
    "model/state_bytes": (f"Memory that the policy keeps between actions; {_STEP}", _SIZES),
    "steering/achieved_return": ("Mean return; x: target return in percent of the largest", _ACHIEVED),
    "steering/target_return": ("To compare with; x: target return in percent of the largest", _TARGETS),
    "time/microseconds_per_action": (f"The policy alone, one thread; {_STEP}", _TIMES),
    "time/seconds_per_update": ("Median, on the device of training", _once("seconds_per_update")),
    "train/loss": ("Mean of the last logged gradient steps, on the agent's contexts", _once("loss")),
    "val/accuracy": (f"Held out, discrete actions. {_LAST}", _held_out("val/accuracy")),
    "val/action_mse": (f"Held out, continuous actions. {_LAST}", _held_out("val/action_mse")),
    "val/excess_mse": (f"Held out, above the behavior's noise. {_LAST}", _held_out("val/excess_mse")),
    "val/nll": (f"Held out, discrete actions. {_LAST}", _held_out("val/nll")),
}


def write_board(out: Path, cells: Sequence[Cell], figures: Mapping[str, Figure], summary: str) -> None:
    """Writes `<out>/tensorboard/`, in place of what an earlier comparison wrote there.

    It shows every cell's curves (Scalars), the figures (Images), by name, and the summary (Text), in Markdown.
    """

    def fill(fresh: Path) -> None:
        # In a run of its own: TensorBoard calls one that lies in its folder itself ".".
        with SummaryWriter(str(fresh / WHOLE)) as writer:
            writer.add_text("summary", summary.rstrip() + SMOOTHING)
            for name, figure in figures.items():
                writer.add_figure(f"figures/{name}", figure, close=False)
        for cell in cells:
            with SummaryWriter(str(fresh / cell.env / cell.agent / f"seed{cell.seed}")) as writer:
                _write_cell(writer, cell)

    write_folder(out / "tensorboard", fill)


def _write_cell(writer: SummaryWriter, cell: Cell) -> None:
    for tag, (description, points) in QUANTITIES.items():
        # Not by add_scalar, which takes no description; TensorBoard shows it beside the chart's title.
        metadata = SummaryMetadata(summary_description=description)
        for step, number in points(cell):
            value = Summary.Value(tag=f"{tag}/{cell.env}", simple_value=number, metadata=metadata)
            writer._get_file_writer().add_summary(Summary(value=[value]), step)
