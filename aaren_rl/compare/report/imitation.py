"""The part of a report that says how well agents imitate the episodes that were kept from their training."""

from __future__ import annotations

from collections.abc import Sequence

from ...policies.names import label
from ..cells import Cell
from ..imitation import RESAMPLES, Imitation, ImitationDifference, imitation, imitation_differences
from .document import Column, Table, Text, words
from .words import NOTHING, interval, listed

_DIGITS = 4


def imitation_tables(cells: Sequence[Cell]) -> list[Text | Table]:
    """The action error of every agent on every task, and the differences between agents."""
    found = imitation(cells)
    if not found:
        return [Text("No run kept episodes from its training: imitation was not measured.")]
    blocks: list[Text | Table] = [
        Text(
            "The mean squared error of the action on episodes that a run was not trained on, played step by step as in "
            "a rollout, in units in which actions span [-1, 1]; mean over training seeds. Above the noise: less the "
            "variance of the behaviour's own random actions, which no policy can predict; where it is known. A better "
            f"imitation does not always score higher. In brackets: 95 % bootstrap intervals over episodes "
            f"({RESAMPLES:,} resamples), of these very seeds."
        ),
        _errors(found),
    ]
    if differences := imitation_differences(cells):
        blocks += [
            _differences(differences),
            Text(
                "Runs of one seed keep the same episodes from training, so agents are compared episode by episode; "
                "below 0 the first one imitates better. These intervals are over training seeds, and over the "
                "episodes of each; of one seed, over its episodes alone."
            ),
        ]
    return blocks


def _errors(found: Sequence[Imitation]) -> Table:
    rows = [
        [
            i.env,
            label(i.agent),
            interval(i.error, _DIGITS),
            NOTHING if i.above_floor is None else interval(i.above_floor, _DIGITS),
            f"{i.episodes:,}",
            listed(i.seeds),
        ]
        for i in found
    ]
    numbers = [Column(name) for name in ("action error [95 %]", "above the noise [95 %]", "episodes")]
    return Table("Action error on held-out episodes", [*words("task", "agent"), *numbers, *words("seeds")], rows)


def _differences(found: Sequence[ImitationDifference]) -> Table:
    rows = [
        [
            d.env or "all tasks",
            f"{label(d.first)} less {label(d.second)}",
            interval(d.difference, _DIGITS),
            f"{d.episodes:,}",
            listed(d.seeds),
        ]
        for d in found
    ]
    columns = [*words("task", "error of"), Column("difference [95 %]"), Column("pairs"), *words("seeds")]
    return Table("Difference of the action error, episode by episode", columns, rows)
