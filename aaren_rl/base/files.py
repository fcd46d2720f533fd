"""Files and folders: written whole or not at all, by one process at a time; checked before any work is done.

Also what the files of the system say of this machine: its processor, and the cores that a process may use.
"""

import errno
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .errors import DISK_FULL, DataError, ResourcesError, UsageError, one_line

# Error numbers of network and FUSE file systems that cannot lock, or make a rename durable.
UNSUPPORTED = (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Writes a temporary file, flushes, syncs and renames it. Where `path` is a link, it writes what that points to.

    OSError: the disk is full or the folder cannot be written, and nothing is left behind; or the target exists and is
    not a regular file (/dev/null).
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "already exists and is not a regular file", str(path))
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name[:SHORT]}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as stream:
            stream.write(content)
            stream.flush()
            _sync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Makes a file's content, or the renames in a folder, durable; Windows does the latter itself."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        note_once("the file system does not sync: files written last may be lost when the power fails")


@cache  # once
def note_once(text: str) -> None:
    """Prints a note on standard error, the same one once."""
    print(f"note: {text}", file=sys.stderr)


def lock(file: Path, *, wait: bool = False) -> FileLock:
    """Locks a file, until its `release` or the end of the process. A file system without locks goes on with a note.

    Raises Timeout where another process holds it and this one is not to `wait`, OSError as opening the file.
    """
    held = FileLock(file, thread_local=False)
    try:
        held.acquire(blocking=wait)
    except (OSError, NotImplementedError) as error:
        if isinstance(error, Timeout) or getattr(error, "errno", errno.ENOSYS) not in UNSUPPORTED:
            raise
        note_once(f"{file.parent}: the file system does not lock files; start no other process that writes there")
    return held


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
        file = target.with_name(f".{target.name}.lock")
        try:
            held = lock(file)
        except Timeout:
            print(f"{target}: another process is {doing} it; waiting", file=sys.stderr)
            held = lock(file, wait=True)
        try:
            yield
        finally:
            held.release()


def cache_dir() -> Path:
    """For local sets and memory maps: `$AAREN_RL_CACHE`, else `$XDG_CACHE_HOME/aaren_rl`, else `~/.cache/aaren_rl`."""
    if own := os.environ.get("AAREN_RL_CACHE"):
        return Path(own)
    home = os.path.expanduser("~")
    base = home if home != "~" else tempfile.gettempdir()  # a container's user without a home
    return Path(os.environ.get("XDG_CACHE_HOME") or Path(base) / ".cache") / "aaren_rl"


def write_folder(target: Path, fill: Callable[[Path], None]) -> None:
    """Writes a folder whole or not at all: `fill` writes a temporary folder, which is then renamed.

    An existing folder is replaced; of a link, the one that it points to. Its name is missing for a moment; if the
    process is killed then, `clear_leftovers` puts the old folder back.
    """
    target = Path(os.path.realpath(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
    fresh.mkdir()  # not by tempfile, which keeps others from reading it, whatever the umask
    try:
        fill(fresh)
        for file in fresh.iterdir():
            sync(file)
        sync(fresh)
        old = fresh.with_suffix(".old")
        if target.exists():
            os.replace(target, old)
        try:
            os.replace(fresh, target)
        except BaseException:
            if old.exists():
                os.replace(old, target)
            raise
        shutil.rmtree(old, ignore_errors=True)
        sync(target.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


SHORT = 50  # letters of a temporary file's name: with the others it must not be longer than the system allows
_LEFTOVER_FOLDER, _LEFTOVER_FILE = re.compile(r"\.(.+)\.[0-9a-f]{8}\.(tmp|old)"), re.compile(r"\..+\.\d+\.tmp")


def clear_leftovers(parent: Path) -> None:
    """Removes what a killed `write_folder` or `write_whole` left, and nothing else; no other process may write here."""
    for path in parent.glob(".*"):
        if path.is_dir() and (found := _LEFTOVER_FOLDER.fullmatch(path.name)):
            if found[2] == "old" and not (target := parent / found[1]).exists():
                os.replace(path, target)
            else:
                shutil.rmtree(path, ignore_errors=True)
        elif path.is_file() and _LEFTOVER_FILE.fullmatch(path.name):
            path.unlink(missing_ok=True)


def check_free(folder: Path) -> None:
    """Raises UsageError unless the folder is missing or empty."""
    if folder.is_symlink() and not folder.exists():
        raise UsageError(f"{folder}: is a broken link; choose another folder")
    if folder.exists() and folder.samefile(os.curdir):  # it will be replaced
        raise UsageError(f"{folder}: is the current folder; give the name of a new one")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: already exists; choose another folder, or empty it")
    check_place(folder)


def check_place(folder: Path) -> None:
    """Raises UsageError unless a folder is there or can be made, and can be written to."""
    place = folder.absolute()
    found = next(path for path in (place, *place.parents) if path.exists())
    if not found.is_dir():
        raise UsageError(f"{folder}: {found} is not a folder; choose another place")
    _check_folder(str(folder), found)


def check_writable(option: str, file: Path | None) -> None:
    """Raises UsageError, before any work is done, if the output file of an option cannot be written."""
    if file is None:
        return
    if file.exists() and not file.is_file():  # the written file would replace a device
        what = "is a folder" if file.is_dir() else "is a device or a pipe"
        raise UsageError(f"{option} {file}: {what}; give a file's name")
    if option == "--json" and file.exists() and (file.suffix != ".json" or file.name == "config.json"):
        raise UsageError(f"{option} {file}: is there and may be a policy or data; give a name that ends in .json")
    if not file.parent.is_dir():
        raise UsageError(f"{option} {file}: its folder does not exist; create it first")
    _check_folder(f"{option} {file}", file.parent)


def _check_folder(what: str, folder: Path) -> None:
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UsageError(f"{what}: its folder is not writable ({error.strerror}); choose another") from error


def is_there(file: Path) -> bool:
    """Whether this is a file; False also for an impossible name, too long or with a NUL in it."""
    try:
        return file.is_file()
    except (OSError, ValueError):
        return False


_SMALL = 2**26


def read_small(file: Path) -> str:
    """The text of a file that a person or this package wrote: settings, a model card, scores.

    Raises OSError if it cannot be read, ValueError if it is not a regular file, too large or not UTF-8.
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
    """Replaces a JSON file in one step; NaN and infinity, which JSON lacks, raise ValueError."""
    write_text(target, json.dumps(value, indent=2, allow_nan=False) + "\n")


def core_count() -> int:
    """The cores that this process may use: those it may run on, and at most the CPU quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in (Path("/sys/fs/cgroup"), *_own_groups()):
        with suppress(OSError, ValueError):  # no such group, or one without a limit ("max")
            quota, period = map(int, (group / "cpu.max").read_text().split())
            cores = max(1, min(cores, quota // period))
    return cores


def _own_groups() -> list[Path]:
    """The control group of this process and those around it."""
    with suppress(OSError):
        path = re.search(r"^0::/(.+)", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
        return [Path("/sys/fs/cgroup") / part for part in (Path(path[1]), *Path(path[1]).parents)] if path else []
    return []


def processor_name() -> str:
    """The processor's name."""
    file = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: *(.+)", file.read_text() if file.is_file() else "", re.M)
    return found[1].strip() if found else platform.processor() or platform.machine()
