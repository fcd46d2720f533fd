"""The cores that this process may use, and their name."""

import os
import platform
import re
from contextlib import suppress
from pathlib import Path


def core_count() -> int:
    """The cores that this process may use: those it may run on, and at most the CPU quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in (Path("/sys/fs/cgroup"), *_own_groups()):
        with suppress(OSError, ValueError):  # no such group, or one without a limit ("max")
            if (group / "cpu.max").exists():
                quota, period = map(int, (group / "cpu.max").read_text().split())
            else:  # version 1
                quota, period = (int((group / f"cpu/cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            if quota > 0:
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
