"""Writing folders and JSON so that a kill or a full disk never leaves half of one."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .envs.files import sync, write_whole
from .errors import UsageError


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
            sync(file)
        sync(fresh)
        if target.exists():
            old = fresh.with_name(fresh.name + "-old")
            os.replace(target, old)
            os.replace(fresh, target)
            shutil.rmtree(old)
        else:
            os.replace(fresh, target)
        sync(target.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def check_free(folder: Path) -> None:
    """Raises UsageError where a folder would be written over something."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: is there already; choose another folder, or empty it")


def write_text(target: Path, text: str) -> None:
    """Replaces a text file in one step."""
    write_whole(target, text.encode())


def write_json(target: Path, value: Any) -> None:  # noqa: ANN401  whatever JSON holds
    """Replaces a JSON file in one step; NaN and infinity, which JSON does not have, raise ValueError."""
    write_text(target, json.dumps(value, indent=2, allow_nan=False) + "\n")
