"""The training loop: updates, evaluations, checkpoints and what is logged."""

from __future__ import annotations

import dataclasses
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from tqdm import tqdm

from ..agents import DecisionModel, Policy
from ..cli import StopRequest, progress_bar
from ..envs import Episodes, Task
from ..errors import NumericsError
from ..evaluate.play import score_policy
from ..evaluate.scores import Score, format_table, mismatch
from ..policies.card import PolicyCard, task_fields, versions
from ..policies.folder import save_policy
from ..policies.names import SOURCES
from ..runs.metrics import Metrics
from .acceleration import keep_freed_memory
from .batches import StepData
from .checkpoint import find_checkpoint, save_checkpoint
from .config import RunConfig
from .ranks import Ranks
from .settings import to_dict
from .trainer import Stopwatch, Trainer

LOG_EVERY = 50  # updates


class _Run:
    """The loop and what it writes."""

    _metrics: Metrics  # on the writer

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        episodes: Episodes,
        device: torch.device,
        path: Path,
        ranks: Ranks,
        *,
        compiled: bool,
    ) -> None:
        self.ranks, self.config, self.task, self.episodes, self.path = ranks, config, task, episodes, path
        data = StepData(
            episodes,
            config.data.return_scale,
            device,
            action_low=task.action_low,
            action_high=task.action_high,
        )
        keep_freed_memory()
        self.trainer = Trainer(config, data, episodes.action_dim, task.horizon, ranks, compiled=compiled)
        self.recent: list[Tensor] = []  # loss and gradient norm of every update since the last log
        self.watch, self.timed_from = Stopwatch(), 0  # training alone, without evaluations
        self.last: Score | None = None
        self.best: Score | None = None
        self._what = "return" if task.reference is None else "normalised score"

    def play(self, stop: StopRequest, *, resume: bool) -> int:
        """Trains to the last update, or until a signal; returns the exit code."""
        trainer, ranks, updates = self.trainer, self.ranks, self.config.optimizer.updates
        if resume:
            self._resume()
        self.timed_from = trainer.update
        ranks.share(self._announce)
        bar = progress_bar(
            total=updates, initial=trainer.update, desc=self.task.name, unit="update", disable=not ranks.is_writer
        )
        try:
            while trainer.update < updates:
                with self.watch:
                    loss_and_norm = torch.stack(trainer.step())
                if ranks.is_writer:
                    self.recent.append(loss_and_norm)
                bar.update()
                number = ranks.agree(stop.signal)
                if number is not None or self._due(LOG_EVERY) or self._due(self.config.evaluation.eval_every):
                    ranks.share(partial(self._write, bar, stopped=number is not None))
                if number is not None and trainer.update < updates:
                    return 128 + number
        finally:
            bar.close()
            if ranks.is_writer:
                self._metrics.close()
        ranks.share(self._report)
        return 0

    def _due(self, every: int) -> bool:
        return self.trainer.update % every == 0 or self.trainer.update == self.config.optimizer.updates

    def _write(self, bar: tqdm[Any], *, stopped: bool) -> None:
        """Logs, evaluates and saves, each where it is due."""
        if self._due(LOG_EVERY):
            self._log(bar)
        if evaluated := self._due(self.config.evaluation.eval_every):
            self._evaluate(bar)
        if evaluated or stopped:
            self._save()
        if stopped and self.trainer.update < self.config.optimizer.updates:
            bar.close()
            print(f"stopped at update {self.trainer.update}; --resume goes on from here", file=sys.stderr)

    def _resume(self) -> None:
        checkpoint = self.ranks.share(lambda: find_checkpoint(self.path / "checkpoints"))
        if checkpoint is None:
            return self.ranks.share(lambda: print("no checkpoint yet: starting over", file=sys.stderr))
        self.trainer.restore(checkpoint)
        self.recent = list(checkpoint.trainer["recent"].to(self.trainer.data.device).unbind())
        self.last, self.best = (Score.from_json(checkpoint.progress.get(name)) for name in ("last", "best"))

    def _save(self) -> None:
        recent = self._checked()
        progress = {name: score and score.to_json() for name, score in (("last", self.last), ("best", self.best))}
        save_checkpoint(self.path / "checkpoints", self.trainer.checkpoint(progress, recent))

    def _checked(self) -> Tensor:
        """Losses and gradient norms since the last log, (updates, 2), without those of skipped updates."""
        recent = torch.stack(self.recent) if self.recent else torch.zeros(0, 2)
        good = recent.isfinite().all(1)
        skip = self.config.optimizer.non_finite == "skip"
        if bool(good.all()) or (skip and bool(good.any())):
            return recent[good]
        update = self.trainer.update - len(recent) + 1 + int(good.int().argmin())
        every = "is not finite in any update from" if skip else "is not finite at"
        raise NumericsError(
            f"loss or gradient {every} update {update}; the last good checkpoint is kept in "
            f"{self.path / 'checkpoints'}; lower --learning-rate or use --precision float32"
        )

    def _announce(self) -> None:
        """Says what is trained, and opens the logs."""
        episodes, config = self.episodes, self.config
        for remark in episodes.notes:
            print(f"{episodes.dataset}: {remark}")
        parameters = sum(p.numel() for p in self.trainer.model.parameters())
        print(
            f"{config.agent}, {parameters:,} parameters, {config.optimizer.updates} updates of about "
            f"{config.data.steps_per_update} steps ({config.data.context} contexts) on {len(episodes)} episodes, "
            f"{episodes.n_steps:,} steps, mean return {episodes.returns.mean():.0f}, from {SOURCES[episodes.source]}"
        )
        if self.ranks.size > 1:
            print(f"{self.ranks.size} processes share every update")
        print(f"run folder: {self.path}")
        if note := mismatch(config.data.context, config.data.context_length, config.evaluation.rollout):
            print(note, file=sys.stderr)
        self._metrics = Metrics(self.path, self.trainer.update)
        self._metrics.text("config", f"```yaml\n{yaml.safe_dump(to_dict(config), sort_keys=False)}```")

    def _log(self, bar: tqdm[Any]) -> None:
        with self.watch:  # a GPU finishes the updates here
            loss, norm = self._checked().mean(0).tolist()
        values = {
            "train/loss": loss,
            "train/gradient_norm": norm,
            "train/learning_rate": self.trainer.optimizer.param_groups[0]["lr"],
            "train/updates_per_second": (self.trainer.update - self.timed_from) / self.watch.seconds,
            **self.trainer.recurrence(),
        }
        if self.config.optimizer.non_finite == "skip":
            values["train/skipped_updates"] = self.trainer.skipped
        self.recent, self.timed_from, self.watch = [], self.trainer.update, Stopwatch()
        self._metrics.log(self.trainer.update, values)
        score = "-" if self.last is None else f"{self.last.headline:.1f}"
        bar.set_postfix_str(f"loss {loss:.4f}, {self._what} {score}")

    def _evaluate(self, bar: tqdm[Any]) -> None:
        """Scores the averaged and the raw weights; keeps the policy, and the best one so far beside it."""
        self._checked()
        models = {"average": self.trainer.average, "raw": self.trainer.model}
        scores = {weights: self._score(weights, model) for weights, model in models.items()}
        self.last = scores["average"]
        self._metrics.log(self.trainer.update, {**self.last.scalars("eval"), **scores["raw"].scalars("eval_raw")})
        bar.write(f"update {self.trainer.update}: {self._what} {self.last.headline:.1f}")
        states = {weights: model.state_dict() for weights, model in models.items()}
        save_policy(self.path / "policy", self._card(), **states)
        if self.best is None or self.last.headline > self.best.headline:
            self.best = self.last
            save_policy(self.path / "policy_best", self._card(), **states)

    def _score(self, weights: str, model: DecisionModel) -> Score:
        config, card, data = self.config.evaluation, self._card(), self.trainer.data
        final = self.trainer.update == self.config.optimizer.updates
        return score_policy(
            Policy(
                model,
                data.observation_mean,
                data.observation_std,
                card.return_scale,
                config.rollout,
                config.rollout_context,
                torch.tensor(card.action_low, device=data.device),
                torch.tensor(card.action_high, device=data.device),
            ),
            card,
            weights=weights,
            episodes=config.final_episodes if final else config.eval_episodes,
            target_returns=[card.target_return],
            seed=config.eval_seed,
        )[0]

    def _card(self) -> PolicyCard:
        return make_card(self.config, self.task, self.episodes, self.trainer)

    def _report(self) -> None:
        assert self.last is not None and self.best is not None
        print(f"\n{format_table([self.last])}")
        if self.best.updates != self.last.updates:
            print(f"best of the evaluations: {self.best.headline:.1f} after {self.best.updates} updates")
        print(f"policy: {self.path / 'policy'}")


def make_card(config: RunConfig, task: Task, episodes: Episodes, trainer: Trainer) -> PolicyCard:
    """The card of the policy that a run has come to."""
    return PolicyCard(
        **task_fields(task),
        agent=config.agent,
        dataset=episodes.dataset,
        source=episodes.source,
        source_path=episodes.path,
        context=config.data.context,
        context_length=config.data.context_length,
        rollout=config.evaluation.rollout,
        rollout_context=config.evaluation.rollout_context,
        target_return=task.target_returns[0] if (asked := config.evaluation.target_return) is None else asked,
        return_scale=config.data.return_scale,
        observation_mean=trainer.data.observation_mean.tolist(),
        observation_std=trainer.data.observation_std.tolist(),
        model=dataclasses.asdict(trainer.model.config),
        updates=trainer.update,
        seed=config.seed,
        weights="average",
        versions=versions(_device_name(trainer.data.device)),
    )


def _device_name(device: torch.device) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
