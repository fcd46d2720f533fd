"""The checkpoints that training goes on from: weights, optimiser, every random state, and the scores so far.

A checkpoint is a folder that appears whole or not at all: two safetensors files, trainer.pt (tensors and plain values)
and manifest.json with the SHA-256 of each. Nothing that is read here is executed: JSON, safetensors, and tensors by
torch.load(weights_only=True).
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..envs.files import sha256
from ..errors import CheckpointError, DamagedCheckpointError
from ..files import write_folder, write_json
from ..policies.tensors import FORMAT, WEIGHTS, load_tensors, save_tensors
from ..runs.checkpoints import checkpoint_folders, drop_old, newest_whole

TRAINER = "trainer.pt"
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
        trainer = io.BytesIO()  # torch hides what goes wrong in writing
        torch.save(checkpoint.trainer, trainer)
        (fresh / TRAINER).write_bytes(trainer.getbuffer())
        files = {file.name: sha256(file) for file in sorted(fresh.iterdir())}
        manifest = {"format": FORMAT, "update": checkpoint.update, "progress": checkpoint.progress, "sha256": files}
        write_json(fresh / "manifest.json", manifest)

    write_folder(folder / f"{checkpoint.update:08d}", fill)
    best = checkpoint.progress.get("best")
    drop_old(folder, also=() if best is None else (best["updates"],))


def find_checkpoint(folder: Path) -> Checkpoint | None:
    """`load_checkpoint`, or None where a run was stopped before its first."""
    return load_checkpoint(folder) if checkpoint_folders(folder) else None


def load_checkpoint(folder: Path) -> Checkpoint:
    """The newest checkpoint of a run that is whole; a line on standard error names those passed over.

    Raises:
        CheckpointError: there is none, all are damaged, or the newest is whole but lacks a part.
    """
    found = newest_whole(folder, _read_checkpoint)
    if found is None:
        raise CheckpointError(f"{folder}: no checkpoint to resume from")
    return found


def _read_checkpoint(folder: Path) -> Checkpoint:
    manifest = _read_manifest(folder)
    try:
        for name, digest in manifest["sha256"].items():
            if sha256(folder / name) != digest:
                raise DamagedCheckpointError(f"{folder / name}: damaged (its SHA-256 is not the manifest's)")
        raw, average = (load_tensors(folder / WEIGHTS[weights]) for weights in ("raw", "average"))
    except (OSError, CheckpointError) as error:
        raise DamagedCheckpointError(str(error)) from error
    return Checkpoint(manifest["update"], raw, average, _read_trainer(folder / TRAINER), manifest["progress"])


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        files, update, progress = (manifest[key] for key in ("sha256", "update", "progress"))
        whole = manifest["format"] == FORMAT and set(files) == {*WEIGHTS.values(), TRAINER}
        if not (whole and type(update) is int and update >= 0 and isinstance(progress, dict)):
            raise DamagedCheckpointError(f"{folder}: not a checkpoint of format {FORMAT}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedCheckpointError(f"{folder}: not readable: {' '.join(str(error).split())[:200]}") from error
    return dict(manifest)


def _read_trainer(file: Path) -> dict[str, Any]:
    """The states; an error here is not damage, the SHA-256 was the manifest's: an older checkpoint is no way out.

    Raises:
        CheckpointError: not tensors and plain values, or a state is missing.
    """
    way_out = f"training cannot go on from it exactly; delete {file.parent} to go on from the one before"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about the types in a file that is refused
            trainer = torch.load(file, map_location="cpu", weights_only=True)
    except MemoryError:  # says nothing of the file
        raise
    except Exception as error:  # torch raises whatever its readers meet in a file of unknown origin
        # Its message is not passed on: it tells how to execute the file all the same.
        raise CheckpointError(f"{file}: holds other things than tensors, nothing was executed; {way_out}") from error
    kinds = trainer if isinstance(trainer, dict) else {}
    lacking = [name for name, kind in STATES.items() if not isinstance(kinds.get(name), kind)]
    if lacking:
        raise CheckpointError(f"{file}: has no state of {', '.join(lacking)}; {way_out}")
    return dict(trainer)
