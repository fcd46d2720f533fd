"""A run's metrics, as lines of JSON and for TensorBoard."""

from __future__ import annotations

import json
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from ..files import write_text

# TensorBoard sorts tags by name, and these would stand before the scores.
_BOARD = {
    "eval/action_error": "imitation/action_error",
    "eval/action_error_above_floor": "imitation/action_error_above_floor",
    "eval/action_nll": "imitation/action_nll",
    "eval/action_accuracy": "imitation/action_accuracy",
    "eval/actions_per_second": "rollout/actions_per_second",
    "eval/length_mean": "rollout/length_mean",
}


class Metrics:
    """Scalars to metrics.jsonl and TensorBoard, under the same tags for every agent; see `_BOARD` for TensorBoard's.

    What was logged after `resumed_at`, where training goes on, is dropped; `clock` counts time: "update" or "step".
    """

    def __init__(self, folder: Path, resumed_at: int = 0, clock: str = "update") -> None:
        self._clock = clock
        path, resumed = folder / "metrics.jsonl", False
        if path.exists():
            lines, resumed = path.read_text(encoding="utf-8", errors="replace").splitlines(), True
            write_text(path, "".join(line + "\n" for line in lines if self._is_before(line, resumed_at)))
        self._file = path.open("a", encoding="utf-8")
        # TensorBoard leaves out what earlier event files have of the purged step and after it.
        self._board = SummaryWriter(str(folder), purge_step=resumed_at + 1 if resumed else None)

    def _is_before(self, line: str, resumed_at: int) -> bool:
        """False also for what a kill cut short: that is after the checkpoint in any case."""
        try:
            return bool(json.loads(line)[self._clock] <= resumed_at)
        except (ValueError, LookupError, TypeError):
            return False

    def log(self, now: int, values: dict[str, float]) -> None:
        """Writes scalars, tag -> value, at an update or a step."""
        self._file.write(json.dumps({self._clock: now, **values}) + "\n")
        self._file.flush()
        for tag, value in values.items():
            self._board.add_scalar(_BOARD.get(tag, tag), value, now)

    def text(self, tag: str, text: str) -> None:
        """Writes a text to TensorBoard."""
        self._board.add_text(tag, text)

    def close(self) -> None:
        """Flushes both."""
        self._file.close()
        self._board.close()
