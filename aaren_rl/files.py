"""Writing files so that a kill or a full disk never leaves half of one, and hashing them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_folder(target: Path, fill: Callable[[Path], None]) -> None:
    """Makes a folder appear whole or not at all: filled beside its place, synced, then renamed into it.

    An older folder of the name is moved aside first and removed last.

    Args:
        target: the folder.
        fill: writes the files into the temporary folder it is given.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        fill(fresh)
        for file in fresh.iterdir():
            _sync(file)
        _sync(fresh)
        if target.exists():
            old = fresh.with_name(fresh.name + "-old")
            os.replace(target, old)
            os.replace(fresh, target)
            shutil.rmtree(old)
        else:
            os.replace(fresh, target)
        _sync(target.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def write_text(target: Path, text: str) -> None:
    """Replaces a text file in one step."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)


def write_json(target: Path, value: Any) -> None:  # noqa: ANN401  whatever JSON holds
    """Replaces a JSON file in one step; NaN and infinity, which JSON does not have, raise ValueError."""
    write_text(target, json.dumps(value, indent=2, allow_nan=False) + "\n")


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
