"""What memory there is, and whether something fits in it: asked before it is taken.

Linux grants what it does not have, and kills a process that uses it, without a word.
"""

from __future__ import annotations

from pathlib import Path

from .errors import ResourcesError

# The group of processes that a container limits: files of the limit and of what is in use.
_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free_bytes() -> int | None:
    """Memory that this process may still take, swap included; None where the system does not say."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line)
        free = sum(1024 * int(lines[name].split()[0]) for name in ("MemAvailable", "SwapFree"))
    except (OSError, KeyError, ValueError):
        return None
    for limit, used in _GROUPS:
        try:
            free = min(free, int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # no such group, or one without a limit ("max")
            continue
    return max(0, free)


def require_memory(needed: int, what: str, way_out: str, *, free: int | None = None) -> None:
    """Refuses what cannot fit.

    Args:
        needed: bytes, no more than what will be used for certain.
        what: uses them: "the model".
        way_out: the end of the message.
        free: bytes there are; None: as the system says.

    Raises:
        ResourcesError: there are fewer.
    """
    free = free_bytes() if free is None else free
    if free is not None and needed > free:
        raise ResourcesError(
            f"out of memory ({what} takes at least {needed / 1e9:,.1f} GB, {free / 1e9:,.1f} GB are free); {way_out}"
        )
