"""Options of `evaluate` that do not fit the policy or the data."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from policies import save_run

from aaren_rl.envs.data.download import write_pin
from aaren_rl.evaluate.command import main as evaluate

STEPS = 2500


def recorded(file: Path, env_id: str = "Hopper-v2", action: float = 0.5) -> Path:
    """A file of one Hopper: 2,500 steps in which only the last is marked as an end."""
    rng = np.random.default_rng(0)
    with h5py.File(file, "w") as data:
        data["observations"] = rng.normal(size=(STEPS, 11)).astype(np.float32)
        data["actions"] = np.full((STEPS, 3), action, np.float32)
        data["rewards"] = np.ones(STEPS, np.float32)
        data["terminals"] = np.arange(STEPS) == STEPS - 1
        data.attrs["env_id"] = env_id
    return file


def run_with(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = evaluate([*map(str, arguments), "--episodes", "1"])
    return code, *capsys.readouterr()


def test_episodes_of_a_file_are_those_of_the_policys_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = save_run(tmp_path / "run", horizon=1000)
    code, out, error = run_with(capsys, run, "--held-out", recorded(tmp_path / "a.hdf5"))
    assert code == 0 and "over 3 episodes, 2,500 steps" in out
    assert "note: ended 2 episodes after 1000 steps, where the file has no end\n" in error
    code, _, error = run_with(capsys, run, "--held-out", recorded(tmp_path / "b.hdf5", "Walker2d-v2"))
    assert code == 3 and "b.hdf5: is of Walker2d-v2" in error
    write_pin(tmp_path / "a.hdf5", "0" * 64)
    code, _, error = run_with(capsys, run, "--held-out", tmp_path / "a.hdf5")
    assert code == 3 and "the file was changed or damaged" in error
    too_large = recorded(tmp_path / "c.hdf5", action=1.5)
    code, _, error = run_with(capsys, run, "--held-out", too_large)
    assert code == 3 and "--clip-actions" in error
    code, out, error = run_with(capsys, run, "--held-out", too_large, "--clip-actions")
    assert code == 0 and "held-out action MSE" in out and "note: clipped actions from " in error


def test_options_without_effect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, cloned = save_run(tmp_path / "run"), save_run(tmp_path / "bc", agent="bc")
    for arguments, note in (
        ([run, "--rollout-context", 7], "--rollout-context has no effect with the rollout recurrent"),
        ([cloned, "--target-return", 9], "--target-return has no effect with bc"),
    ):
        code, _, error = run_with(capsys, *arguments)
        assert code == 0 and f"note: {note}\n" in error
        assert "note: " not in run_with(capsys, arguments[0])[2]
    for arguments, message in (
        ([run, "--video-episode", "worst"], "needs --video FILE"),
        ([run, "--json", tmp_path / "x", "--csv", tmp_path / "x"], "--json, --csv: both name "),
        ([run, "--clip-actions", "--held-out"], "goes with --held-out FILE"),
        ([cloned, "--target-return", "auto"], "bc is not conditioned on returns; leave it out"),
        ([run, "--target-return", "auto"], "give a number, or train it with --max-return-estimate"),
    ):
        code, _, error = run_with(capsys, *arguments)
        assert code == 2 and message in error and "note: " not in error


def test_an_empty_environment_is_not_the_policys_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = run_with(capsys, save_run(tmp_path / "run"), "--env-id", "")
    assert code == 2 and error.startswith("error: --env-id: must not be empty") and error.count("\n") == 1


def test_a_score_says_which_weights_it_is_of(trained_run: Path, tmp_path: Path) -> None:
    asked: list[tuple[list[str], str]] = [([], "ema"), (["--weights", "raw"], "raw")]
    for options, weights in asked:
        file = tmp_path / f"{weights}.json"
        assert evaluate([str(trained_run), "--episodes", "1", "--json", str(file), *options]) == 0
        assert json.loads(file.read_text())[0]["weights"] == weights
