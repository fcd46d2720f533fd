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
from .replay import Replay, read_chunks, write_chunk
from .target import Evaluation


@dataclass(frozen=True)
class Saved:
    """A checkpoint.

    Attributes:
        steps: environment steps taken.
        trainer: the trainer's state.
        replay: all experience.
        evaluations: of the actors in actors/, in order.
        restarts: rows of experience at which every environment began a new episode because the run was resumed.
    """

    steps: int
    trainer: dict[str, Any]
    replay: Replay
    evaluations: tuple[Evaluation, ...] = ()
    restarts: tuple[int, ...] = ()


def save_run(run: Path, saved: Saved, first: int) -> None:
    """Adds the experience from row `first` on to replay/, then a checkpoint, and drops all but the last two.

    Raises:
        OSError: the disk is full or the folder cannot be written; the checkpoints that were there still are.
    """
    new = saved.replay.rows(slice(first, None))
    if len(new.rewards):
        write_chunk(run / "replay", first, new)
    evaluations = [dataclasses.asdict(evaluation) for evaluation in saved.evaluations]
    progress = {"evaluations": evaluations, "rows": len(saved.replay.rewards), "restarts": saved.restarts}
    add_checkpoint(run / "checkpoints", saved.steps, progress, saved.trainer)


def load_run(run: Path) -> Saved | None:
    """The newest checkpoint of a run that is whole, with all its experience; None where nothing was saved yet.

    Raises:
        CheckpointError: all are damaged; the message names what is wrong with the newest.
    """

    def read(file: File) -> Saved:
        try:
            evaluations = tuple(Evaluation(**values) for values in file.progress["evaluations"])
            replay = read_chunks(run / "replay", file.progress["rows"])
            return Saved(file.number, file.states, replay, evaluations, tuple(file.progress["restarts"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedCheckpointError(f"{file.file}: not readable: {one_line(error)}") from error

    return newest_whole(run / "checkpoints", {}, read)


def saving(path: Path) -> AbstractContextManager[None]:
    """Turns a full disk into one line; what was saved before is still there."""
    return writing(path, "move it; --resume goes on from the last save")
