"""The benchmark "memory", in a small form."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks import memory
from benchmarks.command import main

from aaren_rl.base.errors import NumericsError
from aaren_rl.policies.folder import load_policy

pytestmark = pytest.mark.slow

SMALL = [
    "--agents",
    "decision-aaren",
    "--seeds",
    "1",
    "--reacher-seeds",
    "1",
    "--lengths",
    "20",
    "40",
    "--updates",
    "2",
    "--episodes",
    "1",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small form's run of tmaze."""
    out: Path = tmp_path_factory.mktemp("runs")
    arguments = argparse.Namespace(agents=["decision-aaren"], threads=1, out=out)
    small = {"updates": 2, "eval_every": 1, "eval_episodes": 1, "final_episodes": 1, "width": 16, "layers": 1}
    assert memory.run_cells(memory.jobs(memory.LEARNED_AT, arguments, 1, small)) == 0
    return out


def test_a_wrong_policy_gets_no_figures(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = load_policy(runs / memory.LEARNED_AT / "decision-aaren" / "seed0")
    assert memory.check(policy) < 1e-5
    policy.model.head.bias.data += 0.01  # the compiled step keeps the weights that it was made with
    with pytest.raises(NumericsError, match="no figures are printed"):
        memory.check(policy)


def test_success_is_that_of_evaluate_and_is_played_once(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = argparse.Namespace(agents=["decision-aaren"], threads=2, out=runs)
    (job,) = memory.jobs(memory.LEARNED_AT, arguments, 1, {"width": 16, "layers": 1})
    assert job.arguments[: len(job.options)][-1] == "--threads=2"
    policy = load_policy(job.run)
    monkeypatch.setattr(memory, "EPISODES", 8)
    found = memory.corridors(job, policy, [20, 40])
    played = memory.record(policy, "tmaze", 8, 1000, 40)
    assert found[40] == 100 * played.returns.mean()
    assert set(played.lengths) == {40}
    kept = json.loads((job.run / "corridors.json").read_text())
    (job.run / "corridors.json").write_text(json.dumps({**kept, "success": {"20": 12.5, "40": 25.0}}))
    assert memory.corridors(job, policy, [40]) == {40: 25.0}
    stale = {**kept["made"], "updates": 1}  # the run was extended since
    (job.run / "corridors.json").write_text(json.dumps({"made": stale, "success": {"40": 25.0}}))
    assert memory.corridors(job, policy, [40]) == {40: found[40]}


TAKEN: dict[str, list[float | None]] = {"fast": [4.0, None], "slow": [None], "unmeasured": []}


def test_what_was_not_evaluated_is_not_never() -> None:
    agents = {name: {"success": [{20: 100.0}], "learned": took, "parameters": 9} for name, took in TAKEN.items()}
    lines = memory.show({"agents": agents, "lengths": [20], "limits": {}, "cost": [], "checked_difference": 0.0})
    shown = {line.split()[0]: line.split()[4:] for line in lines if line.split()[:1] and line.split()[0] in TAKEN}
    assert shown == {"fast": ["4", "(1", "of", "2)"], "slow": ["never"], "unmeasured": ["-"]}


def test_seconds_count_from_where_success_stays(tmp_path: Path) -> None:
    lines = [{"update": 25 * (i + 1), "eval/normalized_score": score} for i, score in enumerate((50, 100, 60, 95, 100))]
    lines.insert(2, {"update": 50, "time/updates_per_second": 10.0})
    lines.insert(5, {"update": 100, "time/updates_per_second": 5.0})
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert memory.learned(tmp_path) == 50 / 10 + 50 / 5
    lines[-1]["eval/normalized_score"] = 94.0
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert memory.learned(tmp_path) is None


def test_limits_of_reacher_recall() -> None:
    found = memory.limits(2)
    assert found["controller"][-100:].mean() < 0.001 < 0.05 < found["random actions"][-100:].mean()
    assert memory.binned(np.full(1000, 0.25)) == [250.0] * 8


@pytest.mark.slow
def test_the_small_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--out", str(tmp_path / "runs"), "--json", str(tmp_path / "m.json"), "--plot", str(tmp_path / "m.svg")]
    assert main(["memory", *SMALL, *files]) == 0
    shown = capsys.readouterr().out
    assert "success in T-mazes" in shown and "controller" in shown and "decision-aaren:recurrent" in shown
    assert json.loads((tmp_path / "m.json").read_text())["agents"]["decision-aaren"]["parameters"] > 0
    assert (tmp_path / "m.svg").read_text().count("<svg") == 1
