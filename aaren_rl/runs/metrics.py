"""A run's metrics: JSON lines and TensorBoard events."""

import json
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from ..base.files import write_text


class Metrics:
    """Writes scalars to metrics.jsonl and TensorBoard, under the same tags in both and for every agent.

    Lines logged after `resumed_at`, where training continues, are dropped; `clock` is the x axis: "update" or "step".
    """

    def __init__(self, folder: Path, resumed_at: int = 0, clock: str = "update") -> None:
        self._clock = clock
        path, resumed = folder / "metrics.jsonl", False
        if path.exists():
            lines, resumed = path.read_text(encoding="utf-8", errors="replace").splitlines(), True
            write_text(path, "".join(line + "\n" for line in lines if self._is_before(line, resumed_at)))
        self._file = path.open("a", encoding="utf-8")
        # TensorBoard hides values of earlier event files from the purged step on.
        self._board = SummaryWriter(str(folder), purge_step=resumed_at + 1 if resumed else None)

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
        for tag, value in values.items():
            self._board.add_scalar(tag, value, now)

    def text(self, tag: str, text: str) -> None:
        self._board.add_text(tag, text)

    def close(self) -> None:
        """Flushes both."""
        self._file.close()
        self._board.close()
