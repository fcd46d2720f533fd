"""What a comparison knows of every training run: written as results.json."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.files import write_json
from ..evaluate.scores import Score

FORMAT = 4


@dataclass(frozen=True)
class CurvePoint:
    """An evaluation during training: `headline` is the normalized score, or the return if there is none."""

    update: int
    headline: float


@dataclass(frozen=True)
class ActionCost:
    """What one action costs at a step of an episode: the policy alone, one environment, one thread."""

    step: int
    microseconds: float
    state_bytes: int


@dataclass(frozen=True)
class Cell:
    """One training run of a comparison, and everything the report shows of it.

    Attributes:
        env: the task, e.g. "hopper-medium".
        seconds_per_update: median over the run, on `device`: "cpu" or the GPU's name; None: not measured.
        device: where it was trained.
        loss: of the last gradient steps that were logged together, on the agent's own training contexts.
        last: the score after the last gradient step, which is reported; with the held-out action error, where known.
        best: the score of the weights that were best during training, on episodes that did not choose them; None where
            not asked for.
        mean_of_last: mean headline of the last `mean_of` evaluations during training.
        sweep: last scores for several target returns; none of an agent that sees no return-to-go.
        action_cost: at several steps of an episode, in order.
    """

    env: str
    agent: str
    seed: int
    run: str
    parameters: int
    updates: int
    seconds_per_update: float | None
    device: str
    loss: float
    last: Score
    best: Score | None
    mean_of_last: float
    mean_of: int
    curve: list[CurvePoint]
    sweep: list[Score]
    action_cost: list[ActionCost]

    @property
    def best_headline(self) -> float | None:
        """The best weights' normalized score, or the return if there is none; None if they were not scored."""
        return None if self.best is None else self.best.headline


def write_results(
    file: Path, cells: Sequence[Cell], settings: Mapping[str, Any], statistics: Mapping[str, Sequence[Any]]
) -> None:
    """Writes results.json, whole or not at all: cells, how they were made, and statistics (dataclasses) of them."""
    derived = {name: [dataclasses.asdict(item) for item in items] for name, items in statistics.items()}
    runs = [dataclasses.asdict(cell) for cell in cells]
    write_json(file, {"format": FORMAT, "settings": settings, "statistics": derived, "cells": runs})
