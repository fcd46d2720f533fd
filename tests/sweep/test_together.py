"""Seeds of a cell train in one process where their device is a GPU; here only the choice takes it for one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from run_differences import differences
from small_run import arguments, folder, records

from aaren_rl.policies.folder import read_card
from aaren_rl.runs.folder import RunFolder
from aaren_rl.sweep import schedule, together
from aaren_rl.sweep.processes import CellJob, make_job
from aaren_rl.sweep.schedule import SweepError, run_cells
from aaren_rl.sweep.together import processes_of
from aaren_rl.train.command import main as train
from aaren_rl.train.options import make_parser, make_request

SMALL = "--updates 20 --eval-every 10 --eval-episodes 1 --final-episodes 1 --precision float32 --dropout 0"
SMALL += " --context tbptt --tbptt-length 32 --width 32"


def job(data: Path, out: Path, seed: int, more: str = "", agent: str = "decision-aaren") -> CellJob:
    made = make_request(make_parser().parse_args(arguments(data, out, *SMALL.split(), *more.split())))
    return make_job({**made.settings, "agent": agent, "seed": seed}, out)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[CellJob]:
    """The processes that are started."""
    found: list[CellJob] = []
    launch = schedule.launch

    def watched(job: CellJob, *more: Any) -> subprocess.Popen[bytes]:
        found.append(job)
        return launch(job, *more)

    monkeypatch.setattr(schedule, "launch", watched)
    return found


def seeds_of(processes: list[list[CellJob]]) -> list[tuple[str, list[int]]]:
    return [(jobs[0].config.agent, [job.config.seed for job in jobs]) for jobs in processes]


def test_the_device_decides_who_trains_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [job(tmp_path / "x.hdf5", tmp_path, seed) for seed in range(3)]
    jobs.insert(1, job(tmp_path / "x.hdf5", tmp_path, 0, agent="decision-gru"))
    jobs.insert(2, job(tmp_path / "x.hdf5", tmp_path, 1, agent="decision-gru"))
    jobs += [job(tmp_path / "x.hdf5", tmp_path / "other", seed, "--width 16") for seed in range(2)]
    jobs += [job(tmp_path / "x.hdf5", tmp_path / "dropped", seed, "--dropout 0.1") for seed in range(2)]
    jobs += [make_job({"env": "walker2d-medium", "agent": "decision-aaren", "seed": 0}, tmp_path)]
    monkeypatch.setattr(together, "device_of", lambda job: job.device)
    on_cpu = [[item] for item in jobs]
    assert seeds_of(processes_of([CellJob(**{**vars(item), "device": "cpu"}) for item in jobs])) == seeds_of(on_cpu)
    found = seeds_of(processes_of([CellJob(**{**vars(item), "device": "cuda"}) for item in jobs]))
    aaren, gru = "decision-aaren", "decision-gru"
    expected = [(aaren, [0, 1, 2]), (gru, [0]), (gru, [1]), (aaren, [0, 1]), (aaren, [0]), (aaren, [1]), (aaren, [0])]
    assert found == expected


def test_the_seeds_of_a_cell_train_in_one_process(
    hopper_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: list[CellJob]
) -> None:
    """One that is finished is left alone; all are as from runs alone; one that is gone is trained by itself."""
    monkeypatch.setattr(together, "device_of", lambda _: "cuda")
    alone = [job(hopper_file, tmp_path / "alone", seed) for seed in range(3)]
    for one in alone:
        assert train(one.arguments) == 0
    cells = [job(hopper_file, tmp_path / "together", seed) for seed in range(3)]
    shutil.copytree(alone[0].run, cells[0].run)
    assert run_cells(cells) == 0
    assert [one.seeds for one in launched] == [(1, 2)]
    for one, other in zip(alone, cells, strict=True):
        found = differences(one.run, other.run)
        assert [name for name in found if name.split(".")[0] not in ("torch", "train")] == []
    shutil.rmtree(cells[2].run)
    assert run_cells(cells) == run_cells(cells) == 0
    assert [one.seeds for one in launched] == [(1, 2), ()]


@pytest.mark.slow
def test_a_killed_process_of_seeds_goes_on(
    hopper_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: list[CellJob]
) -> None:
    """Also where one of them has lost its folder by then."""
    monkeypatch.setattr(together, "device_of", lambda _: "cuda")
    cells = [job(hopper_file, tmp_path, seed, "--updates 60") for seed in range(3)]
    right, killed = schedule.launch, []

    def watched(job: CellJob, *more: Any) -> subprocess.Popen[bytes]:
        process = right(job, *more)

        def kill_once() -> None:
            deadline = time.monotonic() + 120
            while not list((cells[2].run / "checkpoints").glob("*.pt")) and time.monotonic() < deadline:
                time.sleep(0.01)
            process.kill()
            killed.append(process)
            shutil.rmtree(cells[0].run)

        if not killed:
            threading.Thread(target=kill_once).start()
        return process

    monkeypatch.setattr(schedule, "launch", watched)
    assert run_cells(cells) == 0
    assert len(launched) == 2 and all(one.seeds == (0, 1, 2) for one in launched)
    for cell in cells:
        assert read_card(cell.run).updates == 60
        assert [record["update"] for record in records(cell.run) if "train/loss" in record] == [50, 60]


@pytest.mark.slow
def test_where_a_process_of_seeds_fails_each_is_tried_alone(
    hopper_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: list[CellJob]
) -> None:
    monkeypatch.setattr(together, "device_of", lambda _: "cuda")
    cells = [job(hopper_file, tmp_path, seed) for seed in range(2)]
    with RunFolder(cells[1].run), pytest.raises(SweepError, match=r"^1 of 2 runs failed.*seed1 \(exit code 2.*in use"):
        run_cells(cells, jobs=1)
    assert [one.seeds for one in launched] == [(0, 1), (), ()]
    assert read_card(folder(tmp_path, seed=0)).updates == 20


@pytest.mark.slow
def test_a_stop_reaches_the_seeds_of_a_process(
    hopper_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: list[CellJob]
) -> None:
    monkeypatch.setattr(together, "device_of", lambda _: "cuda")
    cells = [job(hopper_file, tmp_path, seed, "--updates 100000 --eval-every 100000") for seed in range(2)]

    def stop() -> None:
        deadline = time.monotonic() + 120
        while not (cells[1].run / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=stop).start()
    assert run_cells(cells) == 130
    assert all(list((cell.run / "checkpoints").glob("0*")) for cell in cells) and len(launched) == 1
