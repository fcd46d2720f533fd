"""The checkpoints that training goes on from: weights, optimiser, every random state, and the scores so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import CheckpointError, DamagedCheckpointError
from ..policies.tensors import FORMAT, WEIGHTS, load_tensors, save_tensors
from ..runs.checkpoints import Kind, Manifest, add_checkpoint, newest_whole, read_states

KIND = Kind(FORMAT, "update", digits=8, files=tuple(WEIGHTS.values()))
STATES = {"optimizer": dict, "sampler": Tensor, "recent": Tensor, "torch": Tensor}  # what trainer.pt must hold


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
    """Adds `checkpoint` to a run's checkpoints folder; the last few and the best one (`progress["best"]`) are kept.

    Raises:
        OSError: the disk is full or the folder cannot be written; the checkpoints that were there still are.
    """

    def fill(fresh: Path) -> None:
        save_tensors(checkpoint.raw, fresh / WEIGHTS["raw"])
        save_tensors(checkpoint.average, fresh / WEIGHTS["average"])

    manifest, best = Manifest(checkpoint.update, checkpoint.progress), checkpoint.progress.get("best")
    keep = () if best is None else (best["updates"],)
    add_checkpoint(folder, KIND, manifest, checkpoint.trainer, fill, keep=keep)


def find_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint of a run that is whole, or None where it was stopped before its first.

    A line on standard error names those passed over.

    Raises:
        CheckpointError: all are damaged, or the newest is whole but lacks a part.
    """
    return newest_whole(folder, KIND, _read_checkpoint)


def load_checkpoint(folder: Path) -> Checkpoint:
    """`find_checkpoint` where there must be one.

    Raises:
        CheckpointError: also where there is none.
    """
    found = find_checkpoint(folder)
    if found is None:
        raise CheckpointError(f"{folder}: no checkpoint to resume from")
    return found


def _read_checkpoint(folder: Path, manifest: Manifest) -> Checkpoint:
    try:
        raw, average = (load_tensors(folder / WEIGHTS[weights]) for weights in ("raw", "average"))
    except CheckpointError as error:
        raise DamagedCheckpointError(str(error)) from error
    return Checkpoint(manifest.number, raw, average, read_states(folder, STATES), manifest.progress)
