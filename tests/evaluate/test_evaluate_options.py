"""Options of `evaluate` that do not fit the policy or the data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from policies import save_run

from aaren_rl.evaluate.evaluate import main as evaluate


def run_with(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = evaluate([*map(str, arguments), "--episodes", "1"])
    return code, *capsys.readouterr()


def test_options_that_do_not_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, cloned = save_run(tmp_path / "run"), save_run(tmp_path / "bc", agent="bc")
    for arguments, message in (
        ([run, "--json", tmp_path / "x", "--csv", tmp_path / "x"], "--json, --csv: both name "),
        ([cloned, "--target-return", "auto"], "bc is not conditioned on returns; leave it out"),
        ([run, "--target-return", "auto"], "give a number, or train it with --max-return-estimate"),
    ):
        code, _, error = run_with(capsys, *arguments)
        assert code == 2 and message in error and "note: " not in error


def test_a_score_says_which_weights_it_is_of(trained_run: Path, tmp_path: Path) -> None:
    asked: list[tuple[list[str], str]] = [([], "ema"), (["--weights", "raw"], "raw")]
    for options, weights in asked:
        file = tmp_path / f"{weights}.json"
        assert evaluate([str(trained_run), "--episodes", "1", "--json", str(file), *options]) == 0
        assert json.loads(file.read_text())[0]["weights"] == weights
