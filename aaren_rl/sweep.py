"""Many training runs, several at once, each a process of its own: what is finished is not run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from .checkpoint import read_card
from .cli import StopRequest, progress_bar
from .config import given_settings
from .errors import CheckpointError, CommandError
from .run import RunFolder
from .train import make_parser

TRIES = 3  # of a run that a signal ends, such as the system's when memory runs out
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class CellJob:
    """A training run: its folder and the arguments of `aaren_rl.train` that make it."""

    run: Path
    arguments: list[str]
    updates: int


class CellError(CommandError):
    """A run failed; the message is its own, and so is the exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        """Takes the run's exit code over."""
        super().__init__(message)
        self.exit_code = exit_code


@dataclass
class _Cell:
    job: CellJob
    process: subprocess.Popen[bytes] | None = None
    tries: int = 0
    seen: int = field(default=0)  # updates that the bar has counted


def run_cells(cells: Sequence[CellJob], *, jobs: int | None) -> int:
    """Trains every run that is not finished; those that were begun go on from their last checkpoint.

    Args:
        cells: the runs.
        jobs: how many at once, one thread each; None: one a core.

    Returns:
        0, or 130 or 143 where a signal stopped it: the runs have saved and go on the next time.

    Raises:
        CheckpointError: a run that is there was made with other settings; the message names them.
        CellError: a run failed. Those beside it were left to finish, later ones not begun.
        UsageError: another process holds a run.
    """
    waiting = [_Cell(job) for job in cells if not _finished(job)]
    running: list[_Cell] = []
    failed: CellError | None = None
    done = len(cells) - len(waiting)
    if done:
        print(f"{done} of {len(cells)} runs are there already", file=sys.stderr)
    total = sum(cell.job.updates for cell in waiting)
    at_once = jobs or len(os.sched_getaffinity(0))
    with StopRequest() as stop, progress_bar(total=total, desc="training", unit="update") as bar:
        try:
            while running or (waiting and failed is None):
                while waiting and len(running) < at_once and failed is None:
                    running.append(_start(waiting.pop(0)))
                time.sleep(POLL_SECONDS)
                for cell in list(running):
                    _count(cell, bar)
                    if cell.process is not None and cell.process.poll() is not None:
                        running.remove(cell)
                        failed = _ended(cell, waiting) or failed
                bar.set_postfix_str(f"{len(running)} runs, {len(waiting)} waiting", refresh=False)
                bar.update(0)
                if stop.signal is not None:
                    return stop.exit_code
        finally:
            _stop(running)
    if failed is not None:
        raise failed
    return 0


def _finished(job: CellJob) -> bool:
    """Whether the run is there, made with these settings and trained to its end."""
    if not (job.run / "config.yaml").exists():
        return False
    with RunFolder(job.run) as folder:
        config = folder.resume(given_settings(make_parser(show_all=False).parse_args(job.arguments)))
    try:
        return read_card(job.run).updates == config.optimizer.updates
    except CheckpointError:
        return False


def _start(cell: _Cell) -> _Cell:
    cell.job.run.mkdir(parents=True, exist_ok=True)
    resume = ["--resume"] if (cell.job.run / "config.yaml").exists() else []
    cell.tries += 1
    with open(cell.job.run / "train.log", "ab") as log:
        cell.process = subprocess.Popen(
            [sys.executable, "-m", "aaren_rl.train", *cell.job.arguments, "--threads", "1", *resume],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            # Ctrl-C goes to this process alone, which tells the runs to save.
            start_new_session=True,
        )
    return cell


def _ended(cell: _Cell, waiting: list[_Cell]) -> CellError | None:
    """What to make of a run that has ended: nothing, another try, or an error."""
    assert cell.process is not None
    code = cell.process.returncode
    if code == 0:
        return None
    if code < 0 and cell.tries < TRIES:
        print(f"\n{cell.job.run}: ended by signal {-code}; going on with it", file=sys.stderr)
        waiting.insert(0, cell)
        return None
    lines = (cell.job.run / "train.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    said = (lines[-1] if lines else f"ended with code {code}").removeprefix("error: ")
    return CellError(f"{cell.job.run}: {said} (all of it: {cell.job.run / 'train.log'})", code if code > 0 else 1)


def _count(cell: _Cell, bar: tqdm[Any]) -> None:
    """Moves the bar on by what the run has logged since the last look."""
    try:
        last = (cell.job.run / "metrics.jsonl").read_bytes().rsplit(b"\n", 2)[-2]
        update = int(json.loads(last)["update"])
    except (OSError, IndexError, ValueError, KeyError):
        return
    if update > cell.seen:
        bar.update(update - cell.seen)
        cell.seen = update


def _stop(running: Sequence[_Cell]) -> None:
    """Tells the runs to save and waits for them; a second Ctrl-C leaves at once, and they still save."""
    for cell in running:
        if cell.process is not None and cell.process.poll() is None:
            cell.process.send_signal(signal.SIGTERM)
    for cell in running:
        if cell.process is not None:
            cell.process.wait()
