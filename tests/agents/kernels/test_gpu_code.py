"""The Triton kernels as machine code, by scripts/check_gpu_kernels, in a process that does not interpret them."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from checkout import ROOT

pytest.importorskip("triton", reason="pip install triton", exc_type=ImportError)


@pytest.mark.slow
def test_the_kernels_compile() -> None:
    few = ("--targets", "90", "--dims", "64", "--types", "float32", "--instructions")
    command, environment = [sys.executable, "scripts/check_gpu_kernels", *few], {**os.environ, "PYTHONPATH": "scripts"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"^\| (\w+\.\w+), \w+, float32, 64 \| (\d+), 0, \d+(?:; ([\d.]+))? \|$", done.stdout, re.M)
    assert len({kernel for kernel, _, _ in lines}) == 6
    counts = [float(count) for _, _, count in lines if count]
    assert len(counts) >= 4 and all(0.2 < count < 1.3 for count in counts)
