"""Several policies in one evaluation, intervals, and a row an episode."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from policies import save_run

from aaren_rl.evaluate.command import main as evaluate


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("several")
    return [str(save_run(root / "one")), str(save_run(root / "other", seed=3, target_return=50.0))]


def test_several_policies_and_a_row_an_episode(
    both: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--json", str(tmp_path / "scores.json"), "--csv", str(tmp_path / "episodes.csv")]
    assert evaluate([*both, "--episodes", "5", "--seed", "7", *files]) == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert [(score["training_seed"], score["target_return"]) for score in scores] == [(0, 300.0), (3, 50.0)]
    with (tmp_path / "episodes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["policy"] for row in rows] == [run for run in both for _ in range(5)]
    assert [int(row["seed"]) for row in rows] == [7, 8, 9, 10, 11] * 2
    for score, part in ((scores[0], rows[:5]), (scores[1], rows[5:])):
        assert [float(row["return"]) for row in part] == score["returns"]
        assert np.mean([int(row["length"]) for row in part]) == pytest.approx(score["length_mean"])
        assert np.mean([float(row["normalized_score"]) for row in part]) == pytest.approx(
            score["normalized_score_mean"]
        )
        assert {float(row["target_return"]) for row in part} == {score["target_return"]}
    *_, table, legend = capsys.readouterr().out.rstrip().split("\n\n")
    assert "95 % interval" in table and "nothing of other training seeds" in legend
    for run, score in zip(both, scores, strict=True):
        (line,) = (line for line in table.splitlines() if line.startswith(run))
        low, high = (float(end) for end in line.split("[")[1].split("]")[0].split(", "))
        assert min(score["returns"]) - 0.1 <= low <= round(score["return_mean"], 1) <= high
        assert high <= max(score["returns"]) + 0.1 and (
            low < high or np.ptp(score["returns"]) < 0.2
        )  # of what is shown


@pytest.mark.parametrize("option", [["--video", "x.gif"], ["--record-minari", "me/x-v0"]])
def test_what_is_for_one_policy_alone(both: list[str], option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate([*both, *option]) == 2
    assert f"{option[0]}: is for one policy, not for 2" in capsys.readouterr().err


def test_a_csv_that_cannot_be_is_refused_first(both: list[str], tmp_path: Path) -> None:
    assert evaluate([both[0], "--csv", str(tmp_path)]) == 2
