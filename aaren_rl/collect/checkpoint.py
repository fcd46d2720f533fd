"""What a collecting run leaves behind to go on from: checkpoints/<steps>.pt and the experience in replay/."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..envs.files import writing
from ..errors import DamagedCheckpointError, one_line
from ..runs.checkpoints import Saved as File
from ..runs.checkpoints import add_checkpoint, newest_whole
from .replay import Chunk, Replay, read_chunks
from .target import Evaluation


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
    add_checkpoint(run / "checkpoints", steps, progress.to_json(), trainer)


def load_run(run: Path) -> Saved | None:
    """The newest checkpoint of a run that is whole, with all its experience; None where nothing was saved yet.

    Raises:
        CheckpointError: all are damaged; the message names what is wrong with the newest.
    """
    return newest_whole(run / "checkpoints", {}, lambda file: _read(file, run / "replay"))


def _read(file: File, replay: Path) -> Saved:
    try:
        progress = Progress.from_json(file.progress)
        return Saved(file.number, file.states, read_chunks(replay, progress.chunks), progress)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedCheckpointError(f"{file.file}: not readable: {one_line(error)}") from error


def saving(path: Path) -> AbstractContextManager[None]:
    """Turns a full disk into one line; what was saved before is still there."""
    return writing(path, "move it; --resume goes on from the last save")
