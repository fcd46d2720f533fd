"""The checkpoints that training goes on from: weights, optimiser, every random state, and the scores so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..runs.checkpoints import Saved, add_checkpoint, newest_whole

WEIGHTS = {"raw": dict, "average": dict}
STATES = WEIGHTS | {"optimizer": dict, "sampler": Tensor, "recent": Tensor, "torch": Tensor}  # what one must hold


@dataclass(frozen=True)
class Checkpoint:
    """Everything training needs to go on as if it had not stopped."""

    update: int  # updates done
    raw: Mapping[str, Tensor]  # the weights
    average: Mapping[str, Tensor]  # their moving average
    trainer: dict[str, Any]  # optimizer state and random states, as tensors and plain values
    progress: dict[str, Any]  # scores so far, as JSON values


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Adds `checkpoint` to a run's checkpoints folder; the last two are kept, also where this raises OSError."""
    weights = {"raw": dict(checkpoint.raw), "average": dict(checkpoint.average)}
    add_checkpoint(folder, checkpoint.update, checkpoint.progress, weights | checkpoint.trainer)


def find_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint of a run that is whole, or None before its first; errors are those of `newest_whole`."""

    def read(saved: Saved) -> Checkpoint:
        raw, average = (saved.states.pop(name) for name in WEIGHTS)
        return Checkpoint(saved.number, raw, average, saved.states, saved.progress)

    return newest_whole(folder, STATES, read)
