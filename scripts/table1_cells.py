"""The runs on the page of the benchmark: those of results/benchmark and, of other agents, those of results/table1.

In results/benchmark Decision-Aaren has a forget gate, which it lacks in results/table1. On the page these are two
agents.
"""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aaren_rl.base.errors import UsageError, one_line
from aaren_rl.base.fields import read as read_tree
from aaren_rl.compare.measure import RESULTS_FORMAT, Cell
from aaren_rl.policies.table import AGENTS, Agent, find_agent
from aaren_rl.sweep import Grid

OURS, THEIRS, CLONED = "decision-aaren", "decision-transformer", "bc-top10"
MINGRU, ONE_TOKEN = "decision-mingru", "decision-transformer-1token"
NO_GATE = f"{OURS}-no-gate"
# As tables have them: of two that are compared, the first is the one that ought to be better.
ORDER = (OURS, NO_GATE, MINGRU, ONE_TOKEN, THEIRS, CLONED, "bc")

# Fields of `Score` that all runs of a task share, and those that one agent's seeds share beyond them: how an agent is
# trained and rolled out is its nature.
_TASK = "dataset source source_path reference updates env_id episodes seed target_return weights".split()
_AGENT = ("context", "context_length", "rollout", "rollout_context", "attention")

Made = dict[str, dict[str, str]]  # run -> how it was made


@contextmanager
def variants() -> Iterator[None]:
    """Within, the package knows the page's agents, in the page's order."""
    kept = dict(AGENTS)
    shown = {name: _agent(name) for name in ORDER}
    AGENTS.clear()
    AGENTS.update(shown)
    try:
        yield
    finally:
        AGENTS.clear()
        AGENTS.update(kept)


def _agent(name: str) -> Agent:
    if name == NO_GATE:
        return dataclasses.replace(find_agent(OURS), name=name, label="Decision-Aaren, no gate", color="#86a9bf")
    return find_agent(name)


def read_results(file: Path) -> tuple[list[Cell], dict[str, Any]]:
    """The cells and settings that `write_results` wrote; UsageError where unreadable or not of this format."""
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
        if tree["format"] != RESULTS_FORMAT:
            raise UsageError(f"{file}: results of format {tree['format']}, this version reads {RESULTS_FORMAT}")
        return [read_tree(Cell, cell) for cell in tree["cells"]], tree["settings"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{file}: not a comparison's results: {one_line(error)}") from error


def read(docs: Path, grid: Grid) -> tuple[list[Cell], Made]:
    """The runs of all datasets in the grid's order, and how they were made.

    Raises:
        UsageError: two runs of a dataset differ in data, updates or evaluation.
    """
    cells: list[Cell] = []
    made: Made = {}
    for env in grid.envs:
        for folder in ("benchmark", "table1"):
            if (file := docs / "results" / folder / f"{env}.json").exists():
                found, settings = read_results(file)
                runs = [_renamed(cell, folder) for cell in found]
                made |= {run.run: settings["made"][cell.run] for run, cell in zip(runs, found, strict=True)}
                cells += runs
    shown = [cell for cell in cells if cell.agent in ORDER]
    if shown:
        check_comparable(shown)
    return shown, made


def _renamed(cell: Cell, folder: str) -> Cell:
    agent = NO_GATE if folder == "table1" and cell.agent == OURS else cell.agent
    return dataclasses.replace(cell, agent=agent, run=f"{folder}/{cell.run}")


def of(cells: Sequence[Cell], *agents: str) -> list[Cell]:
    """The runs of some agents."""
    return [cell for cell in cells if cell.agent in agents]


def check_comparable(cells: Sequence[Cell]) -> None:
    """Raises UsageError, which names the runs and what differs, where runs differ in more than they may.

    There are none, one is there twice, or two of a task differ in data, updates or evaluation, or two of one agent in
    how it is trained or rolled out.
    """
    if not cells:
        raise UsageError("nothing to compare: no runs")
    first: dict[tuple[object, ...], Cell] = {}  # of a task, of an agent on it, of a seed of that
    for cell in cells:
        twin = first.setdefault((cell.env, cell.agent, cell.seed), cell)
        if twin is not cell:
            raise UsageError(
                f"{twin.run} and {cell.run} are both {cell.agent} on {cell.env} with training seed {cell.seed}: "
                "a seed counts once"
            )
        _compare(first.setdefault((cell.env,), cell), cell, _TASK)
        _compare(first.setdefault((cell.env, cell.agent), cell), cell, _AGENT)


def _compare(first: Cell, second: Cell, fields: Sequence[str]) -> None:
    differences = []
    for name in fields:
        ours, theirs = getattr(first.last, name), getattr(second.last, name)
        if ours != theirs:
            differences.append(f"{'evaluation seed' if name == 'seed' else name} {ours!r} and {theirs!r}")
    if differences:
        raise UsageError(
            f"{first.run} ({first.agent}, seed {first.seed}) and {second.run} ({second.agent}, seed {second.seed}) "
            f"cannot be compared on {first.env}: {'; '.join(differences)}"
        )
