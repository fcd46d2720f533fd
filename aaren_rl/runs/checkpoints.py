"""A run's checkpoints/: one folder a checkpoint, named by its number, the last few kept; read from the newest back."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

from ..envs.errors import DataError
from ..errors import CheckpointError, DamagedCheckpointError

T = TypeVar("T")

KEPT = 2  # the last checkpoints of a run


def checkpoint_folders(parent: Path) -> list[Path]:
    """The checkpoints, oldest first; none where there is no such folder."""
    return sorted(p for p in parent.glob("[0-9]*") if p.is_dir()) if parent.is_dir() else []


def drop_old(parent: Path, also: Collection[int] = ()) -> None:
    """Deletes all but the last KEPT, and the numbers in `also`."""
    for old in checkpoint_folders(parent)[:-KEPT]:
        if not (old.name.isdecimal() and int(old.name) in also):
            shutil.rmtree(old)


def newest_whole(parent: Path, read: Callable[[Path], T]) -> T | None:
    """What `read` makes of the newest checkpoint that is whole; None where there is none at all.

    A line on standard error names each one that is damaged and passed over.

    Raises:
        CheckpointError: all are damaged, or one is whole but cannot be gone on from.
    """
    problems: list[str] = []
    for folder in reversed(checkpoint_folders(parent)):
        try:
            found = read(folder)
        except (DamagedCheckpointError, DataError) as error:
            problems.append(str(error))
            continue
        for problem in problems:
            print(f"note: {problem}; going on from the last good one, {folder.name}", file=sys.stderr)
        return found
    if problems:
        raise CheckpointError(
            f"{problems[0]}; no older checkpoint is whole: restore one from a copy, or start anew with another --out"
        )
    return None
