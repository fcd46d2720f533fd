"""Where compiled kernels are kept: in a folder for this very state of all kernel files and this Numba.

Numba compiles a function anew where its own file has changed. A kernel has more in it: what it calls from other files,
which may be compiled as a part of it. A folder a state leaves nothing stale to be found.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba

KERNELS = Path(__file__).resolve().parent.parent
PREFIX = "aaren_rl-"  # of the folders' names
KEPT = 4  # states that stay when a new one comes, and those of the last day with them
DAY = 86_400.0  # seconds
_LOCK = threading.Lock()


@contextmanager
def keyed_cache() -> Iterator[bool]:
    """Has Numba keep what is decorated inside in `folder`; gives whether there is one.

    Numba reads its setting CACHE_DIR when a function is decorated, and it is put back at once.
    """
    with _LOCK:
        config: Any = numba.config
        before = config.CACHE_DIR
        kept = folder(before)
        config.CACHE_DIR = before if kept is None else str(kept)
        try:
            yield kept is not None
        finally:
            config.CACHE_DIR = before


@functools.cache
def folder(chosen: str) -> Path | None:
    """In the user's NUMBA_CACHE_DIR, beside the kernels or in the user's cache; None where nothing can be written."""
    user = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    roots = [Path(chosen)] if chosen else [KERNELS / "__pycache__"]
    if not chosen and user.is_absolute():  # without a home it is not
        roots.append(user / "aaren_rl" / "kernels")
    return make_folder(roots, PREFIX + state_of(KERNELS))


def state_of(kernels: Path) -> str:
    """A name for the content of all kernel files, with this version of Numba."""
    digest = hashlib.blake2b(numba.__version__.encode(), digest_size=8)
    for path in sorted(kernels.rglob("*.py")):
        digest.update(f"\0{path.relative_to(kernels).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def make_folder(roots: Iterable[Path], name: str) -> Path | None:
    """The folder of that name in the first root that can be written to; old ones beside it are deleted."""
    for root in roots:
        made = root / name
        try:
            made.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=made).close()
            os.utime(made)  # used now
        except OSError:
            continue
        _delete_old(root)
        return made
    return None


def _delete_old(root: Path) -> None:
    """All but the folders used last; another process may be deleting the same."""
    used = {}
    for path in root.glob(f"{PREFIX}*"):
        try:
            used[path] = path.stat().st_mtime
        except OSError:  # deleted in between
            continue
    for path in sorted(used, key=lambda path: used[path], reverse=True)[KEPT:]:
        if used[path] < time.time() - DAY:  # who uses it may yet compile
            shutil.rmtree(path, ignore_errors=True)
