"""The comparison end to end, at a size that takes seconds: train what is missing, score, report."""

import json
import shutil
from datetime import datetime
from pathlib import Path

import pytest
from small_run import train_before
from table1_cells import read_results

from aaren_rl.compare import main as compare

SMALL = "--width 16 --layers 1 --heads 2 --warmup-updates 1 --steps-per-update 100 --eval-episodes 1 --final-episodes 1"


def command(data: Path, out: Path, *more: str) -> list[str]:
    asked = "--env hopper-medium --seeds 2 --updates 8 --episodes 2 --eval-seed 7 --target-returns 100 3600".split()
    return [*asked, "--source", str(data), "--out", str(out), *more, "--", *SMALL.split(), "--eval-every", "4"]


@pytest.fixture(scope="module")
def compared(hopper_file, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("comparison")
    train_before(command(hopper_file, out))  # `test_what_fails_says_why` starts processes
    assert compare(command(hopper_file, out)) == 0
    return out


@pytest.mark.slow
def test_it_writes_everything(compared):
    cells, settings = read_results(compared / "results.json")
    agents = ("decision-aaren", "decision-transformer")
    assert [(cell.agent, cell.seed) for cell in cells] == [(agent, seed) for seed in (0, 1) for agent in agents]
    assert all(cell.updates == 8 and len(cell.curve) == 2 and cell.last.episodes == 2 for cell in cells)
    assert {cell.last.seed for cell in cells} == {7}
    assert [(score.target_return, score.episodes) for score in cells[0].sweep] == [(100.0, 1), (3600.0, 1)]
    assert settings["episodes"] == 2 and settings["train"][:2] == ["--width", "16"]
    assert datetime.fromisoformat(settings["date"]).tzinfo and "cores" in settings["processor"]
    statistics = json.loads((compared / "results.json").read_text())["statistics"]
    assert [i["seeds"] for i in statistics["imitation"]] == [[0, 1]] * 2
    report = (compared / "report.md").read_text()
    asked = "--env hopper-medium --seeds 2 --updates 8 --episodes 2 --eval-seed 7 --target-returns 100 3600"
    assert f"    command: aaren-rl compare {asked} --source " in report and f" -- {SMALL} --eval-every 4\n" in report
    assert sorted(file.name for file in (compared / "figures").iterdir()) == ["all_scores.svg", "hopper-medium.svg"]
    for agent in agents:  # TensorBoard shows them in the same charts
        assert list((compared / "runs" / "hopper-medium" / agent).rglob("events.out.tfevents.*"))


def test_again_trains_and_scores_nothing(compared, hopper_file, capsys):
    files = [p for p in (compared / "runs").rglob("*") if p.is_file() and p.name != ".lock"]
    before = [p.stat().st_mtime_ns for p in files]
    assert compare([*command(hopper_file, compared), "--tree-budget", "0.5"]) == 0  # the default
    printed = capsys.readouterr().out
    assert "4 runs, 4 of them finished before" in printed and "Decision Transformer" in printed
    assert [p.stat().st_mtime_ns for p in files] == before


def test_what_fails_says_why(compared, hopper_file, tmp_path, capsys):
    assert compare(["9" if word == "8" else word for word in command(hopper_file, compared)]) == 4
    error = capsys.readouterr().err
    assert "optimizer.updates (run: 8, requested: 9)" in error and error.count("\n") == 1
    (tmp_path / "file").touch()
    assert compare(command(hopper_file, tmp_path / "file")) == 2
    assert f"{tmp_path / 'file'} is not a folder; choose another place" in capsys.readouterr().err
    missing = tmp_path / "gone.hdf5"
    assert compare(command(missing, tmp_path / "out", "--agents", "decision-aaren", "--seeds", "1")) == 3
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and "gone.hdf5: does not exist" in error and "train.log" in error


@pytest.mark.slow
def test_data_of_ones_own(hopper_file, tmp_path):
    """Two files, the second under its own name, and a preset among the settings of train."""
    settings = f"{SMALL} --preset paper --eval-every 2 --ref-min-score 0 --ref-max-score 150"
    own = f"--agents decision-aaren --seeds 1 --updates 2 --episodes 1 --jobs 1 -- {settings}"
    shutil.copy(hopper_file, tmp_path / "again.hdf5")
    sources = ["--source", str(hopper_file), str(tmp_path / "again.hdf5"), "--env", "hop", "again"]
    out = tmp_path / "comparison"
    line = ["--env-id", "Hopper-v5", *sources, "--out", str(out), *own.split()]
    assert compare(line) == compare(line) == 0  # the second time, what the data settled is no other setting
    cells, made = read_results(out / "results.json")
    assert made["preset"] == "paper"
    found = [(cell.env, cell.last.source, cell.last.env_id) for cell in cells]
    assert found == [("hop", "file", "Hopper-v5"), ("again", "file", "Hopper-v5")]
    assert all(cell.last.normalized_score_mean is not None for cell in cells)
    assert "your file" in (out / "report.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--seeds 1", "--env: give the tasks"),
        ("--env hopper-medium --source a.hdf5 b.hdf5", "--env: give the tasks, with one --source"),
        ("--env-id Pendulum-v1 --source a.hdf5 b.hdf5 --env one", "one for 2 sources"),
        ("--env-id Pendulum-v1 --source x/a.hdf5 y/a.hdf5", "a, a for 2 sources"),
        ("--env-id Pendulum-v1 --source a.hdf5 --env hopper-medium", "give data of another environment a name"),
    ],
)
def test_tasks_that_do_not_fit_are_refused_at_once(tmp_path, capsys, arguments, message):
    code = compare(["--out", str(tmp_path / "comparison"), *arguments.split()])
    assert code == 2 and message in capsys.readouterr().err and not (tmp_path / "comparison").exists()
