"""Saves and loads a `collect` run: checkpoints/<steps>.pt, and all experience in replay/, in files written once."""

import io
import zipfile
import zlib
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..base.errors import DamagedCheckpointError, DataError, one_line
from ..base.files import write_whole, writing
from ..runs.checkpoints import Checkpoint, add_checkpoint, newest_whole
from .config import Evaluation

# The arrays of Stable-Baselines3's replay buffer, by name. Rows are steps of all E environments: (R, E, ...), float32.
# Actions are in [-1, 1]; `dones` marks an episode's last step, `timeouts` those that the time limit truncated.
Experience: TypeAlias = dict[str, npt.NDArray[np.float32]]
ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


@dataclass(frozen=True)
class Saved:
    """A checkpoint after `steps` environment steps, with all experience so far and the evaluations of actors/.

    `resumed` are the rows of experience before which the run was resumed: all environments began new episodes there.
    """

    steps: int
    trainer: dict[str, Any]
    experience: Experience
    evaluations: list[Evaluation]
    resumed: list[int]


def save_run(run: Path, saved: Saved, first: int) -> None:
    """Adds the experience from row `first` on to replay/, then a checkpoint, and drops all but the last two.

    Raises OSError if the disk is full or not writable; earlier checkpoints remain.
    """
    rows = len(saved.experience["rewards"])
    if rows > first:
        content = io.BytesIO()
        np.savez(content, **{name: array[first:] for name, array in saved.experience.items()})  # type: ignore[arg-type]
        (run / "replay").mkdir(parents=True, exist_ok=True)
        write_whole(run / "replay" / f"{first:010d}.npz", content.getbuffer())
    evaluations = [asdict(evaluation) for evaluation in saved.evaluations]
    progress = {"evaluations": evaluations, "rows": rows, "resumed": saved.resumed}
    add_checkpoint(run / "checkpoints", saved.steps, progress, saved.trainer)


def load_run(run: Path) -> Saved | None:
    """The newest intact checkpoint of a run with all its experience; None if nothing is saved yet.

    Raises CheckpointError if all are damaged; the message describes the newest.
    """

    def read(file: Checkpoint) -> Saved:
        try:
            evaluations = [Evaluation(**values) for values in file.progress["evaluations"]]
            experience = _read(run / "replay", file.progress["rows"])
            return Saved(file.number, file.states, experience, evaluations, list(file.progress["resumed"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedCheckpointError(f"{file.file}: not readable: {one_line(error)}") from error

    return newest_whole(run / "checkpoints", {}, read)


def _read(folder: Path, rows: int) -> Experience:
    """The first `rows` rows; a run resumed from an older checkpoint may have left later files, which are ignored."""
    parts: list[Experience] = []
    first = 0
    while first < rows:
        path = folder / f"{first:010d}.npz"
        try:
            with np.load(path, allow_pickle=False) as arrays:
                parts.append({name: arrays[name] for name in ARRAYS})
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{path}: not readable: {one_line(error)}; restore it from a copy") from error
        first += len(parts[-1]["rewards"])
    if first != rows:
        raise DataError(f"{folder}: has {first:,} rows, the checkpoint {rows:,}; restore it from a copy")
    return {name: np.concatenate([part[name] for part in parts]) for name in ARRAYS}


def saving(path: Path) -> AbstractContextManager[None]:
    """Turns a full disk into one line; earlier checkpoints remain."""
    return writing(path, "move it; --resume continues from the last save")
