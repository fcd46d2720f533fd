"""What a collecting run leaves behind to go on from: checkpoints/<steps>/ and the experience in replay/.

Nothing that is read here is executed: JSON, safetensors, and tensors through torch.load(weights_only=True).
"""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..envs.errors import cannot_write
from ..envs.files import sha256
from ..errors import DamagedCheckpointError
from ..files import write_folder, write_json
from ..runs.checkpoints import drop_old, newest_whole
from .replay import Chunk, Replay, read_chunks
from .target import Evaluation

FORMAT = 1
TRAINER = "trainer.pt"


@dataclass(frozen=True)
class Progress:
    """What a run has done.

    Attributes:
        evaluations: of the actors in actors/, in order.
        chunks: the files of replay/, in order.
        restarts: rows of experience at which every environment began a new episode because the run was resumed.
    """

    evaluations: tuple[Evaluation, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    restarts: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Rows of experience in the chunks."""
        return sum(chunk.rows for chunk in self.chunks)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "evaluations": [dataclasses.asdict(evaluation) for evaluation in self.evaluations],
            "chunks": [chunk._asdict() for chunk in self.chunks],
            "restarts": list(self.restarts),
        }

    @staticmethod
    def from_json(tree: dict[str, Any]) -> Progress:
        """The reverse; raises KeyError, TypeError or ValueError where the values are others."""
        return Progress(
            tuple(Evaluation(**values) for values in tree["evaluations"]),
            tuple(Chunk(int(c["first"]), int(c["rows"]), str(c["sha256"])) for c in tree["chunks"]),
            tuple(int(row) for row in tree["restarts"]),
        )


@dataclass(frozen=True)
class Saved:
    """A checkpoint: environment steps taken, the trainer's state, all experience, and what has been done."""

    steps: int
    trainer: dict[str, Any]
    replay: Replay
    progress: Progress


def save_run(run: Path, steps: int, trainer: dict[str, Any], progress: Progress) -> None:
    """Adds a checkpoint to the run's folder, and drops all but the last KEPT.

    The chunks of `progress` must be written before.

    Raises:
        OSError: the disk is full or the folder cannot be written; the checkpoints that were there still are.
    """

    def fill(fresh: Path) -> None:
        torch.save(trainer, fresh / TRAINER)
        digest = sha256(fresh / TRAINER)
        write_json(
            fresh / "manifest.json",
            {"format": FORMAT, "steps": steps, "sha256": {TRAINER: digest}, "progress": progress.to_json()},
        )

    folder = run / "checkpoints"
    write_folder(folder / f"{steps:010d}", fill)
    drop_old(folder)


def load_run(run: Path) -> Saved | None:
    """The newest checkpoint of a run that is whole, with all its experience; None where nothing was saved yet.

    Raises:
        CheckpointError: all are damaged; the message names what is wrong with the newest.
    """
    return newest_whole(run / "checkpoints", lambda folder: _read(folder, run / "replay"))


def _read(folder: Path, replay: Path) -> Saved:
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise DamagedCheckpointError(f"{folder}: not a checkpoint of format {FORMAT}")
        if sha256(folder / TRAINER) != manifest["sha256"][TRAINER]:
            raise DamagedCheckpointError(f"{folder / TRAINER}: damaged (its SHA-256 is not the manifest's)")
        trainer = torch.load(folder / TRAINER, weights_only=True, map_location="cpu")
        progress = Progress.from_json(manifest["progress"])
        return Saved(int(manifest["steps"]), trainer, read_chunks(replay, progress.chunks), progress)
    except (OSError, ValueError, KeyError, TypeError, pickle.UnpicklingError, RuntimeError) as error:
        raise DamagedCheckpointError(f"{folder}: not readable: {' '.join(str(error).split())[:200]}") from error


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """Turns a full disk into one line; what was saved before is still there."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error, "move it; --resume goes on from the last save") from error
