"""A training run in progress: logging, evaluation and checkpoints between gradient steps, and the policy card."""

from __future__ import annotations

import copy
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

from ..agents import DecisionModel, Policy
from ..base.errors import NumericsError
from ..base.files import is_there
from ..base.machine import device_name
from ..envs import D4RLTask, Episodes, Task, get_task
from ..envs.behavior.noise import mode_returns
from ..evaluate.held_out import HeldOut, action_error
from ..evaluate.play import EpisodePlan, score_policy
from ..evaluate.scores import MEASURES, ActionError, Score, Unplayed
from ..policies.card import PolicyCard, ReturnBounds, task_fields, versions
from ..policies.folder import CARD, amend_card, has_policies, make_policy, save_policy
from ..runs.checkpoints import Saved, add_checkpoint, newest_whole
from ..runs.folder import holds_training
from ..runs.metrics import Metrics
from .config import RunConfig
from .critic import set_deviation
from .settings import OnLog
from .trainer import Stopwatch, Trainer

LOG_EVERY = 50  # gradient steps
INTERVALS = 50  # time intervals for which a card has the range of returns-to-go
# Only single episodes have returns-to-go above this quantile, so a model that gets them at every step extrapolates. On
# hopper-medium-replay with the best return as target, one seed of three scored 27 with them and 86 without.
HIGHEST = 0.99
SCORES = ("eval/normalized_score", "eval/mean_return")  # logged without a critic's choice, too
# Required keys of a checkpoint, besides those of `Trainer.states`.
TENSORS = ("sampler", "recent", "torch", "normalization")
STATES = {"raw": dict, "ema": dict, "optimizer": dict} | dict.fromkeys(TENSORS, Tensor)


@dataclass
class Run:
    """A training run in progress. Only the writer updates the fields after `trainer`."""

    config: RunConfig
    task: Task
    episodes: Episodes  # training episodes, perhaps without observations and actions, which the trainer has
    held_out: HeldOut | None  # None if there are too few episodes
    data_returns: dict[str, float]  # as in the policy card; of all episodes
    data_sha256: str  # of all episodes
    path: Path
    trainer: Trainer
    on_log: OnLog | None = None
    bar: tqdm[Any] = field(init=False)
    metrics: Metrics = field(init=False)
    recent: list[Tensor] = field(default_factory=list)  # loss and gradient norm of every step since the last log
    watch: Stopwatch = field(default_factory=Stopwatch)  # training time of this process, without evaluations
    timed_from: int = 0  # the gradient step before the first of this process
    last: Score | Unplayed | None = None  # of the last evaluation
    best: Score | Unplayed | None = None  # the evaluation of `policy_best`
    critic_r2: float | None = None  # of the critic on held-out episodes, where it was measured
    loss: float | None = None  # gradient step of the last log

    @property
    def headline(self) -> str:
        """The name of the main score."""
        if not self.task.env_id:
            return f"held-out {MEASURES[self.trainer.data.discrete]}"
        return "return" if self.task.reference is None else "normalized score"

    def is_due(self, every: int) -> bool:
        """Whether an action every so many gradient steps, and after the last, is due now."""
        return self.trainer.update % every == 0 or self.trainer.update == self.config.optimizer.updates

    def tell(self, values: dict[str, float]) -> None:
        """Log values, tag -> value, at the current gradient step."""
        self.metrics.log(self.trainer.update, values)
        if self.on_log is not None:
            self.on_log(self.trainer.update, values)

    def due(self, save_every: int | None) -> list[Callable[[Run], None]]:
        """The actions due after the current gradient step."""
        if self.is_due(self.config.evaluation.eval_every):
            return [complete]
        works = [(log, LOG_EVERY), (save, save_every)]
        return [work for work, every in works if every is not None and self.is_due(every)]

    @property
    def owes_evaluation(self) -> bool:
        """Whether the run ended between a checkpoint and the evaluation that was due, or lost a policy."""
        evaluated = self.last is not None and self.last.updates == self.trainer.update and has_policies(self.path)
        return self.trainer.update > 0 and self.is_due(self.config.evaluation.eval_every) and not evaluated


def complete(run: Run) -> None:
    """Save, log if due, evaluate and save the scores. A failed evaluation loses no gradient steps."""
    save(run)
    if run.is_due(LOG_EVERY):
        log(run)
    show(run, ", evaluating")
    evaluate(run)
    show(run)
    save(run)


