"""Grids of runs: one that is killed goes on, one that is finished is left alone."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from small_run import arguments, folder, records

from aaren_rl.base.errors import CheckpointError, UsageError
from aaren_rl.policies.folder import read_card
from aaren_rl.sweep import schedule
from aaren_rl.sweep.command import main as sweep
from aaren_rl.sweep.grid import Grid
from aaren_rl.sweep.processes import CellJob, make_job
from aaren_rl.sweep.schedule import SweepError, run_cells
from aaren_rl.train.options import make_parser, make_request

UPDATES = 150
VISIBLE = b"CUDA_VISIBLE_DEVICES="
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra: sweep)")


def job(data: Path, out: Path, seed: int, *more: str, updates: int = UPDATES) -> CellJob:
    small = f"--seed {seed} --updates {updates} --eval-every 50 --eval-episodes 1 --final-episodes 1"
    made = make_request(make_parser().parse_args(arguments(data, out, *small.split(), *more)))
    return make_job({"agent": "decision-aaren", "seed": seed, **made.settings}, out)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def process_of(run: Path) -> int | None:
    """The process that holds a run folder's lock open."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) == str(run / ".lock"):
                return int(link.parts[2])
        except OSError:
            continue
    return None


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "victim"), [(None, lambda pid: pid), pytest.param("local", parent, marks=needs_ray)]
)
def test_a_killed_run_goes_on(
    hopper_file: Path, tmp_path: Path, address: str | None, victim: Callable[[int], int]
) -> None:
    """Whose process, or Ray's worker, is killed after the first checkpoint."""
    cells = [job(hopper_file, tmp_path, seed) for seed in range(4)]

    def kill_once() -> None:
        until(lambda: bool(list((cells[1].run / "checkpoints").glob("0*"))))
        if (pid := process_of(cells[1].run)) is not None:
            os.kill(victim(pid), signal.SIGKILL)

    thread = threading.Thread(target=kill_once)
    thread.start()
    assert run_cells(cells, jobs=2, ray_address=address) == 0
    thread.join()
    for cell in cells:
        assert read_card(cell.run).updates == UPDATES
        assert [record["update"] for record in records(cell.run) if "train/loss" in record] == [50, 100, 150]
    # Resumed, not restarted: the events of before the kill are still there, and the log has two beginnings.
    logs = [(cell.run / "train.log").read_text() for cell in cells]
    assert [log.count("run folder:") for log in logs] == [1, 2, 1, 1] and "starting over" not in logs[1]
    assert len(list(cells[1].run.glob("events.*"))) == 2

    files = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    assert run_cells(cells, jobs=2, ray_address=address) == 0
    assert files == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}


def test_a_failing_run_does_not_stop_the_others_and_other_settings_are_refused(
    hopper_file: Path, tmp_path: Path
) -> None:
    good = job(hopper_file, tmp_path, 0, updates=10)
    bad = job(hopper_file, tmp_path, 1, "--learning-rate", "1e30", "--precision", "float32", updates=10)
    with pytest.raises(SweepError, match=r"1 of 2 runs failed.*seed1 \(exit code 6.*loss or gradient is not finite"):
        run_cells([bad, good], jobs=1)
    assert read_card(good.run).updates == 10
    with pytest.raises(CheckpointError, match="holds a run that differs in"):
        run_cells([job(hopper_file, tmp_path, 0, updates=6)])


