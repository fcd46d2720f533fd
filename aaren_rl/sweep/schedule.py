"""The runs of a sweep, each begun, watched, and begun again where something ended it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..base.errors import AarenRLError, CheckpointError, UsageError
from ..base.files import check_place
from ..base.system import core_count
from ..cli import StopRequest, progress_bar
from ..runs.folder import holds_training, is_finished, read_metrics
from ..train.settings import differences, read_config, settings_of
from .processes import POLL, RETRIES, CellJob, launch

SHOW = 2.0  # seconds between looks at their logs
STOPPED = (130, 143)  # a run's exit codes after SIGINT and SIGTERM


class SweepError(AarenRLError):
    """A run of the sweep failed; the exit code is its own, 1 where a signal ended it."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code if code > 0 else 1


def run_cells(
    cells: Sequence[CellJob],
    *,
    jobs: int | None = None,
    ray_address: str | None = None,
    gpus_per_cell: float = 0.0,
    jobs_per_gpu: int | None = None,
) -> int:
    """Trains every cell that is not finished, several at once; returns the exit code.

    A run that a signal ends is tried again, at most twice, and resumes; where one fails, the others go on to their end.
    The first SIGINT or SIGTERM stops all runs, which save: 128 plus its number.

    Args:
        cells: the runs.
        jobs: how many at once, one thread each; by default one a core, and what Ray has room for.
        ray_address: None: no Ray; "local": a Ray of its own on this machine; else the address of a Ray cluster, whose
            machines share this folder and have the package installed.
        gpus_per_cell: share of a GPU that a run takes, on Ray.
        jobs_per_gpu: how many at once on every GPU of this machine, each of which sees that one alone.

    Raises:
        UsageError: arguments that make no run, Ray is missing, or there is no GPU to share.
        CheckpointError: a folder holds a run with other settings; the message names them.
        SweepError: a run failed; the message ends with its own last error line.
    """
    tasks = _tasks(cells)
    waiting = deque(task for task in tasks if not task.done)
    if not waiting:
        return 0
    for task in waiting:
        check_place(task.job.run)
    gpus: list[str] = []
    place: Any = nullcontext(launch)
    if ray_address is not None:
        if jobs_per_gpu is not None:
            raise UsageError("--jobs-per-gpu: is for this machine's GPUs; with --ray say --gpus-per-run")
        from .ray_cluster import connect  # Ray is an extra

        slots, place = jobs or len(waiting), connect(ray_address, gpus_per_cell)
    elif jobs_per_gpu is None:
        slots = jobs or core_count()
    else:
        if not (gpus := visible_gpus()):
            raise UsageError("--jobs-per-gpu: torch finds no GPU here; leave it out, and runs share the cores")
        slots = min(jobs_per_gpu * len(gpus), jobs or sys.maxsize)
    if gpus_per_cell and ray_address is None:
        print("note: --gpus-per-run has no effect without --ray", file=sys.stderr)
    total = sum(job.config.optimizer.updates for job in cells)
    shown = {"total": total, "initial": _updates(tasks), "desc": "training", "unit": "update"}
    with place as start, StopRequest() as stop, progress_bar(**shown) as bar:
        stopped = _play(tasks, waiting, start, slots, gpus, stop, bar)
    if stopped:
        return stop.exit_code
    if failed := [task for task in tasks if task.problem]:
        first = failed[0]
        where = f"{first.job.run} (exit code {first.code}; see its train.log)"
        message = f"{len(failed)} of {len(cells)} runs failed, the first is {where}: {first.problem}"
        raise SweepError(message, first.code)
    return 0


def _tasks(cells: Sequence[CellJob]) -> list[_Task]:
    for note in dict.fromkeys(note for job in cells for note in job.notes):
        print(note, file=sys.stderr)
    tasks = [_Task(job, done=_is_done(job)) for job in cells]
    print(f"{len(cells)} runs, {sum(task.done for task in tasks)} of them finished before")
    return tasks


