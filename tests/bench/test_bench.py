"""The benchmarks: their figures, and that they give none for a result that is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from aaren_rl.agents import Attention, DecisionModel
from aaren_rl.agents.fast.rollout_step import CompiledStep
from aaren_rl.bench import command as bench
from aaren_rl.bench import rollout as bench_rollout

SMALL = ("rollout", "--steps", "300", "--width", "16", "--layers", "1", "--heads", "2")


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_rollout, "BLOCK", 20)
    monkeypatch.setattr(bench_rollout, "REPEATS", 3)
    monkeypatch.setattr(bench_rollout, "CACHED", 150)


def test_table_json_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads, files = torch.get_num_threads(), (tmp_path / "rollout.json", tmp_path / "rollout.svg")
    assert bench.main([*SMALL, "--json", str(files[0]), "--plot", str(files[1])]) == 0
    assert torch.get_num_threads() == threads
    result = json.loads(files[0].read_text())
    assert set(result["machine"]) == {"processor", "cores", "load_average", "threads", "python", "torch"}
    assert result["machine"]["threads"] == 1 and result["machine"]["torch"] == torch.__version__
    assert (result["width"], result["layers"], result["heads"]) == (16, 1, 2)
    assert [mode["name"] for mode in result["modes"]] == list(bench_rollout.MODES)
    for mode in result["modes"]:
        cache = mode["name"] == "decision-transformer:carry"
        assert [cost["step"] for cost in mode["costs"]] == ([10, 100, 150] if cache else [10, 100, 150, 300])
        assert all(0 < cost["fastest_microseconds"] <= cost["microseconds"] for cost in mode["costs"])
        assert mode["costs"][0]["ratio"] == 1 and 0 <= mode["checked_difference"] <= 1e-5
    assert all(mode["share"] > 0 for mode in result["modes"]) and result["modes"][-1]["share"] == 1
    out, drawn = capsys.readouterr().out, files[1].read_text()
    assert f"torch {torch.__version__}, 1 threads" in out and "of decision-transformer:window's time" in out
    assert "environment step" in drawn
    assert "since the first action:" in out and "time since the first action" in drawn  # the paper's figure 5
    growths = {mode["name"]: mode["growth"] for mode in result["modes"]}
    for growth in growths.values():
        assert growth["steps"][-1] == 150 and len(growth["steps"]) == len(growth["seconds"]) == 24
        assert growth["seconds"] == sorted(growth["seconds"])
    assert growths["decision-aaren:carry"]["state_bytes_exponent"] == 0
    assert growths["decision-transformer:carry"]["state_bytes_exponent"] == pytest.approx(1, abs=0.02)
    sizes = {mode["name"]: [cost["state_bytes"] for cost in mode["costs"]] for mode in result["modes"]}
    rest = 8 + 3 * 4  # return-to-go in float64; the last action, 3 numbers, in float32
    state = 8 * (2 + 2 + 16)  # m and u of 2 heads, w of 16 channels, in float64
    assert sizes["decision-aaren:carry"] == [state + rest] * 4
    assert sizes["decision-aaren:rolling"][1:] == [2 * state + rest] * 3
    # Keys and values of 16 channels in float32, three tokens a step, less the action that is not known yet.
    assert sizes["decision-transformer:carry"] == [2 * 16 * 4 * (3 * t - 1) + rest for t in (10, 100, 150)]
    # 20 steps of an observation, an action and a return-to-go in float32, and a timestep in int64.
    assert sizes["decision-transformer:window"] == [20 * (4 * (11 + 3 + 1) + 8) + rest] * 4


@pytest.mark.parametrize("wrong", ["forgets", "a cache that forgets", "a little off", "no number"])
def test_a_wrong_fast_path_gets_no_figures(
    wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step, forward = CompiledStep.step, Attention.forward

    def wrong_step(stepper: CompiledStep, given: object, state: object, *rest: object) -> tuple[object, object]:
        if wrong == "forgets":
            return step(stepper, given, stepper.initial_state(1), *rest)
        action, state = step(stepper, given, state, *rest)
        return action + np.float32(2e-5), state

    def no_number(model: DecisionModel, observations: Tensor, actions: Tensor, *_: object) -> tuple[Tensor, None]:
        return actions * torch.nan, None

    def forgets(mixer: Attention, x: Tensor, state: object = None, **keywords: object) -> object:
        return forward(mixer, x, None, **keywords)

    if wrong == "no number":
        monkeypatch.setattr(DecisionModel, "forward", no_number)
    elif wrong == "a cache that forgets":
        monkeypatch.setattr(Attention, "forward", forgets)
    else:
        monkeypatch.setattr(CompiledStep, "step", wrong_step)
    assert bench.main([*SMALL, "--json", str(tmp_path / "rollout.json")]) == 6
    out, err = capsys.readouterr()
    assert out == "" and not (tmp_path / "rollout.json").exists()
    assert err.startswith("error: the policy's actions differ from the float64 reference by") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--steps", "39"), "--steps: must be at least 40, not 39"),
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
