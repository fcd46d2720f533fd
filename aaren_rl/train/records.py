"""A run in progress, and what it writes between gradient steps: its log and its checkpoints."""

from __future__ import annotations

import dataclasses
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ..base.errors import CheckpointError, NumericsError
from ..base.json_dataclass import read
from ..envs import Task
from ..evaluate.held_out import SAME_MEAN
from ..evaluate.scores import MEASURES, Score, Unplayed
from ..policies.folder import has_policies
from ..runs.checkpoints import Checkpoint, add_checkpoint, newest_whole
from ..runs.folder import holds_training
from ..runs.metrics import Metrics
from .config import RunConfig
from .data.load import TrainingData
from .settings import OnLog
from .trainer import Stopwatch, Trainer

LOG_EVERY = 50  # gradient steps
# Required keys of a checkpoint, besides those of `Trainer.states`.
TENSORS = ("sampler", "recent", "torch", "normalization")
STATES = {"raw": dict, "ema": dict, "optimizer": dict} | dict.fromkeys(TENSORS, Tensor)


@dataclass
class Run:
    """A training run in progress. Only the writer updates the fields after `on_log`."""

    data: TrainingData
    path: Path
    trainer: Trainer
    on_log: OnLog | None = None
    bar: tqdm[Any] = field(init=False)
    metrics: Metrics = field(init=False)  # of the writer
    recent: list[Tensor] = field(default_factory=list)  # loss and gradient norm of every step since the last log
    watch: Stopwatch = field(default_factory=Stopwatch)  # training time of this process, without evaluations
    timed_from: int = 0  # the gradient step before the first of this process
    last: Score | Unplayed | None = None  # of the last evaluation
    best: Score | Unplayed | None = None  # the evaluation of `policy_best`
    logged: dict[str, float] = field(default_factory=dict)  # the last log, by tag

    @property
    def config(self) -> RunConfig:
        """Its configuration, as the data settled it."""
        return self.data.config

    @property
    def task(self) -> Task:
        return self.data.task

    @property
    def headline(self) -> str:
        """The name of the main score."""
        if not self.task.env_id:
            return f"held-out {MEASURES[self.trainer.data.discrete]}"
        return "return" if self.task.reference is None else "normalized score"

    def is_due(self, every: int) -> bool:
        """Whether an action every so many gradient steps, and after the last, is due now."""
        return self.trainer.update % every == 0 or self.trainer.update == self.config.optimizer.updates

    @property
    def owes_evaluation(self) -> bool:
        """Whether the run ended between a checkpoint and the evaluation that was due, or lost a policy."""
        evaluated = self.last is not None and self.last.updates == self.trainer.update and has_policies(self.path)
        return self.trainer.update > 0 and self.is_due(self.config.evaluation.eval_every) and not evaluated

    def tell(self, values: dict[str, float]) -> None:
        """Log values, tag -> value, at the current gradient step."""
        self.metrics.log(self.trainer.update, values)
        if self.on_log is not None:
            self.on_log(self.trainer.update, values)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint. Raises CheckpointError if it does not fit."""
        self.trainer.restore(checkpoint.number, checkpoint.states)
        self.timed_from = self.trainer.update
        self.recent = list(checkpoint.states["recent"].to(self.trainer.data.device).unbind())
        scores = (checkpoint.progress.get(name) for name in ("last", "best"))
        try:
            kind: type[Score | Unplayed] = Score if self.task.env_id else Unplayed
            self.last, self.best = (None if tree is None else read(kind, tree) for tree in scores)
        except ValueError as error:
            raise CheckpointError(f"the scores in the checkpoint are not readable: {error}") from error

    def log(self) -> None:
        """Log the means since the last log, or that one again, and show them on the progress bar."""
        if self.recent:
            self.logged = self._means()
            self.recent, self.watch, self.timed_from = [], Stopwatch(), self.trainer.update
        if self.logged:  # of an evaluation that is made again, unless its line was deleted
            self.tell(self.logged)
        self.show()

    def _means(self) -> dict[str, float]:
        trainer = self.trainer
        with self.watch:  # waits for the GPU
            loss, norm = self.finite_losses().mean(0).tolist()
        values = {
            "train/loss": loss,
            "train/grad_norm": norm,
            "train/learning_rate": trainer.optimizers.learning_rate,
            **trainer.recurrence(),
        }
        if timed := trainer.update - self.timed_from:  # empty if an evaluation is pending
            values["time/updates_per_second"] = timed / self.watch.seconds
        return values

    def show(self, doing: str = "") -> None:
        """Show the last loss and score on the bar: at once on a terminal, with its next line in a log file."""
        loss = f"{self.logged['train/loss']:.4f}" if self.logged else "-"
        score = (self.last and self.last.headline_words) or "-"
        self.bar.set_postfix_str(f"loss {loss}, {self.headline} {score}{doing}", refresh=sys.stderr.isatty())

    def save(self) -> None:
        """Add a checkpoint. Raises NumericsError if a loss since the last log is not finite."""
        recent = self.finite_losses()
        scores = {"last": self.last, "best": self.best}
        progress: dict[str, Any] = {name: score and dataclasses.asdict(score) for name, score in scores.items()}
        progress |= {"data": self.data.identity, "data_sha256": self.data.sha256, "precision": self.trainer.precision}
        states = self.trainer.states() | {"recent": recent}
        add_checkpoint(self.path / "checkpoints", self.trainer.update, progress, states)

    def finite_losses(self) -> Tensor:
        """Losses and gradient norms since the last log, (steps, 2).

        Raises NumericsError if one is not finite. The message names the first such step.
        """
        recent = torch.stack(self.recent) if self.recent else torch.zeros(0, 2)
        good = recent.isfinite().all(1)
        if bool(good.all()):
            return recent
        update = self.trainer.update - len(recent) + 1 + int(good.int().argmin())
        kept = "nothing was saved yet"
        if holds_training(self.path):
            kept = f"the last good checkpoint is kept in {self.path / 'checkpoints'}"
        rate = "" if update == 1 else "lower --learning-rate or "  # no step with this rate was taken before the first
        raise NumericsError(
            f"loss or gradient is not finite at gradient step {update}; {kept}; {rate}use --precision float32"
        )

    def last_checkpoint(self) -> Checkpoint | None:
        """The last checkpoint of a run, None before its first.

        Raises CheckpointError if the run was trained on other data until then.
        """
        checkpoint = find_checkpoint(self.path / "checkpoints")
        if checkpoint is None:
            print("no checkpoint yet: starting over", file=sys.stderr)
            return None
        episodes, now, then = self.data.steps.episodes, self.data.identity, checkpoint.progress.get("data")
        way_out = "resume with the data of the run, or start a new one with another --out"
        if not np.allclose(now, then or math.nan, rtol=SAME_MEAN, atol=0):
            raise CheckpointError(
                f"{self.path}: {episodes.dataset} has changed since the run was started: steps and mean return are "
                f"{now}, then {then}; {way_out}"
            )
        mine, sha256 = self.data.sha256, checkpoint.progress.get("data_sha256")
        # Local sets that other processors made may differ by rounding.
        if sha256 != mine and episodes.source != "local":
            raise CheckpointError(
                f"{self.path}: {episodes.dataset} has as many steps and the mean return of the run's data, but other "
                f"numbers (SHA-256 {mine[:16]}..., then {str(sha256)[:16]}...); {way_out}"
            )
        before, after = checkpoint.progress.get("precision"), self.trainer.precision
        if before not in (None, after):
            note = f"note: the run was in {before}, this processor continues in {after} (--precision auto)"
            print(note, file=sys.stderr)
        return checkpoint

    def close(self) -> None:
        """Close the progress bar and the logs."""
        self.bar.close()
        if self.trainer.ranks.is_writer:
            self.metrics.close()


def find_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest intact checkpoint of a run, or None before its first. Raises the errors of `newest_whole`."""
    return newest_whole(folder, STATES, lambda found: found)
