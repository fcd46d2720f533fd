"""The training loop of `collect`: learn, evaluate, save."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ..cli import StopRequest, progress_bar
from ..envs import normalized_score
from ..errors import CheckpointError, NumericsError, one_line
from ..runs.metrics import Metrics
from .checkpoint import Saved, save_run, saving
from .config import CollectConfig
from .sac import SacTrainer, write_actor
from .target import Evaluation, Target, evaluate_actor

LEARN_AT_ONCE = 400  # steps between looks at the signals: a second or two
LOG_EVERY = 2000  # steps


class CollectRun:
    """A training run in its folder: config.yaml, metrics.jsonl, TensorBoard events, actors/, replay/, checkpoints/."""

    def __init__(
        self, config: CollectConfig, target: Target, path: Path, saved: Saved | None, device: torch.device
    ) -> None:
        """Makes the trainer; goes on from `saved` where there is one.

        Raises:
            CheckpointError: `saved` does not fit.
            SimulationError: the environment cannot be made.
        """
        self.config, self.target, self.path = config, target, path
        room = max(config.steps, saved.steps if saved else 0)
        self.trainer = SacTrainer(config, room, device)
        self.evaluations: tuple[Evaluation, ...] = ()
        self._restarts: tuple[int, ...] = ()
        if saved is not None:
            try:
                self.trainer.restore(saved.trainer, saved.replay)
            except (KeyError, ValueError, TypeError, RuntimeError) as error:
                raise CheckpointError(f"{self.path}: its checkpoint does not fit: {one_line(error)}") from error
            self.evaluations, self._restarts = saved.evaluations, (*saved.restarts, self.trainer.rows)
        self._saved_rows = self.trainer.rows

    def saved(self) -> Saved:
        """What `load_run` would read, from memory."""
        trainer = self.trainer
        return Saved(trainer.steps, trainer.state(), trainer.replay(), self.evaluations, self._restarts)

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to train."""
        last = self.evaluations[-1:]
        reached = any(self.config.reached(evaluation, self.target.family) for evaluation in last)
        return bool(last) and (reached or self.trainer.steps >= self.config.steps)

    def play(self, stop: StopRequest) -> None:
        """Trains to the end, or until a signal; either way all is saved.

        Raises:
            NumericsError: a weight or an action is not finite; the last checkpoint is kept.
            SimulationError: an environment failed; the last checkpoint is kept.
            DataError: the disk is full.
        """
        trainer, config = self.trainer, self.config
        metrics = Metrics(self.path, trainer.steps, clock="step")
        bar = progress_bar(total=config.steps, initial=trainer.steps, desc=self.target.env_id, unit="step")
        try:
            while not self.finished:
                due = self._learn(bar, metrics, stop)
                if due:
                    self._evaluate(bar, metrics)
                if due or trainer.rows > self._saved_rows:
                    with saving(self.path):
                        save_run(self.path, self.saved(), self._saved_rows)
                    self._saved_rows = trainer.rows
                if stop.signal is not None:
                    return
        finally:
            bar.close()
            metrics.close()
            trainer.close()

    def _learn(self, bar: tqdm[Any], metrics: Metrics, stop: StopRequest) -> bool:
        """Up to the next evaluation, or a signal; returns whether the evaluation is due."""
        trainer, every = self.trainer, self.config.checkpoint_every
        goal = min((trainer.steps // every + 1) * every, self.config.steps)
        began, logged = time.perf_counter(), trainer.steps
        while trainer.steps < goal and stop.signal is None:
            before = trainer.steps
            self._learn_some(min(goal, before + LEARN_AT_ONCE))
            bar.update(trainer.steps - before)
            if trainer.steps - logged >= LOG_EVERY or trainer.steps >= goal:
                rate = (trainer.steps - logged) / (time.perf_counter() - began)
                values = trainer.losses()
                metrics.log(trainer.steps, {**values, "train/steps_per_second": rate})
                self._describe(bar, values)
                began, logged = time.perf_counter(), trainer.steps
        return trainer.steps >= goal

    def _learn_some(self, until: int) -> None:
        problem: Exception | None = None
        try:
            self.trainer.learn(until)
        except FloatingPointError as error:  # the action of weights that are finite, but too large
            problem = error
        except ValueError as error:  # torch's distributions refuse NaN
            if self.trainer.is_finite():
                raise
            problem = error
        if problem is not None or not self.trainer.is_finite():
            raise NumericsError(
                f"a weight or action is not finite after step {self.trainer.steps}; the last good checkpoint is kept "
                f"in {self.path / 'checkpoints'}; start anew with a lower --learning-rate"
            ) from problem

    def _describe(self, bar: tqdm[Any], values: dict[str, float]) -> None:
        last = self.evaluations[-1:]
        evaluated = f"{last[0].return_mean:.0f}" if last else "-"
        training = f"{values.get('train/return_mean', float('nan')):.0f}"
        bar.set_postfix_str(f"return {evaluated}, in training {training}", refresh=sys.stderr.isatty())

    def _evaluate(self, bar: tqdm[Any], metrics: Metrics) -> None:
        """Writes the actor and plays a few episodes with it."""
        steps, tensors = self.trainer.steps, self.trainer.actor()
        path = self.path / "actors" / f"{steps}.safetensors"
        metadata = {"env_id": self.target.env_id, "steps": str(steps), "algorithm": "SAC"}
        with saving(self.path):
            write_actor(path, tensors, metadata)
        evaluation = evaluate_actor(self.target, str(path), self.config.seed, steps)
        with saving(self.path):
            write_actor(path, tensors, {**metadata, "mean_return": f"{evaluation.return_mean:.6g}"})
        self.evaluations += (evaluation,)
        metrics.log(steps, self._scalars(evaluation))
        bar.write(f"step {steps:,}: mean return {evaluation.return_mean:.1f}", file=sys.stderr)

    def _scalars(self, evaluation: Evaluation) -> dict[str, float]:
        values = {f"eval/{k}": v for k, v in dataclasses.asdict(evaluation).items() if k != "steps"}
        if self.target.family is not None:
            values["eval/normalized_score"] = normalized_score(self.target.family, evaluation.return_mean)
        return values
