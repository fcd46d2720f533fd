"""The runs of a sweep, each begun, watched, and begun again where something ended it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tqdm import tqdm

from ..cli import StopRequest, progress_bar
from ..envs.system import core_count
from ..errors import CheckpointError, CommandError, UsageError
from ..runs.folder import holds_training
from ..train.settings import differences, read_config, settings_of
from .processes import POLL, RETRIES, CellJob, LocalBackend, visible_gpus

if TYPE_CHECKING:
    from .ray_cluster import RayBackend  # Ray is an extra

    Backend: TypeAlias = LocalBackend | RayBackend  # where runs run

SHOW = 2.0  # seconds between looks at their logs
STOPPED = (130, 143)  # a run's exit codes after SIGINT and SIGTERM


class SweepError(CommandError):
    """A run of the sweep failed; the exit code is its own, 1 where a signal ended it."""

    def __init__(self, message: str, code: int) -> None:
        """Takes the run's exit code over."""
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
    """Trains every cell that is not finished, several at once.

    A run that a signal ends is tried again, at most twice, and resumes; where one fails, the others are trained to
    their end all the same. Every run's own output is appended to its train.log. The first SIGINT or SIGTERM stops all
    runs, which save.

    Args:
        cells: the runs.
        jobs: how many at once, one thread each; by default as many as there are cores, and what Ray has room for.
        ray_address: None: processes of this machine, without Ray; "local": a Ray of its own on this machine; else the
            address of a Ray cluster, whose machines share this folder and have the package installed.
        gpus_per_cell: share of a GPU that a run takes, on Ray.
        jobs_per_gpu: how many at once on every GPU of this machine, each of which sees that one alone.

    Returns:
        The exit code: 0, or 128 plus the number of the signal that stopped the sweep.

    Raises:
        UsageError: arguments that make no run, Ray is missing, or there is no GPU to share.
        CheckpointError: a folder holds a run with other settings; the message names them.
        SweepError: a run failed; the message ends with its own last error line.
    """
    tasks = [_Task(job) for job in cells]
    waiting = deque(task for task in tasks if not task.finished())
    print(f"{len(tasks)} runs, {len(tasks) - len(waiting)} of them finished before")
    if not waiting:
        return 0
    backend = _backend(jobs, len(waiting), ray_address, gpus_per_cell, jobs_per_gpu)
    try:
        with StopRequest() as stop, _bar(tasks) as bar:
            return _Sweep(backend, tasks, waiting, bar).play(stop)
    finally:
        backend.close()


def _backend(
    jobs: int | None, waiting: int, ray_address: str | None, gpus_per_cell: float, jobs_per_gpu: int | None
) -> Backend:
    if ray_address is not None:
        if jobs_per_gpu is not None:
            raise UsageError("--jobs-per-gpu: is for this machine's GPUs; with --ray say --gpus-per-run")
        from .ray_cluster import RayBackend  # Ray is an extra

        return RayBackend(ray_address, jobs or waiting, gpus_per_cell)
    if gpus_per_cell:
        print("note: --gpus-per-run is of no effect without --ray", file=sys.stderr)
    if jobs_per_gpu is None:
        return LocalBackend(jobs or core_count())
    if not (gpus := visible_gpus()):
        raise UsageError("--jobs-per-gpu: torch finds no GPU here; leave it out, and runs share the cores")
    slots = jobs_per_gpu * len(gpus)
    return LocalBackend(min(slots, jobs or slots), gpus)


@dataclass
class _Task:
    """A cell on its way."""

    job: CellJob
    tries: int = 0
    problem: str | None = None
    code: int = 0
    done: bool = False

    def finished(self) -> bool:
        """Whether the run is there with its last update; refuses a folder with another run."""
        config_file = self.job.run / "config.yaml"
        if not (config_file.exists() and holds_training(self.job.run)):
            return False
        if differing := differences(read_config(config_file), settings_of(self.job.config)):
            raise CheckpointError(
                f"{self.job.run}: holds a run that differs in {'; '.join(differing)}; choose another --out"
            )
        from ..policies.folder import read_card  # with torch, which takes seconds to import

        try:
            self.done = read_card(self.job.run).updates == self.job.config.optimizer.updates
        except CheckpointError:
            self.done = False
        return self.done

    def updates(self) -> int:
        """How far it is, by its log."""
        if self.done:
            return self.job.config.optimizer.updates
        try:
            with (self.job.run / "metrics.jsonl").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
                return int(json.loads(file.read().splitlines()[-1])["update"])
        except (OSError, ValueError, LookupError):
            return 0  # nothing there yet, or a line half written


class _Sweep:
    """The loop over all cells."""

    def __init__(self, backend: Backend, tasks: list[_Task], waiting: deque[_Task], bar: tqdm[Any]) -> None:
        self.backend, self.tasks, self.waiting, self.bar = backend, tasks, waiting, bar
        self.running: dict[int, tuple[_Task, Any]] = {}  # by the task's identity

    def play(self, stop: StopRequest) -> int:
        """Until all have ended; returns the exit code."""
        asked, shown = False, 0.0
        while self.running or (self.waiting and not asked):
            if stop.signal is not None and not asked:
                asked = True
                self.bar.write("stopping: every run saves first", file=sys.stderr)
                for _, handle in self.running.values():
                    self.backend.stop(handle)
            while self.waiting and not asked and len(self.running) < self.backend.slots:
                self._start(self.waiting.popleft())
            time.sleep(POLL)
            for task, handle in list(self.running.values()):
                if (code := self.backend.code(handle)) is not None:
                    del self.running[id(task)]
                    self._ended(task, code, stopping=asked)
            if (now := time.monotonic()) - shown > SHOW:
                self._show()
                shown = now
        self._show()
        if asked:
            return 128 + (stop.signal or 0)
        self._report()
        return 0

    def _start(self, task: _Task) -> None:
        task.tries += 1
        resume = holds_training(task.job.run)
        self.running[id(task)] = (task, self.backend.start(task.job, resume))

    def _ended(self, task: _Task, code: int, *, stopping: bool) -> None:
        if code == 0:
            task.done = True
        elif stopping:
            return
        elif (code < 0 or code in STOPPED) and task.tries <= RETRIES:
            number = -code if code < 0 else code - 128
            name = signal.Signals(number).name
            self.bar.write(f"{task.job.run}: ended by {name}; trying again from its last checkpoint", file=sys.stderr)
            self.waiting.append(task)
        else:
            task.code = code
            task.problem = _last_error(task.job.run) if code > 0 else f"ended by a signal {task.tries} times"
            self.bar.write(f"{task.job.run}: {task.problem}", file=sys.stderr)

    def _show(self) -> None:
        finished = sum(task.done for task in self.tasks)
        self.bar.set_postfix_str(f"{finished}/{len(self.tasks)} runs", refresh=False)
        self.bar.update(sum(task.updates() for task in self.tasks) - self.bar.n)

    def _report(self) -> None:
        if failed := [task for task in self.tasks if task.problem]:
            first = failed[0]
            raise SweepError(
                f"{len(failed)} of {len(self.tasks)} runs failed, the first is {first.job.run} "
                f"(exit code {first.code}; see its train.log): {first.problem}",
                first.code,
            )


def _bar(tasks: list[_Task]) -> tqdm[Any]:
    return progress_bar(
        total=sum(task.job.config.optimizer.updates for task in tasks),
        initial=sum(task.updates() for task in tasks),
        desc="training",
        unit="update",
    )


def _last_error(run: Path) -> str:
    lines = [line for line in (run / "train.log").read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or ["no output"])[-1].removeprefix("error: ").strip()
