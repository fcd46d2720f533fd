"""The checkpoints that training goes on from: weights, optimizer, every random state, and the scores so far."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from ..runs.checkpoints import Saved, newest_whole

# What one must hold, beside what `Trainer.states` adds.
STATES = {"raw": dict, "average": dict, "optimizer": dict, "sampler": Tensor, "recent": Tensor, "torch": Tensor}


def find_checkpoint(folder: Path) -> Saved | None:
    """The newest checkpoint of a run that is whole, or None before its first; errors are those of `newest_whole`."""
    return newest_whole(folder, STATES, lambda saved: saved)