def log(run: Run) -> None:
    """Log the means since the last log and show them on the progress bar."""
    trainer = run.trainer
    with run.watch:  # waits for the GPU
        loss, norm = finite_losses(run).mean(0).tolist()
    values = {
        "train/loss": loss,
        "train/grad_norm": norm,
        "train/learning_rate": trainer.optimizers.learning_rate,
        **trainer.recurrence(),
    }
    if timed := trainer.update - run.timed_from:  # empty if an evaluation is pending
        values["time/updates_per_second"] = timed / run.watch.seconds
    if run.config.optimizer.non_finite == "skip":
        values["train/skipped_updates"] = trainer.skipped
    run.recent, run.watch, run.timed_from = [], Stopwatch(), trainer.update
    run.tell(values)
    run.loss = loss
    show(run)


def show(run: Run, doing: str = "") -> None:
    """Show the last loss and score on the bar: at once on a terminal, with its next line in a log file."""
    loss, score = (None if run.loss is None else f"{run.loss:.4f}"), (run.last and run.last.headline_words)
    run.bar.set_postfix_str(f"loss {loss or '-'}, {run.headline} {score or '-'}{doing}", refresh=sys.stderr.isatty())


def evaluate(run: Run) -> None:
    """Evaluate the EMA weights. Saves the policy, and the best one so far as `policy_best`."""
    config, trainer = run.config.evaluation, run.trainer
    at_end = trainer.update == run.config.optimizer.updates
    if at_end:
        run.data_returns |= behavior_mode(run.episodes, config.eval_seed)
    card = make_card(run)
    policy, episodes = acting_policy(trainer.ema, card), config.final_episodes if at_end else config.eval_episodes
    bounds = card.action_low, card.action_high
    imitation = None if run.held_out is None else action_error(policy, run.held_out, *bounds)
    if critics := [model.critic for model in (trainer.model, trainer.ema) if model.critic is not None]:
        set_deviation(critics, squared_error(run, imitation))
        policy = acting_policy(trainer.ema, card)  # with this deviation
    plan = EpisodePlan("ema", episodes, [card.target_return], config.eval_seed, candidates=policy.candidates)
    last: Score | Unplayed
    if run.task.env_id:
        last = dataclasses.replace(score_policy(policy, card, plan)[0], action_error=imitation)
    else:
        last = Unplayed(trainer.update, imitation)
    run.last = last
    if imitation is not None:
        fields: Any = imitation.on_card()
        card = dataclasses.replace(card, **fields)
    states = {"ema": trainer.ema.state_dict(), "raw": trainer.model.state_dict()}
    save_policy(run.path / "policy", card, states)
    lost = not is_there(run.path / "policy_best" / CARD)  # a user may have deleted it
    if run.best is None or last.headline > run.best.headline or lost:
        run.best = last
        save_policy(run.path / "policy_best", card, states)
    elif at_end:  # it was saved before the return of the behavior policy was known
        amend_card(run.path / "policy_best", data_returns=run.data_returns)
    if at_end and (data := last.data()) is not None:
        run.metrics.text("data", data)
    told = [] if last.action_error is None else [f"held-out {last.action_error.short()}"]
    if isinstance(last, Score):
        told.insert(0, f"{run.headline} {last.headline_words}")
    run.bar.write(f"gradient step {trainer.update}: {', '.join(told) or 'saved'}")
    # At the end: a callback that stops at this score finds its policy saved.
    run.tell(last.scalars() | critic_scalars(run, policy, card, plan))


def squared_error(run: Run, imitation: ActionError | None) -> list[float] | float:
    """The policy's squared error in model units, (A,), on held-out episodes; without them the last training loss."""
    if imitation is not None and imitation.by_dimension is not None:
        return imitation.by_dimension
    recent = finite_losses(run)[:, 0]
    loss = run.loss if len(recent) == 0 else float(recent.mean())
    assert loss is not None  # an evaluation follows a gradient step, whose loss is recent or logged
    return loss


def critic_scalars(run: Run, policy: Policy, card: PolicyCard, plan: EpisodePlan) -> dict[str, float]:
    """Tag -> value: the fit of the critic, and the scores of the policy without its choice. Empty without a critic."""
    if policy.candidates == 1:
        return {}
    if not card.env_id:
        return {} if run.critic_r2 is None else {"critic/r2": run.critic_r2}
    (plain,) = score_policy(policy, card, dataclasses.replace(plan, candidates=1))
    scores = {f"{tag}_without_candidates": value for tag, value in plain.scalars().items() if tag in SCORES}
    return scores if run.critic_r2 is None else scores | {"critic/r2": run.critic_r2}


def acting_policy(model: DecisionModel, card: PolicyCard) -> Policy:
    """The policy of a model, on the CPU if it acts there by a compiled step, otherwise on the model's device.

    A GPU launches an action operation by operation: 9 ms for 20 environments on an H100. The compiled step of the
    default size takes 0.5 ms on one core.
    """
    policy = make_policy(model, card)
    if model.head.weight.device.type == "cpu":
        return policy
    there = make_policy(copy.deepcopy(model).cpu(), card)
    return there if there.batch_invariant else policy


