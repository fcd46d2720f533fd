"""Scores: their tables, files and intervals, and what the data return beside them."""

import csv
import json
from dataclasses import asdict

import numpy as np
import pytest
from policies import save_run
from synthetic import make_score

from aaren_rl.base.errors import CheckpointError
from aaren_rl.base.fields import read
from aaren_rl.evaluate.evaluate import main as evaluate
from aaren_rl.evaluate.scores import ActionError, Score, format_table
from aaren_rl.policies.folder import load_policy

DATA = {"mean": 1383.0, "best_tenth": 2871.0, "mode": 1336.0}
LINE = "data: mean 1383 (43.1), best tenth 2871 (88.8); deterministic behavior policy 1336 (41.7)"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"data_returns": DATA}, LINE),
        ({"data_returns": {"mean": -0.25}, "reference": None}, "data: mean -0.250"),
    ],
)
def test_the_table_says_what_the_data_return(changes, line):
    lines = format_table([make_score(**changes)]).splitlines()
    assert lines[-2] == line and lines[-3] == "" and make_score().data() is None


def test_scores_are_read_as_they_were_written():
    score = make_score(data_returns=DATA, action_error=ActionError([1.0, 2.0], [10, 20], 0.5))
    assert read(Score, json.loads(json.dumps(asdict(score)))) == score


def test_evaluate_needs_no_data_for_them(tmp_path, capsys):
    run = save_run(tmp_path, data_returns=DATA)
    assert evaluate([str(run), "--episodes", "1", "--json", str(tmp_path / "scores.json")]) == 0
    assert LINE in capsys.readouterr().out
    assert json.loads((tmp_path / "scores.json").read_text())[0]["data_returns"] == DATA
    # Of another environment the data say nothing.
    assert evaluate([str(run), "--episodes", "1", "--env-id", "Hopper-v5"]) == 0
    out = capsys.readouterr().out
    assert "deterministic behavior policy" not in out and "no score: " in out and "(train takes --ref-min-" in out


def test_several_policies_and_a_row_an_episode(tmp_path, capsys):
    both = [str(save_run(tmp_path / "one")), str(save_run(tmp_path / "other", seed=3, target_return=50.0))]
    files = ["--json", str(tmp_path / "scores.json"), "--csv", str(tmp_path / "episodes.csv")]
    assert evaluate([*both, "--episodes", "5", "--eval-seed", "7", *files]) == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    keys = ("policy", "training_seed", "target_return")
    assert [[score[key] for key in keys] for score in scores] == [[both[0], 0, 300.0], [both[1], 3, 50.0]]
    with (tmp_path / "episodes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["policy"] for row in rows] == [run for run in both for _ in range(5)]
    assert [int(row["seed"]) for row in rows] == [7, 8, 9, 10, 11] * 2
    for score, part in ((scores[0], rows[:5]), (scores[1], rows[5:])):
        assert [float(row["return"]) for row in part] == score["returns"]
        assert np.mean([int(row["length"]) for row in part]) == pytest.approx(score["length_mean"])
        normalized = [float(row["normalized_score"]) for row in part]
        assert np.mean(normalized) == pytest.approx(score["normalized_score_mean"])
        assert np.std(normalized) == pytest.approx(score["normalized_score_std"])
        assert np.std(score["returns"]) == pytest.approx(score["return_std"]) and score["return_std"] > 0
        assert {float(row["target_return"]) for row in part} == {score["target_return"]}
    *_, table, legend = capsys.readouterr().out.rstrip().split("\n\n")
    assert "95% interval" in table and "do not cover other training seeds" in legend
    for run, score in zip(both, scores, strict=True):
        (line,) = (line for line in table.splitlines() if line.startswith(run))
        low, high = map(float, line.split("[")[1].split("]")[0].split(", "))
        assert min(score["returns"]) - 0.1 <= low <= round(score["return_mean"], 1) <= high
    for option in (["--video", "x.gif"], ["--record-minari", "me/x-v0"]):
        assert evaluate([*both, *option]) == 2
        assert f"{option[0]}: takes one policy, not 2" in capsys.readouterr().err
    assert evaluate([both[0], "--csv", str(tmp_path)]) == 2
    assert evaluate([both[0], str(tmp_path / "gone"), "--episodes", "5", "--eval-seed", "7", *files]) == 4
    (only,) = json.loads((tmp_path / "scores.json").read_text())  # of the one that is there
    assert only["returns"] == scores[0]["returns"]
    assert len((tmp_path / "episodes.csv").read_text().splitlines()) == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reference_returns": [1.0, 1.0]}, "reference_returns must be two increasing numbers"),
        ({"observation_std": [1.0, 0.0]}, "observation_std.1. must be above 0"),
        ({"action_low": [2.0], "action_high": [1.0]}, "not below action_high"),
        ({"action_low": [1.0]}, "action_low has 1 values, action_high 3"),
        ({"return_scale": 0.0}, "return_scale must be above 0"),
        ({"target_return": 1e300}, r"target_return must be at most 1e\+15"),
        ({"draws": "twice"}, "draws must be one of return, best, uniform, not 'twice'"),
        ({"draw_share": 0.0}, r"draws must be .* their share in \(0, 1\]"),
        ({"data_returns": {"mean": "high"}}, "data_returns"),
    ],
)
def test_a_card_whose_numbers_cannot_be_is_refused(tmp_path, change, message):
    run = save_run(tmp_path / "run", **change)
    with pytest.raises(CheckpointError, match=message):
        load_policy(run)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"mixer": "aaren-rsa", "width": 2**40, "heads": 2**40}, f"the model's width is {2**40}"),
        ({"mixer": "aaren-rsa", "rem_dilation": 2**40}, "rem_dilation: must be at most 1,000"),
    ],
)
def test_a_card_of_a_huge_model_costs_no_memory(tmp_path, shape, message):
    file = save_run(tmp_path / "run") / "policy" / "config.json"
    card = json.loads(file.read_text())
    file.write_text(json.dumps(card | {"card_sha256": None, "model": card["model"] | shape}))
    with pytest.raises(CheckpointError, match=message):
        load_policy(tmp_path / "run")


@pytest.mark.parametrize("written", ["auto", "best", None])
def test_the_target_return_of_a_card_is_a_number_or_auto(tmp_path, written):
    file = save_run(tmp_path / "run") / "policy" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"card_sha256": None, "target_return": written}))
    if written == "auto":
        policy = load_policy(tmp_path / "run")
        assert policy.target_return == policy.card.target_return == "auto"
        return
    with pytest.raises(CheckpointError, match=rf"config.json: .*target_return.* {written!r}"):
        load_policy(tmp_path / "run")
