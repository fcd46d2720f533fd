"""The benchmark of environments at different steps: its figures, and none for actions that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aaren_rl.bench import command as bench
from aaren_rl.bench import vector
from aaren_rl.vector import VectorPolicy

SMALL = ["vector", "--envs", "16", "--width", "16", "--layers", "1", "--heads", "2"]


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BLOCK": 2, "REPEATS": 3, "SHORTEST": 3, "LONGEST": 20}.items():
        monkeypatch.setattr(vector, name, value)


def test_one_batch_where_the_state_does_not_grow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Attention's cache grows with the episode: a call for every step at which episodes have begun."""
    file, modes = tmp_path / "vector.json", ["decision-aaren:carry", "decision-transformer:carry"]
    assert bench.main([*SMALL, "--json", str(file), "--modes", *modes]) == 0
    result = json.loads(file.read_text())
    assert [mode["name"] for mode in result["modes"]] == modes and result["envs"] == 16
    aaren, transformer = result["modes"]
    assert aaren["calls"] == 1 and transformer["calls"] == transformer["begun_apart"] > 5
    assert all(mode["milliseconds"] > 0 and mode["ratio"] > 0 for mode in result["modes"])
    assert "different steps; actions equal those of the episodes played apart" in capsys.readouterr().out


def test_no_figures_for_an_action_that_differs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    act = VectorPolicy.act

    def wrong(agent: VectorPolicy, observation: Any, reward: Any, started: Any, state: Any) -> Any:
        """Tells nobody of the episode that environment 3 begins."""
        if state is not None:
            started = started & (np.arange(len(started)) != 3)
        return act(agent, observation, reward, started, state)

    monkeypatch.setattr(VectorPolicy, "act", wrong)
    assert bench.main([*SMALL, "--modes", "decision-aaren:carry"]) == 6
    out, errors = capsys.readouterr()
    assert out == "" and "differ from those of the episodes played apart" in errors