def save(run: Run) -> None:
    """Add a checkpoint. Raises NumericsError if a loss since the last log is not finite and not to be skipped."""
    if run.config.optimizer.non_finite == "stop":
        finite_losses(run)
    recent = torch.stack(run.recent) if run.recent else torch.zeros(0, 2)
    scores = {name: score and dataclasses.asdict(score) for name, score in (("last", run.last), ("best", run.best))}
    states = run.trainer.states() | {"recent": recent}
    made = {
        "data": data_identity(run),
        "data_sha256": run.data_sha256,
        "precision": run.trainer.precision,
        "critic_r2": run.critic_r2,
    }
    progress = {**scores, **made}
    add_checkpoint(run.path / "checkpoints", run.trainer.update, progress, states)


def data_identity(run: Run) -> list[float]:
    """What tells the training data from others: the number of steps, and the mean return of all episodes."""
    return [len(run.trainer.data), run.data_returns["mean"]]


def find_checkpoint(folder: Path) -> Saved | None:
    """The newest intact checkpoint of a run, or None before its first. Raises the errors of `newest_whole`."""
    return newest_whole(folder, STATES, lambda saved: saved)


def finite_losses(run: Run) -> Tensor:
    """Losses and gradient norms since the last log, (steps, 2), without skipped steps.

    Raises NumericsError if one is not finite or, with skipping, if all are. The message names the first such step.
    """
    recent = torch.stack(run.recent) if run.recent else torch.zeros(0, 2)
    good = recent.isfinite().all(1)
    skip = run.config.optimizer.non_finite == "skip"
    if bool(good.all()) or (skip and bool(good.any())):
        return recent[good]
    update = run.trainer.update - len(recent) + 1 + int(good.int().argmin())
    every = "is not finite at any gradient step from" if skip else "is not finite at gradient step"
    kept = f"the last good checkpoint is kept in {run.path / 'checkpoints'}"
    rate = "" if update == 1 else "lower --learning-rate or "  # no step with this rate was taken before the first
    raise NumericsError(
        f"loss or gradient {every} {update}; {kept if holds_training(run.path) else 'nothing was saved yet'}; "
        f"{rate}use --precision float32"
    )


def make_card(run: Run) -> PolicyCard:
    """The card of the current policy of a run."""
    config, trainer, episodes = run.config, run.trainer, run.episodes
    data, target = config.data, config.evaluation.target_return
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
        target_return=run.task.target_returns[0] if target is None else target,
        return_scale=trainer.data.return_scale,
        observation_mean=trainer.data.observation_mean.tolist(),
        observation_std=trainer.data.observation_std.tolist(),
        model=dataclasses.asdict(trainer.model.config),
        updates=trainer.update,
        seed=config.seed,
        weights="ema",
        versions={**versions(), "device": device_name(trainer.data.device), "precision": trainer.precision},
        held_out=data.held_out,
        data_returns=dict(run.data_returns),
        data_sha256=run.data_sha256,
        critic_r2=run.critic_r2,
        return_range=return_bounds(episodes) if trainer.model.config.return_conditioned else None,
    )


def return_bounds(episodes: Episodes) -> ReturnBounds:
    """The range of returns-to-go in at most 50 time intervals: from the smallest to the 99th percentile."""
    every = math.ceil(episodes.lengths.max() / INTERVALS)
    place, to_go = episodes.timesteps() // every, episodes.returns_to_go().astype(np.float64)
    intervals = [to_go[place == k] for k in range(place.max() + 1)]
    high = [float(np.quantile(interval, HIGHEST)) for interval in intervals]
    return ReturnBounds(every, [float(interval.min()) for interval in intervals], high)


def data_returns(episodes: Episodes) -> dict[str, float]:
    """The returns of a dataset, as in `PolicyCard.data_returns`, without "mode"."""
    best_first = np.sort(episodes.returns)[::-1]
    best = best_first[: max(1, round(0.1 * len(episodes)))]
    return {"mean": float(best_first.mean()), "best_tenth": float(best.mean()), "best": float(best_first[0])}


def behavior_mode(episodes: Episodes, seed: int) -> dict[str, float]:
    """The "mode" of `PolicyCard.data_returns`: the mean return of the deterministic behavior policy.

    It starts from the first states of an evaluation. Empty if the package has no such policy.

    Raises SimulationError if the environment fails.
    """
    task = get_task(episodes.dataset) if episodes.source == "local" else None
    returns = mode_returns(task, seed=seed) if isinstance(task, D4RLTask) else None
    return {} if returns is None else {"mode": float(returns.mean())}