def test_a_run_that_is_killed_again_and_again_fails(hopper_file: Path, tmp_path: Path) -> None:
    """By SIGKILL, or by SIGTERM, after which a run exits with 143; an error of an earlier sweep is not told again."""
    started: list[weakref.ref[subprocess.Popen[bytes]]] = []

    def killed(ends: str, job: CellJob, *_: object) -> subprocess.Popen[bytes]:
        assert not any(process() for process in started)  # nor does an ended run hold a pipe
        job.run.mkdir(parents=True, exist_ok=True)
        (job.run / "train.log").write_text("error: of an earlier sweep\n")
        process = subprocess.Popen([sys.executable, "-c", ends])
        started.append(weakref.ref(process))
        return process

    for ends in ("import os; os.kill(os.getpid(), 9)", "raise SystemExit(143)"):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(SweepError, match="ended by a signal 3 times"):
            patch.setattr(schedule, "launch", partial(killed, ends))
            run_cells([job(hopper_file, tmp_path, 0)], jobs=1)
    assert len(started) == 6


def test_a_failure_is_told_in_the_words_of_this_sweep(hopper_file: Path, tmp_path: Path) -> None:
    """Its output may hold no line of ours, such as a traceback of an import."""
    cell = job(hopper_file, tmp_path, 0)
    cell.run.mkdir(parents=True)
    (cell.run / "train.log").write_text("error: of an earlier sweep\n")

    def failing(job: CellJob, *_: object) -> subprocess.Popen[bytes]:
        with (job.run / "train.log").open("a") as log:
            return subprocess.Popen([sys.executable, "-c", "import nothing_such"], stderr=log)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SweepError, match="No module named 'nothing_such'"):
        patch.setattr(schedule, "launch", failing)
        run_cells([cell], jobs=1)


def test_a_run_that_fails_to_save_while_the_sweep_stops_is_told(
    hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fails = (
        "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit('error: disk full'))\nprint(); time.sleep(60)"
    )

    def stopped(job: CellJob, *_: object) -> subprocess.Popen[bytes]:
        job.run.mkdir(parents=True)
        with (job.run / "train.log").open("w") as log:
            child = subprocess.Popen([sys.executable, "-uc", fails], stdout=subprocess.PIPE, stderr=log)
        assert child.stdout is not None
        with child.stdout:
            child.stdout.readline()  # it is ready
        os.kill(os.getpid(), signal.SIGINT)
        return child

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "launch", stopped)
        assert run_cells([job(hopper_file, tmp_path, 0)], jobs=1) == 130
    assert "seed0: disk full" in capsys.readouterr().err


def started(out: Path, runs: int, *more: str) -> tuple[list[Path], subprocess.Popen[str]]:
    """The folders of a sweep, and the process that is its command."""
    grid = f"{{preset: default, envs: [hopper-medium], agents: [decision-aaren], seeds: {list(range(runs))}}}"
    (out / "grid.yaml").write_text(grid)
    command = [
        sys.executable,
        "-m",
        "aaren_rl",
        "sweep",
        str(out / "grid.yaml"),
        "--jobs",
        "2",
        "--out",
        str(out),
        *more,
    ]
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    return [folder(out, seed=seed) for seed in range(runs)], subprocess.Popen(command, text=True, **pipes)


@pytest.mark.slow
@pytest.mark.parametrize("ray", [[], pytest.param(["--ray"], marks=needs_ray)])
def test_ctrl_c_saves_every_run(hopper_file: Path, tmp_path: Path, ray: list[str]) -> None:
    endless = arguments(hopper_file, tmp_path, "--eval-every", "100000", "--updates", "100000")
    runs, process = started(tmp_path, 3, *ray, "--", *endless)
    until(lambda: all((run / "metrics.jsonl").exists() for run in runs[:2]))
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    for run in runs[:2]:
        assert list((run / "checkpoints").glob("0*")), errors
        assert process_of(run) is None
    assert not runs[2].exists() or ray


ENVIRONMENT = """
import gymnasium as gym
gym.register("Swept-v0", entry_point="gymnasium.envs.mujoco.hopper_v4:HopperEnv", max_episode_steps=1000)
"""
GRID = """
{preset: default, envs: [mine], agents: [bc], seeds: [0], data: {mine: {env_id: Swept-v0, source: DATA}}, settings:
  {width: 16, layers: 1, heads: 2, updates: 1, warmup_updates: 1, steps_per_update: 20, final_episodes: 1}}
"""


