"""The runs on the page of the benchmark: those of results/benchmark and, of other agents, those of results/table1.

In results/benchmark Decision-Aaren has a forget gate, which it lacks in results/table1. On the page these are two
agents.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from aaren_rl.compare.cells import Cell, check_comparable, read_results
from aaren_rl.policies.names import AGENTS, Agent, find_agent
from aaren_rl.sweep.grid import Grid

OURS, THEIRS, CLONED = "decision-aaren", "decision-transformer", "bc-top10"
MINGRU, ONE_TOKEN = "decision-mingru", "decision-transformer-1token"
NO_GATE = f"{OURS}-no-gate"
# As tables have them: of two that are compared, the first is the one that ought to be better.
ORDER = (OURS, NO_GATE, MINGRU, ONE_TOKEN, THEIRS, CLONED, "bc")

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
