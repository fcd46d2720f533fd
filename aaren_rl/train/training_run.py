"""A training run on its way: what is logged, evaluated and saved of it between updates, and its policy's card."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ..envs import D4RLTask, Episodes, Task, get_task
from ..envs.behavior.noise import mode_returns
from ..errors import NumericsError
from ..evaluate.held_out import HeldOut, action_error
from ..evaluate.play import EpisodePlan, score_policy
from ..evaluate.scores import Score
from ..machine import device_name
from ..policies.card import PolicyCard, ReturnBounds, task_fields, versions
from ..policies.folder import amend_card, make_policy, save_policy
from ..runs.checkpoints import Saved, add_checkpoint, newest_whole
from ..runs.folder import holds_training
from ..runs.metrics import Metrics
from .config import RunConfig
from .settings import OnLog
from .trainer import Stopwatch, Trainer

LOG_EVERY = 50  # updates
INTERVALS = 50  # of time steps, for which a card has the range of returns-to-go
# Returns-to-go above this quantile are of single episodes, and a model that is fed them at every step extrapolates. On
# hopper-medium-replay, asked for the best return of the data, one seed of three scored 27 with them and 86 without.
HIGHEST = 0.99
# What a checkpoint must hold, beside what `Trainer.states` adds.
STATES = {"raw": dict, "ema": dict, "optimizer": dict, "sampler": Tensor, "recent": Tensor, "torch": Tensor}


@dataclass
class Run:
    """A training run on its way; what comes after `trainer` is kept up to date on the writer alone."""

    config: RunConfig
    task: Task
    episodes: Episodes  # those it is trained on
    held_out: HeldOut | None  # those it is not; None where there are too few
    data_returns: dict[str, float]  # as in the policy's card, of all of the data
    path: Path
    trainer: Trainer
    on_log: OnLog | None = None
    bar: tqdm[Any] = field(init=False)
    metrics: Metrics = field(init=False)
    recent: list[Tensor] = field(default_factory=list)  # loss and gradient norm of every update since the last log
    watch: Stopwatch = field(default_factory=Stopwatch)  # of those that this process has done, training alone
    timed_from: int = 0  # the update before them
    last: Score | None = None  # of the last evaluation
    best: Score | None = None  # whose weights `policy_best` holds
    loss: float | None = None  # that was logged last

    @property
    def headline(self) -> str:
        """What a score's one number is."""
        return "return" if self.task.reference is None else "normalized score"

    def is_due(self, every: int) -> bool:
        """Whether what is done after every so many updates, and after the last, is done now."""
        return self.trainer.update % every == 0 or self.trainer.update == self.config.optimizer.updates

    def tell(self, values: dict[str, float]) -> None:
        """Logs values, tag -> value, at the update that is done."""
        self.metrics.log(self.trainer.update, values)
        if self.on_log is not None:
            self.on_log(self.trainer.update, values)

    def due(self, save_every: int | None) -> list[Callable[[Run], None]]:
        """What is to be done after the update that is done."""
        if self.is_due(self.config.evaluation.eval_every):
            return [complete]
        works = [(log, LOG_EVERY), (save, save_every)]
        return [work for work, every in works if every is not None and self.is_due(every)]

    @property
    def owes_evaluation(self) -> bool:
        """Whether the run was ended after it had saved and before the evaluation was done that was due."""
        evaluated = self.last is not None and self.last.updates == self.trainer.update
        return self.trainer.update > 0 and self.is_due(self.config.evaluation.eval_every) and not evaluated


def complete(run: Run) -> None:
    """Saves, logs where that is due, evaluates, and saves the scores: an evaluation that fails costs no updates."""
    save(run)
    if run.is_due(LOG_EVERY):
        log(run)
    show(run, ", evaluating")
    evaluate(run)
    show(run)
    save(run)


def log(run: Run) -> None:
    """Logs the means since the last log, and shows them on the bar."""
    trainer = run.trainer
    with run.watch:  # a GPU finishes the updates here
        loss, norm = finite_losses(run).mean(0).tolist()
    values = {
        "train/loss": loss,
        "train/grad_norm": norm,
        "train/learning_rate": trainer.optimizers.learning_rate,
        **trainer.recurrence(),
    }
    if timed := trainer.update - run.timed_from:  # none where an evaluation is owed
        values["time/updates_per_second"] = timed / run.watch.seconds
    if run.config.optimizer.non_finite == "skip":
        values["train/skipped_updates"] = trainer.skipped
    run.recent, run.watch, run.timed_from = [], Stopwatch(), trainer.update
    run.tell(values)
    run.loss = loss
    show(run)


def show(run: Run, doing: str = "") -> None:
    """The last loss and score on the bar; at once on a terminal, in a log file with the next line of the bar's."""
    loss, score = (None if run.loss is None else f"{run.loss:.4f}"), (run.last and f"{run.last.headline:.1f}")
    run.bar.set_postfix_str(f"loss {loss or '-'}, {run.headline} {score or '-'}{doing}", refresh=sys.stderr.isatty())


