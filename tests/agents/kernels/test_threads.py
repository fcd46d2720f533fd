"""Parts of a kernel's work in several threads: every one is done once, whatever threads there are."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from team_kernels import PARTS, ROWS, fail, fail_in_team, note, note_in_team, shared

from aaren_rl.agents.kernels.compiling import threads

DONE = [[1, 0, 2], [1, 2, 4], [1, 4, 7]]
SCRIPT = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from team_kernels import shared, thread_ids, warm_up
warm_up()
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the threads are the kernels' own")


def run(script: str, **environment: str) -> str:
    command = [sys.executable, "-c", SCRIPT + script]
    result = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=120)
    return result.stdout.strip()


@pytest.mark.parametrize("openmp", [True, False])
def test_every_part_is_done_once(openmp: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not openmp:
        monkeypatch.setattr(threads, "_openmp", lambda _process: None)
    assert shared() == DONE


def test_one_part_is_the_callers() -> None:
    found = np.zeros((1, 3), np.int64)
    threads.share(note, note_in_team, 1, ROWS, found)
    assert found.tolist() == [[1, 0, ROWS]]


@pytest.mark.parametrize("openmp", [True, False])
def test_an_error_in_any_part_is_raised(openmp: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not openmp:
        monkeypatch.setattr(threads, "_openmp", lambda _process: None)
    in_a_team = openmp and sys.platform == "linux"
    for bad in range(PARTS):
        with pytest.raises(RuntimeError if in_a_team else ArithmeticError):
            threads.share(fail, fail_in_team, PARTS, ROWS, bad)
    threads.share(fail, fail_in_team, PARTS, ROWS, PARTS)


def test_several_callers_at_once_get_their_own_parts() -> None:
    def call(_: int) -> bool:
        return all(shared() == DONE for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(4)))


def test_how_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert threads.count_parts(100, threads.SHARED) == 4
    assert threads.count_parts(3, threads.SHARED) == 3  # never one without rows
    assert threads.count_parts(100, threads.SHARED - 1) == 1


def test_a_team_that_is_smaller_than_asked_for_does_all_parts() -> None:
    assert run("print(shared())", OMP_THREAD_LIMIT="1") == str(DONE)


@linux
def test_the_threads_are_those_of_torchs_operations() -> None:
    count = "len(os.listdir('/proc/self/task'))"
    assert run(f"before = {count}; shared(); print({count} - before, before > 2)") == "0 True"


@linux
def test_a_part_is_always_the_same_threads() -> None:
    assert run("seen = {tuple(thread_ids()) for _ in range(100)}; print(len(seen), len(set(*seen)))") == "1 3"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_has_threads_of_its_own() -> None:
    forked = "if not os.fork():\n    print(shared(), flush=True)\n    os._exit(0)\nos.wait()"
    assert run(forked) == str(DONE)
