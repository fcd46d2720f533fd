"""A run's folder: the lock for writing, whether it holds a run, its metrics and its checkpoints.

A checkpoint is one file, named by its number, which appears whole or not at all. It is a zip archive of torch.save,
whose CRC-32 checksums show damage. Nothing in it is executed: torch.load(weights_only=True).
"""

from __future__ import annotations

import io
import json
import math
import sys
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from filelock import Timeout

from ..base.errors import CheckpointError, DamagedCheckpointError, UsageError, one_line
from ..base.files import check_place, clear_leftovers, is_there, lock, write_text, write_whole


def holds_training(path: Path) -> bool:
    """Whether a run's folder holds a checkpoint or a policy; settings alone may be overwritten."""
    return bool(checkpoint_files(path / "checkpoints")) or (path / "policy").exists()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a run's metrics.jsonl, without one that was cut short; none where it has no such file."""
    if not is_there(file := path / "metrics.jsonl"):
        return []
    found = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, TypeError, OverflowError, RecursionError, AttributeError):
            tree = json.loads(line)
            if isinstance(tree.get("update"), int) and all(map(math.isfinite, tree.values())):
                found.append(tree)
    return found


def is_finished(metrics: list[dict[str, Any]], updates: int) -> bool:
    """Whether the evaluation after the last update was logged, which is done after its policies were saved."""
    return any({"eval/mean_return", "eval/episodes"} & line.keys() and line["update"] >= updates for line in metrics)


def checkpoint_files(parent: Path) -> list[Path]:
    """The files in a run's checkpoints/, oldest first."""
    return sorted((p for p in parent.glob("*.pt") if p.stem.isdecimal()), key=lambda p: int(p.stem))


