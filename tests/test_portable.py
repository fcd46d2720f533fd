"""Everything on a system that lacks what only Unix has: tests/portable/sitecustomize.py takes it away in a child."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BARE = Path(__file__).parent / "portable"

IMPORT_ALL = """
import importlib, os, pkgutil, signal
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    raise AssertionError(name)
assert not any(hasattr(os, name) for name in ("fork", "killpg", "getuid")) and not hasattr(signal, "SIGKILL")

import aaren_rl, aaren_rl.agents, aaren_rl.envs
for package in (aaren_rl, aaren_rl.agents, aaren_rl.envs):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:  # of an extra
            if error.name not in ("triton", "ray", "transformers", "torchrl", "onnx", "onnxruntime"):
                raise

from pathlib import Path
from aaren_rl.base.errors import UsageError
from aaren_rl.train.folder import RunFolder
with RunFolder(Path("held")):
    try:
        RunFolder(Path("held"))
    except UsageError as error:
        assert "in use" in str(error)
    else:
        raise AssertionError("two hold one folder")
"""
SMALL = "--width 16 --layers 1 --heads 2 --steps-per-update 200"
TRAIN = "-m aaren_rl.train --env hopper-medium"
EVALUATE = "-m aaren_rl evaluate runs/hopper-medium/decision-aaren/seed0 --episodes 33"  # by workers
FIRST = f"{TRAIN} --source local --local-steps 1000 --updates 3 --eval-episodes 1 --final-episodes 1 {SMALL}"
COMPARE = f"-m aaren_rl compare --env hopper-medium --updates 8 --seeds 1 --episodes 2 --jobs 1 --out c -- {SMALL}"
EXPORT = "-m aaren_rl export runs/hopper-medium/decision-aaren/seed0 --out exported.onnx"


@pytest.mark.parametrize("lines", [[], pytest.param([FIRST, EVALUATE, COMPARE, EXPORT], marks=pytest.mark.slow)])
def test_all_modules_import_and_the_first_commands_run(lines, tmp_path):
    variables = {"PYTHONPATH": str(BARE), "AAREN_RL_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    for arguments in (["-c", IMPORT_ALL], *(line.split() for line in lines)):
        command = [sys.executable, "-W", "ignore", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env={**os.environ, **variables}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
