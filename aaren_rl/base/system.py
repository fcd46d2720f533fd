"""Features of some operating systems, each with a fallback for the others."""

import ctypes
import math
import os
import platform
import re
import sys
from pathlib import Path

from .errors import ResourcesError

# The group of processes that a container limits: files of the limit and of what is in use. In use is also the cache of
# files, which the kernel frees where memory is short: these entries of memory.stat.
_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "memory.current", ("active_file", "inactive_file")),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_active_file", "total_inactive_file"),
    ),
)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def core_count() -> int:
    """The cores that this process may use; all if the system does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_name() -> str:
    """The processor's name."""
    file = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: *(.+)", file.read_text() if file.is_file() else "", re.M)
    return found[1].strip() if found else platform.processor() or platform.machine()


def free_bytes() -> float | None:
    """Free memory for this process in bytes, swap included; None if unknown."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line)
        free = sum(1024 * int(lines[name].split()[0]) for name in ("MemAvailable", "SwapFree"))
    except (OSError, KeyError, ValueError):
        return None
    for limit, used, cached in _GROUPS:
        try:
            allowed = int(Path(limit).read_text()) - int(Path(limit).with_name(used).read_text())
            stat = dict(line.split() for line in Path(limit).with_name("memory.stat").read_text().splitlines())
            free = min(free, allowed + sum(int(stat[name]) for name in cached))
        except (OSError, KeyError, ValueError):  # no such group, or one without a limit ("max")
            continue
    return max(0, min(free, _below_limit()))


def _below_limit() -> float:
    """What this process may still take below the limit of its data segment (`ulimit -d`)."""
    try:
        import resource  # of Unix alone
    except ImportError:
        return math.inf
    try:
        limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
        used = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData:"))
        return math.inf if limit == resource.RLIM_INFINITY else limit - 1024 * int(used.split()[1])
    except (OSError, StopIteration, ValueError):
        return math.inf


def require_memory(needed: int, what: str, way_out: str, *, free: float | None = None) -> None:
    """Raises ResourcesError where `needed` bytes are not free: Linux grants them, and kills the process that uses them.

    `what` ("the model") takes them; `way_out` ends the message; `free` is None for what the system says.
    """
    free = free_bytes() if free is None else free
    if free is not None and needed > free:
        raise ResourcesError(
            f"out of memory ({what} takes at least {needed / 1e9:,.1f} GB, {free / 1e9:,.1f} GB are free); {way_out}"
        )


def swap_folders(one: Path, other: Path) -> bool:
    """Swaps the names of two folders in one step; False if the system cannot."""
    if sys.platform != "linux":
        return False
    call = getattr(ctypes.CDLL(None), "renameat2", None)  # glibc 2.28
    names = os.fsencode(one), _AT_FDCWD, os.fsencode(other)
    return call is not None and call(_AT_FDCWD, *names, _RENAME_EXCHANGE) == 0


def sync(path: Path) -> None:
    """Makes a file's content, or the renames in a folder, durable; Windows does the latter itself."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
