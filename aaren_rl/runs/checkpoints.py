"""A run's checkpoints/: one folder a checkpoint, named by its number, the last few kept; read from the newest back.

A checkpoint appears whole or not at all: trainer.pt (tensors and plain values), what else its kind of run needs, and
manifest.json with the SHA-256 of each. Nothing that is read here is executed: JSON, and tensors by
torch.load(weights_only=True).
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..envs.errors import DataError
from ..envs.files import sha256
from ..errors import CheckpointError, DamagedCheckpointError, one_line
from ..files import write_folder, write_json

T = TypeVar("T")

KEPT = 2  # the last checkpoints of a run
MANIFEST, TRAINER = "manifest.json", "trainer.pt"


@dataclass(frozen=True)
class Kind:
    """The checkpoints of one kind of run.

    Attributes:
        format: what a manifest says it is.
        clock: what the checkpoints are numbered by, as a manifest calls it.
        digits: of a folder's name.
        files: what is there beside the manifest and trainer.pt.
    """

    format: int
    clock: str
    digits: int
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """What manifest.json says: the updates or steps done, and the scores so far as JSON values."""

    number: int
    progress: dict[str, Any]


def add_checkpoint(
    parent: Path,
    kind: Kind,
    manifest: Manifest,
    states: dict[str, Any],
    fill: Callable[[Path], None] = lambda _: None,
    *,
    keep: Collection[int] = (),
) -> None:
    """Adds a checkpoint, or replaces that of the same number, and deletes all but the last KEPT.

    Args:
        parent: the run's folder of checkpoints.
        kind: how it is named.
        manifest: its number and the scores.
        states: tensors and plain values, for trainer.pt.
        fill: writes the other files into the folder it is given.
        keep: numbers that are not deleted either.

    Raises:
        OSError: the disk is full or the folder cannot be written; the checkpoints that were there still are.
    """

    def fill_all(fresh: Path) -> None:
        fill(fresh)
        content = io.BytesIO()  # torch hides what goes wrong in writing
        torch.save(states, content)
        (fresh / TRAINER).write_bytes(content.getbuffer())
        digests = {file.name: sha256(file) for file in sorted(fresh.iterdir())}
        marks = {"format": kind.format, kind.clock: manifest.number}
        write_json(fresh / MANIFEST, {**marks, "progress": manifest.progress, "sha256": digests})

    write_folder(parent / f"{manifest.number:0{kind.digits}d}", fill_all)
    for old in _folders(parent)[:-KEPT]:
        if not (old.name.isdecimal() and int(old.name) in keep):
            shutil.rmtree(old)


def newest_whole(parent: Path, kind: Kind, read: Callable[[Path, Manifest], T]) -> T | None:
    """What `read` makes of the newest checkpoint that is whole; None where there is none at all.

    A line on standard error names each one that is damaged and passed over.

    Args:
        parent: the run's folder of checkpoints.
        kind: what they must be.
        read: is given a folder whose files have their SHA-256, and its manifest.

    Raises:
        CheckpointError: all are damaged, or one is whole but cannot be gone on from.
    """
    problems: list[str] = []
    for folder in reversed(_folders(parent)):
        try:
            found = read(folder, _read_manifest(folder, kind))
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


def read_states(folder: Path, needed: Mapping[str, type] | None = None) -> dict[str, Any]:
    """What trainer.pt holds; an error here is not damage, the SHA-256 was the manifest's: no older one is a way out.

    Raises:
        CheckpointError: not tensors and plain values, or one of those needed, name -> type, is missing.
    """
    file = folder / TRAINER
    way_out = f"training cannot go on from it exactly; delete {folder} to go on from the one before"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about the types in a file that is refused
            states = torch.load(file, map_location="cpu", weights_only=True)
    except MemoryError:  # says nothing of the file
        raise
    except Exception as error:  # torch raises whatever its readers meet in a file of unknown origin
        # Its message is not passed on: it tells how to execute the file all the same.
        raise CheckpointError(f"{file}: holds other things than tensors, nothing was executed; {way_out}") from error
    kinds = states if isinstance(states, dict) else {}
    if lacking := [name for name, kind in (needed or {}).items() if not isinstance(kinds.get(name), kind)]:
        raise CheckpointError(f"{file}: has no state of {', '.join(lacking)}; {way_out}")
    return dict(kinds)


def _folders(parent: Path) -> list[Path]:
    """The checkpoints, oldest first; none where there is no such folder."""
    return sorted(p for p in parent.glob("[0-9]*") if p.is_dir()) if parent.is_dir() else []


def _read_manifest(folder: Path, kind: Kind) -> Manifest:
    """The manifest, held against the files.

    Raises:
        DamagedCheckpointError: one of them is missing, not readable, or not as it was written.
    """
    try:
        tree = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        digests, number, progress = tree["sha256"], tree[kind.clock], tree["progress"]
        whole = tree["format"] == kind.format and set(digests) == {*kind.files, TRAINER}
        if not (whole and type(number) is int and number >= 0 and isinstance(progress, dict)):
            raise DamagedCheckpointError(f"{folder}: not a checkpoint of format {kind.format}")
        for name, digest in digests.items():
            if sha256(folder / name) != digest:
                raise DamagedCheckpointError(f"{folder / name}: damaged (its SHA-256 is not the manifest's)")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpointError(f"{folder}: not readable: {one_line(error)}") from error
    return Manifest(number, progress)
