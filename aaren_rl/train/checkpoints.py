"""A run's checkpoints/: one file per checkpoint, named by its number. Training resumes from the newest intact one.

A file appears whole or not at all. It is a zip archive of torch.save, whose CRC-32 checksums show damage. Nothing in it
is executed: torch.load(weights_only=True).
"""

import io
import json
import sys
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..base.errors import CheckpointError, DamagedCheckpointError, one_line
from ..base.files import write_whole
from .folder import checkpoint_files

KEPT = 2  # the last checkpoints of a run


class Checkpoint(NamedTuple):
    """A checkpoint: its file, the updates or steps done, the scores so far (JSON values), tensors and plain values."""

    file: Path
    number: int
    progress: dict[str, Any]
    states: dict[str, Any]


def add_checkpoint(parent: Path, number: int, progress: dict[str, Any], states: dict[str, Any]) -> None:
    """Adds a checkpoint to a run's checkpoints/, or replaces the one of the same number; KEPT remain up to this one.

    Raises OSError if it cannot be written; earlier checkpoints remain.
    """
    content = io.BytesIO()  # torch hides the error of a failed write
    torch.save({"progress": json.dumps(progress), "states": states}, content)
    parent.mkdir(parents=True, exist_ok=True)
    write_whole(parent / f"{number:08d}.pt", content.getbuffer())
    # Later ones are damaged, or this run would have begun from them.
    for old in [file for file in checkpoint_files(parent) if int(file.stem) <= number][:-KEPT]:
        old.unlink()


def newest_whole(parent: Path, needed: Mapping[str, type]) -> Checkpoint | None:
    """The newest intact checkpoint; None if there is no checkpoint.

    A line on standard error names each damaged checkpoint that is skipped. `needed` are the states that a checkpoint
    must hold, name -> type.

    Raises:
        CheckpointError: all are damaged, or the newest intact one cannot be resumed from.
    """
    problems: list[str] = []
    for file in reversed(checkpoint_files(parent)):
        try:
            found = _read(file, needed)
        except DamagedCheckpointError as error:
            problems.append(str(error))
        else:
            for problem in problems:
                print(f"note: {problem}; resuming from the last intact checkpoint, {file.stem}", file=sys.stderr)
            return found
    if problems:
        raise CheckpointError(
            f"{problems[0]}; no older checkpoint is intact; restore one, or start a new run with another --out"
        )
    return None


def _read(file: Path, needed: Mapping[str, type]) -> Checkpoint:
    try:
        with zipfile.ZipFile(file) as archive:
            if (damaged := archive.testzip()) is not None:
                raise zipfile.BadZipFile(f"the checksum of {damaged} does not match")
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise DamagedCheckpointError(f"{file}: damaged: {one_line(error)}") from error
    # The file is intact, so the user decides whether to resume from the checkpoint before it.
    way_out = (
        f"training cannot resume from it exactly; delete {file} to resume from the checkpoint before it, or start a "
        "new run with another --out"
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, about the types in a rejected file
            tree = torch.load(file, map_location="cpu", weights_only=True)
        progress, states = json.loads(tree["progress"]), dict(tree["states"])
    except MemoryError:  # the file may be intact
        raise
    except Exception as error:  # torch raises errors of many types for an untrusted file
        # Its message is dropped: it explains how to execute the file anyway.
        raise CheckpointError(f"{file}: holds more than tensors, nothing was executed; {way_out}") from error
    if lacking := [name for name, kind in needed.items() if not isinstance(states.get(name), kind)]:
        raise CheckpointError(f"{file}: lacks the state of {', '.join(lacking)}; {way_out}")
    return Checkpoint(file, int(file.stem), progress, states)
