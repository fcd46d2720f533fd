"""Options of `evaluate` that do not fit the policy or the data."""

import json
from unittest.mock import Mock

import pytest
from policies import save_run

from aaren_rl.evaluate.evaluate import main as evaluate


def run_with(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = evaluate([*map(str, arguments), "--episodes", "1"])
    return code, *capsys.readouterr()


def test_options_that_do_not_go_together(tmp_path, capsys):
    run, cloned = save_run(tmp_path / "run"), save_run(tmp_path / "bc", agent="bc")
    for arguments, message in (
        ([run, "--json", tmp_path / "x", "--csv", tmp_path / "x"], "--json, --csv: both name "),
        ([cloned, "--target-return", "auto"], "bc is not conditioned on returns; leave it out"),
        ([run, "--target-return", "auto"], "give a number, or train it with --max-return-estimate"),
        ([run, "--env-id", ""], "--env-id: is empty; give the name of an environment"),
        ([save_run(tmp_path / "none", env_id="")], "none was trained without an environment"),
    ):
        code, _, error = run_with(capsys, *arguments)
        assert code == 2 and message in error and "note: " not in error


def test_the_environment_is_made_before_the_held_out_error(trained_run, capsys, monkeypatch):
    """An environment that does not fit is refused before minutes of held-out episodes, not after."""
    monkeypatch.setattr("aaren_rl.evaluate.evaluate.action_error", Mock(side_effect=AssertionError("too early")))
    code, out, error = run_with(capsys, trained_run, "--held-out", "--env-id", "Pendulum-v1")
    assert code == 4 and "choose another environment" in error and out == ""


def test_a_score_says_which_weights_it_is_of(trained_run, tmp_path):
    asked: list[tuple[list[str], str]] = [([], "ema"), (["--weights", "raw"], "raw")]
    for options, weights in asked:
        file = tmp_path / f"{weights}.json"
        assert evaluate([str(trained_run), "--episodes", "1", "--json", str(file), *options]) == 0
        assert json.loads(file.read_text())[0]["weights"] == weights
