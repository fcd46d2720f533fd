"""Writes files whole or not at all, by one process at a time."""

import errno
import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from .errors import DISK_FULL, DataError, ResourcesError, one_line
from .system import sync


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Writes a temporary file, flushes, syncs and renames it. Where `path` is a link, it writes what that points to.

    OSError: the disk is full or the folder cannot be written, and nothing is left behind; or the target exists and is
    not a regular file (/dev/null).
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "already exists and is not a regular file", str(path))
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sha256(path: Path) -> str:
    """Hex digest of a file of any size; raises OSError."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def writing(target: Path, way_out: str) -> Iterator[None]:
    """Turns an OSError in writing `target` into an error below; its message ends with `way_out`.

    Raises:
        ResourcesError: the disk is full.
        DataError: it cannot be written for another reason.
    """
    try:
        yield
    except OSError as error:
        kind = ResourcesError if error.errno in DISK_FULL else DataError
        reason = error.strerror or one_line(error)
        raise kind(f"{target}: cannot be written ({reason}); free disk space, or {way_out}") from error


@contextmanager
def alone(target: Path, doing: str, way_out: str) -> Iterator[None]:
    """Runs the body, which makes `target`, in one process at a time; creates the folder and a lock file in it.

    The system releases the lock when its holder ends, even if it is killed. If another process holds it, a line on
    stderr shows what it is `doing` ("making"); `way_out` and errors are those of `writing`.
    """
    with writing(target, way_out):
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(target.with_name(f".{target.name}.lock"), thread_local=False)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            print(f"{target}: another process is {doing} it; waiting", file=sys.stderr)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


def cache_dir() -> Path:
    """For local sets and memory maps: `$AAREN_RL_CACHE`, else `$XDG_CACHE_HOME/aaren_rl`, else `~/.cache/aaren_rl`."""
    if own := os.environ.get("AAREN_RL_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aaren_rl"
