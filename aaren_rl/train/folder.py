"""A run's folder: the lock for writing, whether it holds a run, and its metrics."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import Timeout

from ..base.errors import CheckpointError, UsageError
from ..base.files import check_place, clear_leftovers, is_there, lock, write_text


def holds_training(path: Path) -> bool:
    """Whether a run's folder holds a checkpoint or a policy; settings alone may be overwritten."""
    return has_checkpoint(path) or (path / "policy").exists()


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


def has_checkpoint(path: Path) -> bool:
    """Whether a run's folder holds a checkpoint, intact or not."""
    return bool(checkpoint_files(path / "checkpoints"))


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
        if holds_training(self.path) and not has_checkpoint(self.path):
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

    def text(self, tag: str, text: str) -> None:
        self._board.add_text(tag, text)

    def close(self) -> None:
        """Flushes both."""
        self._file.close()
        self._board.close()
