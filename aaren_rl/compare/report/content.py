"""What a comparison's report says, and in which order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...policies.names import label
from ..cells import Cell
from ..statistics import group
from . import tables
from .document import Document, Plot, Section, Text
from .figures import OVERVIEW
from .imitation import imitation_tables
from .words import agents_of, answer, joined

# kind of figure: (what it shows, what is said where it is missing)
_PLOTS = {
    "learning_curves": (
        "score of the evaluations during training against the number of updates",
        "there are no evaluations during training that all seeds of an agent share",
    ),
    "target_returns": (
        "achieved against asked return, and the diagonal on which both are the same",
        "other asked returns were not tried",
    ),
    "time_per_action": ("time of an action against the step of the episode", "the time of an action was not measured"),
    "state_memory": (
        "memory of the policy's state against the step of the episode",
        "the memory of the policy's state was not measured",
    ),
}


def compose(cells: Sequence[Cell], settings: Mapping[str, Any], figures: Collection[str]) -> Document:
    """The report of comparable runs, with the figures of these names."""

    def plots(*kinds: str) -> list[Plot | Text]:
        return [_plot(kind, env, runs, figures) for env, runs in group(cells).items() for kind in kinds]

    tasks = joined(list(group(cells)))
    opening = f"{tasks}: the score of every training seed, each agent's mean, and what the data return"
    return Document(
        title=f"{joined([label(agent) for agent in agents_of(cells)])} on {tasks}",
        opening=Plot(OVERVIEW, opening),
        answer=answer(cells),
        sections=[
            Section("Scores", tables.scores(cells)),
            Section("Probability of improvement", tables.improvement(cells)),
            Section("Imitation", imitation_tables(cells)),
            Section("While training, and asked for other returns", plots("learning_curves", "target_returns")),
            Section("Cost", [tables.cost(cells), *plots("time_per_action", "state_memory")]),
            Section("How it was made", tables.made(cells, settings)),
            Section("Every training seed", [tables.seeds(cells)], folded=True),
        ],
    )


def _plot(kind: str, env: str, runs: Mapping[str, Sequence[Cell]], figures: Collection[str]) -> Plot | Text:
    name, (shows, missing) = f"{kind}/{env}", _PLOTS[kind]
    if name not in figures:
        return Text(f"{env}: {missing}.")
    agents = joined([f"{label(agent)} ({len(cells)} training seeds)" for agent, cells in runs.items()])
    return Plot(name, f"{env}: {shows}. {agents}; thick lines are means over training seeds, thin ones the seeds.")