def visible_gpus() -> list[str]:
    """The GPUs that this process sees, as CUDA_VISIBLE_DEVICES names them."""
    import torch  # seconds

    every = [str(number) for number in range(torch.cuda.device_count())]
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [name.strip() for name in named.split(",")][: len(every)] if named else every


def _is_done(job: CellJob) -> bool:
    """Whether the run is there with its last update; raises CheckpointError where its folder holds another run."""
    from ..policies.folder import has_policies  # with torch: seconds

    config_file = job.run / "config.yaml"
    if not (config_file.exists() and holds_training(job.run)):
        return False
    if differing := differences(read_config(config_file), settings_of(job.config)):
        raise CheckpointError(f"{job.run}: holds a run that differs in {'; '.join(differing)}; choose another --out")
    return has_policies(job.run) and is_finished(read_metrics(job.run), job.config.optimizer.updates)


@dataclass(eq=False)
class _Task:
    job: CellJob
    done: bool = False
    tries: int = 0
    problem: str | None = None
    code: int = 0
    gpu: str | None = None
    log_from: int = 0  # bytes of train.log that an earlier start wrote
    process: Any = None  # has `poll` and `terminate`


def _play(
    tasks: list[_Task],
    waiting: deque[_Task],
    start: Callable[..., Any],
    slots: int,
    gpus: list[str],
    stop: StopRequest,
    bar: tqdm[Any],
) -> bool:
    # Until all have ended; returns whether a signal has stopped them.
    running: list[_Task] = []
    asked, shown = False, 0.0
    while running or (waiting and not asked):
        if stop.signal is not None and not asked:
            asked = True
            bar.write("stopping: every run saves first", file=sys.stderr)
            for task in running:
                task.process.terminate()
        while waiting and not asked and len(running) < slots:
            task = waiting.popleft()
            task.tries += 1
            task.gpu = min(gpus, key=[other.gpu for other in running].count, default=None)
            task.log_from = log.stat().st_size if (log := task.job.run / "train.log").exists() else 0
            task.process = start(task.job, holds_training(task.job.run), task.gpu)
            running.append(task)
        time.sleep(POLL)
        for task in list(running):
            if (code := task.process.poll()) is not None:
                running.remove(task)
                task.process = None  # with the pipe that it holds
                if not asked or not _by_signal(code):
                    _note_end(task, code, waiting, bar)
        if time.monotonic() - shown > SHOW or not running:
            bar.set_postfix_str(f"{sum(task.done for task in tasks)}/{len(tasks)} runs", refresh=False)
            bar.update(_updates(tasks) - bar.n)
            shown = time.monotonic()
    return asked


def _note_end(task: _Task, code: int, waiting: deque[_Task], bar: tqdm[Any]) -> None:
    run = task.job.run
    task.done = code == 0
    if _by_signal(code) and task.tries <= RETRIES:
        name = signal.Signals(-code if code < 0 else code - 128).name
        bar.write(f"{run}: ended by {name}; trying again from its last checkpoint", file=sys.stderr)
        waiting.append(task)
    elif code != 0:
        task.code = code
        task.problem = f"ended by a signal {task.tries} times" if _by_signal(code) else _last_error(task)
        bar.write(f"{run}: {task.problem}", file=sys.stderr)


def _updates(tasks: list[_Task]) -> int:
    return sum(task.job.config.optimizer.updates if task.done else _logged(task.job.run) for task in tasks)


def _logged(run: Path) -> int:
    try:
        with (run / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            return int(json.loads(file.read().splitlines()[-1])["update"])
    except (OSError, ValueError, LookupError):
        return 0  # nothing there yet, or a line half written


def _by_signal(code: int) -> bool:
    return code < 0 or code in STOPPED


def _last_error(task: _Task) -> str:
    log = (task.job.run / "train.log").read_bytes()[task.log_from :].decode(errors="replace")
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or ["no output"])[-1].removeprefix("error: ").strip()
