"""A comparison in TensorBoard: every agent's numbers under the same tags, so that one chart shows them all.

A run is a cell, `<env>/<agent>/seed<k>`; a tag is a quantity and an environment, `eval/mean_return/hopper-medium`.
Quantities that a training run logs too have the same name there. TensorBoard sorts tags by name: scores come first.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from torch.utils.tensorboard import SummaryWriter

from ..base.files import write_folder
from .cells import Cell

WHOLE = "comparison"  # the run of what belongs to no one cell
NOTES = """

The x axis is the gradient step; of `model/state_bytes` and `time/microseconds_per_action` the step of the episode; of
`steering` the target return in percent of the largest. TensorBoard smooths curves: set *Smoothing* to 0 to see the
measured values.
"""


def write_board(out: Path, cells: Sequence[Cell], figures: Mapping[str, Figure], summary: str) -> None:
    """Writes `<out>/tensorboard/`, in place of what an earlier comparison wrote there.

    It shows every cell's curves (Scalars), the figures (Images), by name, and the summary (Text), in Markdown.
    """

    def fill(fresh: Path) -> None:
        # In a run of its own: TensorBoard calls one that lies in its folder itself ".".
        with SummaryWriter(str(fresh / WHOLE)) as writer:
            writer.add_text("summary", summary.rstrip() + NOTES)
            for name, figure in figures.items():
                writer.add_figure(f"figures/{name}", figure, close=False)
        for cell in cells:
            with SummaryWriter(str(fresh / cell.env / cell.agent / f"seed{cell.seed}")) as writer:
                for tag, value, step in points(cell):
                    writer.add_scalar(f"{tag}/{cell.env}", value, step)

    write_folder(out / "tensorboard", fill)


def points(cell: Cell) -> Iterator[tuple[str, float, int]]:
    """Tag, value and x of everything that is drawn of a run."""
    evaluated = "eval/mean_return" if cell.last.normalized_score_mean is None else "eval/normalized_score"
    for point in cell.curve:
        yield evaluated, point.headline, point.update
    once = {
        "final_score/last": cell.last.headline,
        "final_score/best": cell.best_headline,
        "final_score/mean_of_last": cell.mean_of_last,
        "model/parameters": cell.parameters,
        "time/seconds_per_update": cell.seconds_per_update,
        "train/loss": cell.loss,
        **({} if cell.last.action_error is None else cell.last.action_error.scalars()),
    }
    for tag, value in once.items():
        if value is not None:
            yield tag, value, cell.updates
    for cost in cell.action_cost:
        yield "model/state_bytes", cost.state_bytes, cost.step
        yield "time/microseconds_per_action", cost.microseconds, cost.step
    # TensorBoard's x is an integer, and returns can be small.
    largest = max((abs(float(score.target_return)) for score in cell.sweep), default=0.0) or 1.0
    for score in cell.sweep:
        x = round(100 * float(score.target_return) / largest)
        yield "steering/achieved_return", score.return_mean, x
        yield "steering/target_return", float(score.target_return), x
