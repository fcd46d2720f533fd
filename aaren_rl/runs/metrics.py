"""A run's metrics: JSON lines and TensorBoard events."""

import json
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from ..base.files import write_text


class Metrics:
    """Writes scalars to metrics.jsonl and TensorBoard, under the same tags in both and for every agent.

    Lines logged after `resumed_at`, where training continues, are dropped; `clock` is the x axis: "update" or "step".
    """

    def __init__(self, folder: Path, resumed_at: int = 0, clock: str = "update") -> None:
        self._clock = clock
        path, lines = folder / "metrics.jsonl", list[str]()
        if path.exists():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            lines = [line for line in lines if self._is_before(line, resumed_at)]
            write_text(path, "".join(line + "\n" for line in lines))
        self._file = path.open("a", encoding="utf-8")
        # TensorBoard orders files by the clock, which may have been set back: all events are in one, written again.
        for file in folder.glob("events.out.tfevents.*"):
            file.unlink()
        self._board = SummaryWriter(str(folder))
        for line in lines:
            self._draw(json.loads(line))

    def _is_before(self, line: str, resumed_at: int) -> bool:
        """False also for a line that a kill cut short: it is after the checkpoint in any case."""
        try:
            return bool(json.loads(line)[self._clock] <= resumed_at)
        except (ValueError, LookupError, TypeError):
            return False

    def log(self, now: int, values: dict[str, float]) -> None:
        """Writes scalars, tag -> value, at an update or a step."""
        self._file.write(json.dumps({self._clock: now, **values}) + "\n")
        self._file.flush()
        self._draw({self._clock: now, **values})

    def _draw(self, line: dict[str, Any]) -> None:
        for tag, value in line.items():
            if tag != self._clock:
                self._board.add_scalar(tag, value, line[self._clock])

    def text(self, tag: str, text: str) -> None:
        self._board.add_text(tag, text)

    def close(self) -> None:
        """Flushes both."""
        self._file.close()
        self._board.close()
