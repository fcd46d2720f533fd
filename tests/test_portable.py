"""Everything on a system that lacks what only Unix has: tests/portable/sitecustomize.py takes it away in a child."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest

from aaren_rl.base.processes import Worker, serve, start_child

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
from aaren_rl.runs.folder import RunFolder
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
COMPARE = (
    f"-m aaren_rl compare --env hopper-medium --updates 8 --seeds 1 --episodes 2 --jobs 1 --out compared -- {SMALL}"
)
EXPORT = "-m aaren_rl export runs/hopper-medium/decision-aaren/seed0 --out exported.onnx"


@pytest.mark.parametrize(
    "lines",
    [[FIRST, EVALUATE], pytest.param([f"{TRAIN} --updates 60", EVALUATE, COMPARE, EXPORT], marks=pytest.mark.slow)],
)
def test_all_modules_import_and_the_first_commands_run(lines: list[str], tmp_path: Path) -> None:
    variables = {"PYTHONPATH": str(BARE), "AAREN_RL_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    for arguments in (["-c", IMPORT_ALL], *(line.split() for line in lines)):
        command = [sys.executable, "-W", "ignore", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env={**os.environ, **variables}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def serve_requests() -> None:
    """Sleeps for a number; gives anything else back."""
    serve(lambda request: time.sleep(request) if isinstance(request, float) else request)


def test_a_child_ends_with_its_pipe_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends it where the system sends no signal: this process lives on."""
    held: list[int] = []
    monkeypatch.setattr(weakref, "finalize", lambda child, close, end: held.append(end))
    with start_child("print(1, flush=True)\nwhile True: pass", stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"1\n"
        os.close(held[0])
        assert child.wait(60) == 1


ABANDONED = """
import time
from aaren_rl.base.processes import start_child
child = start_child("print(flush=True)\\nwhile True: pass")
time.sleep(1.5)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_no_child_outlives_a_parent_that_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", ABANDONED], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    parent.stdout.readline()
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.communicate()
    assert len(pids) == 1
    deadline = time.monotonic() + 60
    while any(alive(Path(f"/proc/{pid}/stat")) for pid in pids):
        assert time.monotonic() < deadline, pids
        time.sleep(0.1)


def alive(stat: Path) -> bool:
    try:
        return ") Z " not in stat.read_text()
    except OSError:  # gone
        return False


def test_a_worker_takes_large_requests_and_ends_with_its_pipe_alone() -> None:
    """Neither side may wait for the other to read; nor does a busy one outlive the pipe."""
    worker = Worker(__name__, "echoes")
    large = bytes(2**22)
    for _ in range(3):
        worker.send(large)
    assert [len(worker.receive()) for _ in range(3)] == [2**22] * 3
    worker.send(600.0)
    assert worker._process.stdin is not None
    worker._process.stdin.close()
    assert worker._process.wait(60) == 1
    worker.close()
