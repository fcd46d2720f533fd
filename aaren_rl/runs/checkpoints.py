"""A run's checkpoints/: one file a checkpoint, named by its number; the newest that is whole is gone on from.

A file appears whole or not at all. It is what torch.save writes, a zip archive, whose CRC-32 show damage. Nothing in it
is executed: torch.load(weights_only=True).
"""

from __future__ import annotations

import io
import json
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from ..envs.errors import DataError
from ..envs.files import write_whole
from ..errors import CheckpointError, DamagedCheckpointError, one_line

T = TypeVar("T")

KEPT = 2  # the last checkpoints of a run


class Saved(NamedTuple):
    """A checkpoint: its file, the updates or steps done, the scores so far (JSON values), tensors and plain values."""

    file: Path
    number: int
    progress: dict[str, Any]
    states: dict[str, Any]


def add_checkpoint(parent: Path, number: int, progress: dict[str, Any], states: dict[str, Any]) -> None:
    """Adds a checkpoint to a run's folder of them, or replaces that of the same number; deletes all but the last KEPT.

    Raises OSError where it cannot be written; the checkpoints that were there still are.
    """
    content = io.BytesIO()  # torch hides what goes wrong in writing
    torch.save({"progress": json.dumps(progress), "states": states}, content)
    parent.mkdir(parents=True, exist_ok=True)
    write_whole(parent / f"{number:08d}.pt", content.getbuffer())
    for old in _files(parent)[:-KEPT]:
        old.unlink()


def newest_whole(parent: Path, needed: Mapping[str, type], read: Callable[[Saved], T]) -> T | None:
    """What `read` makes of the newest checkpoint that is whole; None where there is none at all.

    A line on standard error names each one that is damaged and passed over. `needed` are the states that one must hold,
    name -> type; `read` raises DataError where what belongs to the checkpoint is damaged.

    Raises:
        CheckpointError: all are damaged, or one is whole but cannot be gone on from.
    """
    problems: list[str] = []
    for file in reversed(_files(parent)):
        try:
            found = read(_read(file, needed))
        except (DamagedCheckpointError, DataError) as error:
            problems.append(str(error))
        else:
            for problem in problems:
                print(f"note: {problem}; going on from the last good one, {file.stem}", file=sys.stderr)
            return found
    if problems:
        raise CheckpointError(
            f"{problems[0]}; no older checkpoint is whole: restore one from a copy, or start again with another --out"
        )
    return None


def _files(parent: Path) -> list[Path]:
    return sorted((p for p in parent.glob("*.pt") if p.stem.isdecimal()), key=lambda p: int(p.stem))


def _read(file: Path, needed: Mapping[str, type]) -> Saved:
    try:
        with zipfile.ZipFile(file) as archive:
            if (damaged := archive.testzip()) is not None:
                raise zipfile.BadZipFile(f"the checksum of {damaged} is another")
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise DamagedCheckpointError(f"{file}: damaged: {one_line(error)}") from error
    # It is as it was written: the one before is no better, unless the user says so.
    way_out = f"training cannot go on from it exactly; delete {file} to go on from the one before"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about the types in a file that is refused
            tree = torch.load(file, map_location="cpu", weights_only=True)
        progress, states = json.loads(tree["progress"]), dict(tree["states"])
    except MemoryError:  # says nothing of the file
        raise
    except Exception as error:  # torch raises whatever its readers meet in a file of unknown origin
        # Its message is not passed on: it tells how to execute the file all the same.
        raise CheckpointError(f"{file}: holds other things than tensors, nothing was executed; {way_out}") from error
    if lacking := [name for name, kind in needed.items() if not isinstance(states.get(name), kind)]:
        raise CheckpointError(f"{file}: has no state of {', '.join(lacking)}; {way_out}")
    return Saved(file, int(file.stem), progress, states)
