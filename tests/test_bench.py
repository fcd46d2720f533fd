"""The benchmark: its figures, and that it gives none for a result that is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from aaren_rl import bench, bench_rollout
from aaren_rl.agents import DecisionModel

COMMAND = "python -m aaren_rl.bench rollout"
SMALL = ("rollout", "--steps", "300", "--width", "16", "--layers", "1", "--heads", "2")


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_rollout, "BLOCK", 20)
    monkeypatch.setattr(bench_rollout, "REPEATS", 3)


def test_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    assert bench.main([*SMALL, "--json", str(tmp_path / "rollout.json")]) == 0
    assert torch.get_num_threads() == threads
    result = json.loads((tmp_path / "rollout.json").read_text())
    assert set(result) == {
        *("agent", "early", "late", "time_ratio", "state_ratio", "rss_growth_bytes", "checked_difference", "machine")
    }
    cost = {"step", "microseconds", "fastest_microseconds", "state_bytes"}
    assert set(result["early"]) == cost and set(result["late"]) == cost
    assert (result["early"]["step"], result["late"]["step"]) == (10, 300)
    assert set(result["machine"]) == {"processor", "cores", "load_average", "threads", "python", "torch"}
    assert result["machine"]["threads"] == 1 and result["machine"]["torch"] == torch.__version__
    assert result["agent"] == {"name": "decision-aaren", "width": 16, "layers": 1, "heads": 2}
    assert 0 < result["early"]["fastest_microseconds"] <= result["early"]["microseconds"]
    assert 0 <= result["checked_difference"] <= 1e-5
    out = capsys.readouterr().out
    assert "step 10" in out and "step 300" in out and f"torch {torch.__version__}, 1 threads" in out


def test_aarens_state_is_constant_and_attentions_is_not(tmp_path: Path) -> None:
    sizes = {}
    for agent in ("decision-aaren", "decision-transformer"):
        file = tmp_path / agent
        assert bench.main([*SMALL, "--agent", agent, "--json", str(file)]) == 0
        sizes[agent] = json.loads(file.read_text())
    # m and u: 2 heads, w: 16 channels, in float64; return-to-go in float64; the last action, 3 numbers, in float32.
    assert sizes["decision-aaren"]["early"]["state_bytes"] == 8 * (2 + 2 + 16) + 8 + 3 * 4
    assert sizes["decision-aaren"]["state_ratio"] == 1
    # Keys and values of 16 channels in float32, three tokens a step, less the action that is not known yet.
    assert sizes["decision-transformer"]["late"]["state_bytes"] == 2 * 16 * 4 * (3 * 300 - 1) + 8 + 3 * 4


@pytest.mark.parametrize("wrong", ["forgets", "a little off"])
def test_a_wrong_fast_path_gets_no_figures(
    wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = DecisionModel.step

    def wrong_step(model: DecisionModel, *arguments: object) -> tuple[Tensor, object]:
        if wrong == "forgets":
            return step(model, *arguments[:4], model.trunk.initial_state(1))
        action, state = step(model, *arguments)
        return action + 2e-5, state

    monkeypatch.setattr(DecisionModel, "step", wrong_step)
    assert bench.main([*SMALL, "--json", str(tmp_path / "rollout.json")]) == 6
    out, err = capsys.readouterr()
    assert out == "" and not (tmp_path / "rollout.json").exists()
    assert err.startswith("error: the policy's actions differ from the float64 reference by") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--steps", "10"), "--steps: must be more than 10, not 10"),
        (
            ("--threads", "0"),
            "argument --threads: must be at least 1, not 0; see python -m aaren_rl.bench rollout --help",
        ),
        (("--heads", "3"), "width 16 is not a multiple of heads 3"),
        (("--json", "/nowhere/at/all.json"), "--json /nowhere/at/all.json: its folder does not exist; make it first"),
    ],
)
def test_arguments_that_cannot_be(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = bench.main([*SMALL, *arguments])
    except SystemExit as stopped:  # what the parser itself refuses
        code = stopped.code
    assert code == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        bench.main(["rollout", "--help"])
    assert stopped.value.code == 0
    assert f"{COMMAND} --steps 100000" in capsys.readouterr().out
