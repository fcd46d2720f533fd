"""The comparison end to end, at a size that takes seconds: train what is missing, score, report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aaren_rl.compare import command as compare_module
from aaren_rl.compare.cells import read_results
from aaren_rl.compare.command import main as compare

SMALL = "--width 16 --layers 1 --heads 2 --warmup-updates 1 --steps-per-update 100 --eval-episodes 1 --final-episodes 1"


def command(data: Path, out: Path, *more: str) -> list[str]:
    asked = "--env hopper-medium --seeds 2 --updates 8 --episodes 2 --target-returns 100 3600".split()
    return [*asked, "--source", str(data), "--out", str(out), *more, "--", *SMALL.split(), "--eval-every", "4"]


@pytest.fixture(scope="module")
def compared(hopper_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("comparison")
    assert compare(command(hopper_file, out)) == 0
    return out


def times(out: Path) -> dict[Path, int]:
    return {p: p.stat().st_mtime_ns for p in (out / "runs").rglob("*") if p.is_file() and p.name != ".lock"}


def test_it_writes_everything(compared: Path) -> None:
    cells, settings = read_results(compared / "results.json")
    assert [(cell.agent, cell.seed) for cell in cells] == [
        (agent, seed) for seed in (0, 1) for agent in ("decision-aaren", "decision-transformer")
    ]
    assert all(cell.updates == 8 and len(cell.curve) == 2 and cell.last.episodes == 2 for cell in cells)
    assert [score.target_return for score in cells[0].sweep] == [100.0, 3600.0]
    assert settings["episodes"] == 2 and settings["train"][:2] == ["--width", "16"]
    statistics = json.loads((compared / "results.json").read_text())["statistics"]
    assert [i["seeds"] for i in statistics["imitation"]] == [[0, 1]] * 2
    # Both agents kept the same episodes, seed by seed.
    (difference,) = statistics["imitation_differences"]
    assert difference["episodes"] == sum(len(cell.last.action_error.sums) for cell in cells) / 2
    page = (compared / "report.html").read_text()
    assert "Decision-Aaren" in page and "Decision Transformer" in page and "data:image/svg+xml" in page
    assert "hopper-medium" in (compared / "report.md").read_text()
    assert list((compared / "tensorboard").rglob("events.out.tfevents.*"))


def test_again_trains_and_scores_nothing(compared: Path, hopper_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = times(compared)
    assert compare(command(hopper_file, compared)) == 0
    printed = capsys.readouterr()
    assert "4 runs, 4 of them finished before" in printed.out and "Decision Transformer" in printed.out
    assert times(compared) == before


def test_other_settings_are_refused_by_name(
    compared: Path, hopper_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = command(hopper_file, compared)
    asked[asked.index("8")] = "9"
    assert compare(asked) == 4
    error = capsys.readouterr().err
    assert "optimizer.updates (run: 8, asked: 9)" in error and error.count("\n") == 1


def test_a_run_that_fails_says_why(hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "gone.hdf5"
    assert compare(command(missing, tmp_path / "out", "--jobs", "1")) == 3
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and "gone.hdf5: does not exist" in error and "train.log" in error


def test_no_matplotlib_before_the_arguments_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(["--env", "hoper-medium"]) == 2
    assert "did you mean hopper-medium" in capsys.readouterr().err
    assert "matplotlib" not in vars(compare_module)
