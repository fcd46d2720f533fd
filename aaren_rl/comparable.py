"""Which runs may stand in one table: those that differ in agent, task and training seed alone."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import UsageError
from .results import Cell

# Fields of `Score` that all runs of a task share, and those that one agent's seeds share beyond them: how an agent is
# trained and rolled out is its nature.
OF_THE_TASK = (
    "dataset",
    "source",
    "source_path",
    "reference",
    "updates",
    "env_id",
    "episodes",
    "seed",
    "target_return",
    "weights",
)
OF_THE_AGENT = ("context", "context_length", "rollout", "rollout_context", "attention")
NAMES = {"seed": "evaluation seed"}


def check_comparable(cells: Sequence[Cell]) -> None:
    """Refuses a comparison whose runs differ in more than they may.

    Raises:
        UsageError: there are none, one is there twice, or two runs of a task differ in data, updates or evaluation, or
            two of one agent in how it is trained or rolled out; names the runs and what differs.
    """
    if not cells:
        raise UsageError("nothing to compare: no runs")
    of_task: dict[str, Cell] = {}
    of_agent: dict[tuple[str, str], Cell] = {}
    of_seed: dict[tuple[str, str, int], Cell] = {}
    for cell in cells:
        twin = of_seed.setdefault((cell.env, cell.agent, cell.seed), cell)
        if twin is not cell:
            raise UsageError(
                f"{twin.run} and {cell.run} are both {cell.agent} on {cell.env} with training seed {cell.seed}: "
                "a seed counts once"
            )
        _compare(of_task.setdefault(cell.env, cell), cell, OF_THE_TASK)
        _compare(of_agent.setdefault((cell.env, cell.agent), cell), cell, OF_THE_AGENT)


def _compare(first: Cell, second: Cell, fields: Sequence[str]) -> None:
    differences = [
        f"{NAMES.get(field, field)} {getattr(first.last, field)!r} and {getattr(second.last, field)!r}"
        for field in fields
        if getattr(first.last, field) != getattr(second.last, field)
    ]
    if differences:
        raise UsageError(
            f"{first.run} ({first.agent}, seed {first.seed}) and {second.run} ({second.agent}, seed {second.seed}) "
            f"cannot be compared on {first.env}: {'; '.join(differences)}"
        )
