"""The Triton kernels as machine code, by scripts/check_gpu_kernels, in a process that does not interpret them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT

pytest.importorskip("triton", reason="pip install triton", exc_type=ImportError)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
FEW = ("--targets", "90", "--dims", "64", "--types", "float32", "--instructions")

# As `python scripts/check_gpu_kernels`, with one file more among the package's.
WITH_ANOTHER = """
import runpy, sys
from pathlib import Path
import import_graph
files = import_graph.modules() | {"aaren_rl.agents.kernels.another": Path(sys.argv.pop(1))}
import_graph.modules = lambda: files
runpy.run_path("scripts/check_gpu_kernels", run_name="__main__")
"""
ANOTHER = """
import triton

@triton.jit
def helper(x):
    return x + 1

@triton.jit
def nobody_launches(x):
    helper(x)
"""


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_kernels_compile() -> None:
    done = run("scripts/check_gpu_kernels", *FEW)
    assert done.returncode == 0, done.stderr
    lines = re.findall(
        r"^\| (\w+\.\w+), \w+, float32, 64 \| (\d+), 0, \d+(?:; ([\d.]+))? \|$", done.stdout, re.MULTILINE
    )
    assert len({kernel for kernel, _, _ in lines}) == 6
    assert all(8 <= int(registers) <= 255 for _, registers, _ in lines)
    counts = [float(count) for _, _, count in lines if count]
    assert len(counts) >= 4 and all(0.2 < count < 1.3 for count in counts)


def test_a_kernel_that_nothing_launches_is_told(tmp_path: Path) -> None:
    (tmp_path / "another.py").write_text(ANOTHER)
    done = run("-c", WITH_ANOTHER, tmp_path / "another.py", "--targets", "90", "--dims")
    assert done.returncode == 1
    assert "another.nobody_launches: nothing here launches it" in done.stderr and "helper" not in done.stderr