@pytest.mark.defect(10)
def test_an_environment_of_ones_own(hopper_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a module that registers it; the grid names no code."""
    (tmp_path / "swept.py").write_text(ENVIRONMENT)
    (tmp_path / "grid.yaml").write_text(GRID.replace("DATA", str(hopper_file)))
    (tmp_path / "random.py").write_text("raise RuntimeError")  # which the runs do not import
    monkeypatch.chdir(tmp_path)
    assert sweep(["grid.yaml", "--register", "swept", "--jobs", "1", "--out", "runs"]) == 0
    assert read_card(tmp_path / "runs" / "mine" / "bc" / "seed0").env_id == "Swept-v0"


@pytest.mark.defect(8)
def test_no_run_outlives_a_sweep_that_is_killed(hopper_file: Path, tmp_path: Path) -> None:
    """In the middle of an evaluation, too, which a run that is only asked to end would finish first."""
    evaluating = arguments(hopper_file, tmp_path, "--eval-every", "1", "--eval-episodes", "100000")
    folders, process = started(tmp_path, 2, "--", *evaluating)
    until(lambda: all((run / "checkpoints" / "00000001.pt").exists() for run in folders))
    time.sleep(1)
    runs = [process_of(run) for run in folders]
    process.kill()
    process.communicate()
    time.sleep(2)
    assert None not in runs and [process_of(run) for run in folders] == [None, None]


def test_the_task_of_a_run_is_its_folders(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="data: small: env is not one of"):
        Grid("default", ["small"], ["bc"], [0], data={"small": {"env": "hopper-medium"}})
    hopper = {"env": "hopper-medium", "agent": "bc", "seed": 0}
    assert make_job(hopper, tmp_path, ("--preset", "paper")).preset == "paper"


def test_what_is_not_there_is_refused_at_once(
    hopper_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPUs, Ray, and a cluster at an address."""
    cells = [job(hopper_file, tmp_path, 0)]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for address, message in ((None, "finds no GPU here"), ("local", "say --gpus-per-run")):
        with pytest.raises(UsageError, match=message):
            run_cells(cells, jobs_per_gpu=2, ray_address=address)
    with monkeypatch.context() as patch, pytest.raises(UsageError, match=r"pip install 'aaren-rl\[sweep\]'"):
        patch.setitem(sys.modules, "ray", None)
        run_cells(cells, ray_address="local")
    if importlib.util.find_spec("ray") is None:
        return
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UsageError, match="Ray does not answer"):
            run_cells(cells, ray_address=address)


@pytest.mark.slow
def test_runs_are_spread_over_gpus_each_of_which_sees_one(
    hopper_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What CUDA would see, by the processes' own environments: there is no GPU, and so they train on the CPU."""
    started: list[tuple[str, subprocess.Popen[bytes]]] = []
    at_once: list[Counter[str]] = []
    launch = schedule.launch

    def watched(*given: Any) -> subprocess.Popen[bytes]:
        process = launch(*given)
        place = Path(f"/proc/{process.pid}/environ")
        while not (text := place.read_bytes()) and process.poll() is None:  # empty while the interpreter is loaded
            time.sleep(0.01)
        environment = text.split(b"\0")
        started.append((next(part[len(VISIBLE) :].decode() for part in environment if VISIBLE in part), process))
        at_once.append(Counter(gpu for gpu, p in started if p.poll() is None))
        return process

    monkeypatch.setattr(schedule, "launch", watched)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-7, 3,5")
    cells = [job(hopper_file, tmp_path, seed, updates=2) for seed in range(5)]
    assert run_cells(cells, jobs_per_gpu=2) == 0
    assert len(started) == 5 and {gpu for gpu, _ in started} == {"GPU-7", "3"}
    assert max(max(counts.values()) for counts in at_once) == 2
    assert all(read_card(cell.run).updates == 2 for cell in cells)
