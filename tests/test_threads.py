"""Parts of a kernel's work in several threads: every one is done once, whatever threads there are."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from aaren_rl.agents.kernels import threads

CUTS = [(0, 2), (2, 3), (3, 7)]
DONE = "[(0, 0, 2), (1, 2, 3), (2, 3, 7)]"
SCRIPT = f"""
import os, torch
from aaren_rl.agents.kernels.threads import share

def shared():
    done = []
    share(lambda *part: done.append(part), {CUTS})
    return sorted(done)

torch.set_num_threads(3)
"""


def run(script: str, **environment: str) -> str:
    command = [sys.executable, "-c", SCRIPT + script]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True, timeout=120
    ).stdout.strip()


@pytest.mark.parametrize("openmp", [True, False])
def test_every_part_is_done_once(openmp: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not openmp:
        monkeypatch.setattr(threads, "_openmp", lambda _process: None)
    done: list[tuple[int, int, int]] = []
    threads.share(lambda *part: done.append(part), CUTS)
    assert str(sorted(done)) == DONE


@pytest.mark.parametrize("openmp", [True, False])
def test_an_error_in_any_part_is_raised(openmp: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not openmp:
        monkeypatch.setattr(threads, "_openmp", lambda _process: None)
    for bad in range(len(CUTS)):
        with pytest.raises(ZeroDivisionError):
            threads.share(lambda part, _first, _last, bad=bad: part != bad or 1 // 0, CUTS)


def test_several_callers_at_once_get_their_own_parts() -> None:
    def call(number: int) -> list[int]:
        done: list[int] = []
        for _ in range(50):
            threads.share(lambda *_: done.append(number), CUTS)
        return done

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(call, range(4))) == [[number] * 50 * len(CUTS) for number in range(4)]


def test_a_team_that_is_smaller_than_asked_for_does_all_parts() -> None:
    assert run("print(shared())", OMP_THREAD_LIMIT="1") == DONE


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the threads are the kernels' own")
def test_the_threads_are_those_of_torchs_operations() -> None:
    count = "len(os.listdir('/proc/self/task'))"
    product = "x = torch.randn(3000, 300); x @ x.T; "
    assert run(f"{product}before = {count}; shared(); print({count} - before, before > 2)") == "0 True"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the threads are the kernels' own")
def test_a_part_is_always_the_same_threads() -> None:
    script = f"""
import threading
seen = [set() for _ in {CUTS}]
for _ in range(100):
    share(lambda part, *_: seen[part].add(threading.get_native_id()), {CUTS})
print([len(ids) for ids in seen], len(set.union(*seen)))"""
    assert run(script) == "[1, 1, 1] 3"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_has_threads_of_its_own() -> None:
    forked = "shared()\nif not os.fork():\n    print(shared(), flush=True)\n    os._exit(0)\nos.wait()"
    assert run(forked) == DONE