class RunFolder:
    """`<out>/<env>/<agent>/seed<k>/`, created if missing, and locked by one process at a time.

    Files: config.yaml, metrics.jsonl, events.out.tfevents.* (TensorBoard), checkpoints/, policy/, policy_best/.
    Raises UsageError if another process holds the lock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made = [folder for folder in (path, *path.parents) if not folder.exists()]  # innermost first
        check_place(path)
        path.mkdir(parents=True, exist_ok=True)
        try:  # the system drops the lock with the process, however it ends: no stale lock is ever left
            self._lock = lock(path / ".lock")
        except Timeout:
            raise UsageError(f"{path}: in use by another process; choose another --seed or --out") from None
        for folder in (path, path / "checkpoints"):
            clear_leftovers(folder)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        """Releases the folder, and removes it if it was created here and is empty."""
        if self._made and [file.name for file in self.path.iterdir()] == [".lock"]:
            with suppress(OSError):  # Windows keeps an open file; or another process writes there
                (self.path / ".lock").unlink()
                for folder in self._made:
                    folder.rmdir()
        self._lock.release()

    def require_new(self) -> None:
        """Raises UsageError if it holds a run; a run that ended before its first save is overwritten."""
        if holds_training(self.path):
            raise UsageError(
                f"{self.path}: already holds a run; --resume continues it, another --seed or --out starts a new one"
            )

    def require_run(self) -> None:
        """Raises UsageError if it holds no run, CheckpointError if its settings or its checkpoints are gone."""
        if not (self.path / "config.yaml").exists():
            if holds_training(self.path):
                raise CheckpointError(f"{self.path}: its config.yaml is missing; put it back, or choose another --out")
            raise UsageError(f"{self.path}: no run to resume; leave --resume out to start one")
        if holds_training(self.path) and not checkpoint_files(self.path / "checkpoints"):
            start = "with --from this folder starts a new run from its policy"
            raise CheckpointError(
                f"{self.path}: its checkpoints are gone, so it cannot be resumed; "
                f"another --out {start if (self.path / 'policy').exists() else 'starts a new run'}"
            )


class Metrics:
    """Writes scalars to metrics.jsonl and TensorBoard, under the same tags in both and for every agent.

    Lines of gradient steps after `resumed_at`, where training continues, are dropped, and so are damaged ones.
    """

    def __init__(self, folder: Path, resumed_at: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter  # seconds

        lines = [line for line in read_metrics(folder) if line["update"] <= resumed_at]
        write_text(folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        self._file = (folder / "metrics.jsonl").open("a", encoding="utf-8")
        # TensorBoard orders files by the clock, which may have been set back: all events are in one, written again.
        for file in folder.glob("events.out.tfevents.*"):
            file.unlink()
        self._board = SummaryWriter(str(folder))
        for line in lines:
            self._draw(line)

    def log(self, update: int, values: dict[str, float]) -> None:
        """Writes scalars, tag -> value, at a gradient step."""
        line = {"update": update, **values}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        self._draw(line)

    def _draw(self, line: dict[str, Any]) -> None:
        for tag, value in line.items():
            if tag != "update":
                self._board.add_scalar(tag, value, line["update"])

    def close(self) -> None:
        """Flushes both."""
        self._file.close()
        self._board.close()


KEPT = 2  # the last checkpoints of a run


class Checkpoint(NamedTuple):
    """A checkpoint: its file, the updates or steps done, the scores so far (JSON values), tensors and plain values."""

    file: Path
    number: int
    progress: dict[str, Any]
    states: dict[str, Any]


def add_checkpoint(parent: Path, number: int, progress: dict[str, Any], states: dict[str, Any]) -> None:
    """Adds a checkpoint to a run's checkpoints/, or replaces the one of the same number; KEPT remain up to this one.

    Raises OSError if it cannot be written; earlier checkpoints remain.
    """
    import torch  # seconds

    content = io.BytesIO()  # torch hides the error of a failed write
    torch.save({"progress": json.dumps(progress), "states": states}, content)
    parent.mkdir(parents=True, exist_ok=True)
    write_whole(parent / f"{number:08d}.pt", content.getbuffer())
    # Later ones are damaged, or this run would have begun from them.
    for old in [file for file in checkpoint_files(parent) if int(file.stem) <= number][:-KEPT]:
        old.unlink()


def newest(parent: Path, needed: Mapping[str, type]) -> Checkpoint | None:
    """The newest intact checkpoint; None if there is no checkpoint.

    A line on standard error names each damaged checkpoint that is skipped. `needed` are the states that a checkpoint
    must hold, name -> type.

    Raises:
        CheckpointError: all are damaged, or the newest intact one cannot be resumed from.
    """
    problems: list[str] = []
    for file in reversed(checkpoint_files(parent)):
        try:
            found = _read(file, needed)
        except DamagedCheckpointError as error:
            problems.append(str(error))
        else:
            for problem in problems:
                print(f"note: {problem}; resuming from the last intact checkpoint, {file.stem}", file=sys.stderr)
            return found
    if problems:
        raise CheckpointError(
            f"{problems[0]}; no older checkpoint is intact; restore one, or start a new run with another --out"
        )
    return None


def _read(file: Path, needed: Mapping[str, type]) -> Checkpoint:
    import torch

    try:
        with zipfile.ZipFile(file) as archive:
            if (damaged := archive.testzip()) is not None:
                raise zipfile.BadZipFile(f"the checksum of {damaged} does not match")
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise DamagedCheckpointError(f"{file}: damaged: {one_line(error)}") from error
    # The file is intact, so the user decides whether to resume from the checkpoint before it.
    way_out = (
        f"training cannot resume from it exactly; delete {file} to resume from the checkpoint before it, or start a "
        "new run with another --out"
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, about the types in a rejected file
            tree = torch.load(file, map_location="cpu", weights_only=True)
        progress, states = dict(json.loads(tree["progress"])), dict(tree["states"])
    except MemoryError:  # the file may be intact
        raise
    except Exception as error:  # torch raises errors of many types for an untrusted file
        # Its message is dropped: it explains how to execute the file anyway.
        raise CheckpointError(f"{file}: holds more than tensors, nothing was executed; {way_out}") from error
    if lacking := [name for name, kind in needed.items() if not isinstance(states.get(name), kind)]:
        raise CheckpointError(f"{file}: lacks the state of {', '.join(lacking)}; {way_out}")
    return Checkpoint(file, int(file.stem), progress, states)
