"""scripts/first_gpu_run goes on after a step that fails, and its one file says how each one ended."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from checkout import ROOT


@pytest.mark.parametrize("good", [True, False])
def test_every_step_is_tried_and_noted(good: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = runpy.run_path(str(ROOT / "scripts/first_gpu_run"))
    steps = {
        "wrong": ([sys.executable, "-c", "print('seen'); raise SystemExit(3)"], 60),
        "slow": ([sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(600)"], 5),
        "missing": (["no-such-program"], 60),
    }
    fine = {"fine": ([sys.executable, "-c", "print('there')"], 60)}
    main = script["main"]
    monkeypatch.setitem(main.__globals__, "steps", lambda _: fine if good else steps | fine)
    monkeypatch.setattr(sys, "argv", ["first_gpu_run", "--out", str(tmp_path / "results.txt")])
    assert main() == (0 if good else 1)
    text = (tmp_path / "results.txt").read_text()
    assert "== fine: exit code 0, " in text and "\nthere\n" in text
    if not good:
        assert "== wrong: exit code 3, " in text and "\nseen\n" in text
        assert "== slow: not done after 5 s" in text and "\nbegun\n" in text
        assert "== missing: not started: " in text
        assert text.count("wrong: exit code 3") == 2  # the end says all of it again


def test_the_steps_are_commands_of_this_package() -> None:
    script = runpy.run_path(str(ROOT / "scripts/first_gpu_run"))
    for command, limit in script["steps"](7).values():
        assert limit > 0
        for word in command:
            assert not word.startswith("scripts/") or (ROOT / word).is_file()
    assert sum(limit for _, limit in script["steps"](7).values()) <= 40 * 60
