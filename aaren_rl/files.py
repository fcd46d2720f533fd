"""Writing folders and JSON so that a kill or a full disk never leaves half of one."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .envs.files import write_whole
from .envs.system import swap_folders, sync
from .errors import UsageError


def write_folder(target: Path, fill: Callable[[Path], None]) -> None:
    """Makes a folder appear whole or not at all: `fill` is given another beside its place, which is renamed into it.

    One that is there already is replaced. Linux swaps the two in one step; where the file system cannot, there is a
    moment without a folder of that name, and `clear_leftovers` puts the old one back after a kill in it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.parent / f".{target.name}-{secrets.token_hex(4)}"
    fresh.mkdir()  # not by tempfile, which keeps others from reading it, whatever the umask
    try:
        fill(fresh)
        for file in fresh.iterdir():
            sync(file)
        sync(fresh)
        if not target.exists():
            os.replace(fresh, target)
        elif not swap_folders(fresh, target):
            old = fresh.with_name(fresh.name + "-old")
            os.replace(target, old)
            os.replace(fresh, target)
            shutil.rmtree(old)
        sync(target.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


_LEFTOVER = re.compile(r"\.(.+)-[a-z0-9_]{8}(-old)?")


def clear_leftovers(parent: Path) -> None:
    """Removes what a killed process left of `write_folder` and `write_text` in a folder that nobody else writes in."""
    for folder in parent.glob(".*-*"):
        found = _LEFTOVER.fullmatch(folder.name)
        if found is None or not folder.is_dir():
            continue
        if found[2] and not (target := parent / found[1]).exists():
            os.replace(folder, target)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    for file in parent.glob(".*.tmp"):
        file.unlink(missing_ok=True)


def check_free(folder: Path) -> None:
    """Raises UsageError where a folder would be written over something."""
    if folder.is_symlink() and not folder.exists():
        raise UsageError(f"{folder}: is a link that leads nowhere; choose another folder")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: is there already; choose another folder, or empty it")


def check_writable(option: str, file: Path | None) -> None:
    """Raises UsageError where the file that an option asks for could not be written, before any work is done for it."""
    if file is None:
        return
    if file.exists() and not file.is_file():  # what is written would take a device's place
        what = "is a folder" if file.is_dir() else "is no file, but a device or a pipe"
        raise UsageError(f"{option} {file}: {what}; give a file's name")
    if not file.parent.is_dir():
        raise UsageError(f"{option} {file}: its folder does not exist; make it first")


def is_there(file: Path) -> bool:
    """Whether this is a file; what no file can be called, a name too long or with a NUL in it, is none."""
    try:
        return file.is_file()
    except (OSError, ValueError):
        return False


_SMALL = 2**26


def read_small(file: Path) -> str:
    """The text of a file that a person or this package has written: settings, a card, scores.

    Raises OSError where it cannot be read, ValueError where it is no file, such as a pipe, too large or not UTF-8.
    """
    if file.exists() and not file.is_file():
        raise ValueError("is not a file")
    with file.open("rb") as stream:
        content = stream.read(_SMALL + 1)
    if len(content) > _SMALL:
        raise ValueError(f"is larger than {_SMALL // 2**20} MiB")
    return content.decode("utf-8")


def write_text(target: Path, text: str) -> None:
    """Replaces a text file in one step."""
    write_whole(target, text.encode())


def write_json(target: Path, value: Any) -> None:  # noqa: ANN401  whatever JSON holds
    """Replaces a JSON file in one step; NaN and infinity, which JSON does not have, raise ValueError."""
    write_text(target, json.dumps(value, indent=2, allow_nan=False) + "\n")