def evaluate(run: Run) -> None:
    """Scores the EMA weights and the raw weights; keeps the policy, and the best one so far beside it."""
    config, trainer = run.config.evaluation, run.trainer
    at_end = trainer.update == run.config.optimizer.updates
    if at_end:
        run.data_returns |= behavior_mode(run.episodes, config.eval_seed)
    card = make_card(run)
    models = {"ema": trainer.ema, "raw": trainer.model}
    episodes = config.final_episodes if at_end else config.eval_episodes
    scores: dict[str, Score] = {}
    for weights, model in models.items():
        policy = make_policy(model, card)
        (score,) = score_policy(policy, card, EpisodePlan(weights, episodes, [card.target_return], config.eval_seed))
        bounds = card.action_low, card.action_high
        imitation = None if run.held_out is None else action_error(policy, run.held_out, *bounds)
        scores[weights] = dataclasses.replace(score, action_error=imitation)
    run.last = last = scores["ema"]
    run.tell(last.scalars() | {f"raw/{tag}": value for tag, value in scores["raw"].scalars().items()})
    if at_end and (data := last.data()) is not None:
        run.metrics.text("data", data)
    held_out = "" if last.action_error is None else f", held-out {last.action_error.short()}"
    run.bar.write(f"update {trainer.update}: {run.headline} {last.headline:.1f}{held_out}")
    if (error := last.action_error) is not None:
        fields: Any = error.on_card()
        card = dataclasses.replace(card, **fields)
    states = {weights: model.state_dict() for weights, model in models.items()}
    save_policy(run.path / "policy", card, states)
    if run.best is None or last.headline > run.best.headline:
        run.best = last
        save_policy(run.path / "policy_best", card, states)
    elif at_end:  # it was saved before the behavior's mode was known
        amend_card(run.path / "policy_best", data_returns=run.data_returns)


def save(run: Run) -> None:
    """Adds a checkpoint, or raises NumericsError where a loss since the last log is not finite."""
    recent = finite_losses(run)
    progress = {name: score and dataclasses.asdict(score) for name, score in (("last", run.last), ("best", run.best))}
    states = run.trainer.states() | {"recent": recent}
    add_checkpoint(run.path / "checkpoints", run.trainer.update, progress, states)


def find_checkpoint(folder: Path) -> Saved | None:
    """The newest checkpoint of a run that is whole, or None before its first; errors are those of `newest_whole`."""
    return newest_whole(folder, STATES, lambda saved: saved)


def finite_losses(run: Run) -> Tensor:
    """Losses and gradient norms since the last log, (updates, 2), without those of skipped updates.

    Raises NumericsError where one is not finite or, with skipping, none is; the message names the first update.
    """
    recent = torch.stack(run.recent) if run.recent else torch.zeros(0, 2)
    good = recent.isfinite().all(1)
    skip = run.config.optimizer.non_finite == "skip"
    if bool(good.all()) or (skip and bool(good.any())):
        return recent[good]
    update = run.trainer.update - len(recent) + 1 + int(good.int().argmin())
    every = "is not finite in any update from" if skip else "is not finite at"
    kept = f"the last good checkpoint is kept in {run.path / 'checkpoints'}"
    rate = "" if update == 1 else "lower --learning-rate or "  # which no update has taken before the first
    raise NumericsError(
        f"loss or gradient {every} update {update}; {kept if holds_training(run.path) else 'nothing was saved yet'}; "
        f"{rate}use --precision float32"
    )


def make_card(run: Run) -> PolicyCard:
    """The card of the policy that a run has come to."""
    config, trainer, episodes = run.config, run.trainer, run.episodes
    data, asked = config.data, config.evaluation.target_return  # where it is "auto", the card has None
    return PolicyCard(
        **task_fields(run.task),
        agent=config.agent,
        dataset=episodes.dataset,
        source=episodes.source,
        source_path=episodes.path,
        context=data.context,
        context_length=data.context_length,
        rollout=config.evaluation.rollout,
        rollout_context=config.evaluation.rollout_context,
        target_return=None if isinstance(asked, str) else run.task.target_returns[0] if asked is None else asked,
        return_scale=data.return_scale,
        observation_mean=trainer.data.observation_mean.tolist(),
        observation_std=trainer.data.observation_std.tolist(),
        model=dataclasses.asdict(trainer.model.config),
        updates=trainer.update,
        seed=config.seed,
        weights="ema",
        versions=versions(device_name(trainer.data.device)),
        held_out=data.held_out,
        data_returns=dict(run.data_returns),
        return_range=return_bounds(episodes) if trainer.model.config.return_conditioned else None,
    )


def return_bounds(episodes: Episodes) -> ReturnBounds:
    """The returns-to-go of the data by time step, in at most 50 intervals: from the smallest to the 99 % quantile."""
    every = math.ceil(episodes.lengths.max() / INTERVALS)
    place, to_go = episodes.timesteps() // every, episodes.returns_to_go().astype(np.float64)
    intervals = [to_go[place == k] for k in range(place.max() + 1)]
    high = [float(np.quantile(interval, HIGHEST)) for interval in intervals]
    return ReturnBounds(every, [float(interval.min()) for interval in intervals], high)


def data_returns(episodes: Episodes) -> dict[str, float]:
    """What a data set returns, as `PolicyCard.data_returns` has it, but for the behavior's mode."""
    best_first = np.sort(episodes.returns)[::-1]
    best = best_first[: max(1, round(0.1 * len(episodes)))]
    return {"mean": float(best_first.mean()), "best_tenth": float(best.mean()), "best": float(best_first[0])}


def behavior_mode(episodes: Episodes, seed: int) -> dict[str, float]:
    """The "mode" of `PolicyCard.data_returns`, from an evaluation's first states; nothing where no policy ships.

    Raises SimulationError where the environment fails.
    """
    task = get_task(episodes.dataset) if episodes.source == "local" else None
    returns = mode_returns(task, seed=seed) if isinstance(task, D4RLTask) else None
    return {} if returns is None else {"mode": float(returns.mean())}
