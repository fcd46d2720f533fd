"""The checkpoints that training goes on from: weights, optimiser, every random state, and the scores so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import CheckpointError
from ..runs.checkpoints import Saved, add_checkpoint, newest_whole

WEIGHTS = {"raw": dict, "average": dict}
STATES = WEIGHTS | {"optimizer": dict, "sampler": Tensor, "recent": Tensor, "torch": Tensor}  # what one must hold


@dataclass(frozen=True)
class Checkpoint:
    """Everything training needs to go on as if it had not stopped.

    Attributes:
        update: updates done.
        raw: the weights.
        average: their moving average.
        trainer: optimiser state and random states, as tensors and plain values.
        progress: scores so far, as JSON values.
    """

    update: int
    raw: Mapping[str, Tensor]
    average: Mapping[str, Tensor]
    trainer: dict[str, Any]
    progress: dict[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Adds `checkpoint` to a run's checkpoints folder; the last two are kept.

    Raises:
        OSError: the disk is full or the folder cannot be written; the checkpoints that were there still are.
    """
    weights = {"raw": dict(checkpoint.raw), "average": dict(checkpoint.average)}
    add_checkpoint(folder, checkpoint.update, checkpoint.progress, weights | checkpoint.trainer)


def find_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint of a run that is whole, or None where it was stopped before its first.

    A line on standard error names those passed over.

    Raises:
        CheckpointError: all are damaged, or the newest is whole but lacks a part.
    """
    return newest_whole(folder, STATES, _read_checkpoint)


def load_checkpoint(folder: Path) -> Checkpoint:
    """`find_checkpoint` where there must be one.

    Raises:
        CheckpointError: also where there is none.
    """
    found = find_checkpoint(folder)
    if found is None:
        raise CheckpointError(f"{folder}: no checkpoint to resume from")
    return found


def _read_checkpoint(saved: Saved) -> Checkpoint:
    weights = {name: saved.states.pop(name) for name in WEIGHTS}
    return Checkpoint(saved.number, **weights, trainer=saved.states, progress=saved.progress)
