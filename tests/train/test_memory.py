"""Memory that a process frees and takes again."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, torch
from aaren_rl.train.acceleration import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
torch.set_num_threads(1)


def faults(repeats):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(repeats):
        torch.ones(16 << 20)  # 64 MiB: 16,384 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults(10)
print(faults(10) // 10)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="another C library's memory"
)
def test_pages_are_not_mapped_anew() -> None:
    def run(how: str) -> int:
        return int(subprocess.run([sys.executable, "-c", PROGRAM, how], check=True, capture_output=True).stdout)

    given_back, kept = run("no"), run("keep")
    assert kept * 20 < given_back
