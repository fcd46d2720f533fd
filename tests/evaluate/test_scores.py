"""Tables of scores, and what the data return beside them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from policies import make_card, make_model, make_policy, save_run
from synthetic import make_score

from aaren_rl.errors import CheckpointError
from aaren_rl.evaluate.command import main as evaluate
from aaren_rl.evaluate.scores import ActionError, Score, format_table
from aaren_rl.export.model import make_model as make_onnx
from aaren_rl.export.model import make_runner
from aaren_rl.policies.card import PolicyCard
from aaren_rl.policies.folder import amend_card, load_policy, read_card

DATA = {"mean": 1383.0, "best_tenth": 2871.0, "mode": 1336.0}
LINE = "data: mean 1383 (43.1), best tenth 2871 (88.8); behaviour without noise 1336 (41.7)"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"data_returns": DATA}, LINE),
        ({"data_returns": {"mean": 1383.0}}, "data: mean 1383 (43.1)"),
        ({"data_returns": {"mode": 1336.0}}, "behaviour without noise 1336 (41.7)"),
        (
            {"data_returns": {"mean": -0.25, "best_tenth": -150.4}, "reference": None},
            "data: mean -0.2, best tenth -150",
        ),
    ],
)
def test_the_table_says_what_the_data_return(changes, line: str) -> None:
    lines = format_table([make_score(**changes)]).splitlines()
    assert lines[-2] == line and lines[-3] == ""


def test_a_score_of_unknown_data_has_no_such_line() -> None:
    assert make_score().data() is None
    assert "best tenth" not in format_table([make_score()])


def test_scores_are_read_as_they_were_written() -> None:
    score = make_score(data_returns=DATA, action_error=ActionError([1.0, 2.0], [10, 20], 0.5))
    tree = json.loads(json.dumps(score.to_json()))
    assert Score.of(tree) == score
    for wrong in ({}, {**tree, "unknown": 1}, {**tree, "return_mean": "high"}, {**tree, "return_std": float("nan")}):
        with pytest.raises(ValueError):
            Score.of(wrong)


def test_the_card_carries_them_into_an_export() -> None:
    card = make_card(make_model(), data_returns=DATA)
    runner = make_runner(make_onnx(make_policy(), card))
    assert PolicyCard(**runner.card) == card


def test_evaluate_needs_no_data_for_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = save_run(tmp_path, data_returns=DATA)
    assert evaluate([str(run), "--episodes", "1", "--json", str(tmp_path / "scores.json")]) == 0
    assert LINE in capsys.readouterr().out
    assert json.loads((tmp_path / "scores.json").read_text())[0]["data_returns"] == DATA
    # Of another environment the data say nothing.
    assert evaluate([str(run), "--episodes", "1", "--env-id", "Hopper-v5"]) == 0
    assert "behaviour without noise" not in capsys.readouterr().out


def test_a_card_is_amended_and_the_weights_stay(tmp_path: Path) -> None:
    folder = save_run(tmp_path) / "policy"
    before = {file.name: file.read_bytes() for file in folder.glob("*.safetensors")}
    card = read_card(folder)
    amend_card(folder, data_returns=DATA)
    assert read_card(folder) == dataclasses.replace(card, data_returns=DATA)
    assert {file.name: file.read_bytes() for file in folder.glob("*.safetensors")} == before
    load_policy(folder)


RISE = "reference_returns must be two numbers that rise"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reference_returns": [1.0]}, RISE),
        ({"reference_returns": [1.0, 1.0]}, RISE),
        ({"observation_std": [1.0, 0.0]}, "observation_std.1. must be above 0"),
        ({"observation_std": [-1.0]}, "observation_std.0. must be above 0"),
        ({"action_low": [2.0], "action_high": [1.0]}, "not below action_high"),
        ({"action_low": [1.0]}, "action_low has 1 values, action_high 3"),
        ({"return_scale": 0.0}, "return_scale must be above 0"),
        ({"horizon": 0}, "horizon must be above 0"),
        ({"target_return": 1e300}, r"target_return must be at most 1e\+15"),
        ({"data_returns": {"mean": "high"}}, "data_returns"),
    ],
)
def test_a_card_whose_numbers_cannot_be_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    run = save_run(tmp_path / "run", **change)
    with pytest.raises(CheckpointError, match=message):
        load_policy(run)
