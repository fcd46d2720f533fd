"""What an update launches on a GPU, by scripts/count_gpu_launches, in a process that does not interpret the kernels."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from checkout import ROOT

pytest.importorskip("triton", reason="pip install triton", exc_type=ImportError)


def test_an_update_of_the_papers_network() -> None:
    """Of width 512 and 4 blocks: 500 launches at most; more than are asked for are told.

    Tensors have no memory: a number that is asked for, or a shape made from one, would be an error.
    """
    contexts = "mixed", "window", "episode"
    command = [sys.executable, "scripts/count_gpu_launches", "--most", "100", "--contexts", *contexts]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr == "", done.stderr
    for context, text in zip(contexts, done.stdout.strip().split("\n\n"), strict=True):
        found = {part: int(n) for part, n in re.findall(r"^\| ([a-z ]+) \| (\d+) \|", text, re.MULTILINE)}
        assert text.startswith(f"| {context} |") and found.pop("in all") == sum(found.values()) <= 500
        assert found.keys() == {"batch", "rates", "forward", "backward", "clipping", "optimiser", "average"}
