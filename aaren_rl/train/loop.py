"""The training loop, from top to bottom: set-up, updates, and what is logged, evaluated and saved in between."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from tqdm import tqdm

from ..cli import StopRequest, progress_bar
from ..envs import Episodes, Task
from ..errors import NumericsError
from ..evaluate.held_out import HeldOut, hold_out, measure_action_error
from ..evaluate.play import EpisodePlan, score_policy
from ..evaluate.scores import Score, format_table, mismatch
from ..policies.folder import amend_card, make_policy, save_policy
from ..policies.names import SOURCES
from ..runs.folder import holds_training
from ..runs.metrics import Metrics
from .acceleration import keep_freed_memory
from .card import behaviour_mode, data_returns, error_fields, make_card
from .checkpoint import find_checkpoint, save_checkpoint
from .config import RunConfig
from .contexts.batches import StepData
from .contexts.sampling import settle_context
from .ranks import Ranks
from .settings import to_dict
from .starting import read_start
from .trainer import Stopwatch, Trainer

LOG_EVERY = 50  # updates
OnLog = Callable[[int, dict[str, float]], object]  # is told the update and what is logged at it, tag -> value


@dataclass(frozen=True)
class How:
    """How a run is trained, of what does not decide its result.

    Attributes:
        resume: go on from the last checkpoint, where there is one.
        compiled: see `Trainer`.
        save_every: updates between checkpoints, beside those of evaluations.
        on_log: called by the writer with everything that is logged.
    """

    resume: bool = False
    compiled: bool = False
    save_every: int | None = None
    on_log: OnLog | None = None


@dataclass
class Run:
    """A training run on its way; what comes after `trainer` is kept up to date on the writer alone.

    Attributes:
        episodes: those it is trained on.
        held_out: those it is not; None where there are too few.
        data_returns: as in the policy's card, of all of the data.
        recent: loss and gradient norm of every update since the last log.
        watch: the time of those that this process has done, training alone.
        timed_from: the update before them.
        last: the last evaluation's score.
        best: the best evaluation's, whose weights `policy_best` holds.
        loss: that was logged last.
    """

    config: RunConfig
    task: Task
    episodes: Episodes
    held_out: HeldOut | None
    data_returns: dict[str, float]
    path: Path
    trainer: Trainer
    on_log: OnLog | None = None
    bar: tqdm[Any] = field(init=False)
    metrics: Metrics = field(init=False)
    recent: list[Tensor] = field(default_factory=list)
    watch: Stopwatch = field(default_factory=Stopwatch)
    timed_from: int = 0
    last: Score | None = None
    best: Score | None = None
    loss: float | None = None

    @property
    def headline(self) -> str:
        """What a score's one number is."""
        return "return" if self.task.reference is None else "normalised score"

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
        saving = save_every is not None and self.is_due(save_every)
        return [*([log] if self.is_due(LOG_EVERY) else []), *([save] if saving else [])]

    @property
    def owes_evaluation(self) -> bool:
        """Whether the run was ended after it had saved and before the evaluation was done that was due."""
        evaluated = self.last is not None and self.last.updates == self.trainer.update
        return self.trainer.update > 0 and self.is_due(self.config.evaluation.eval_every) and not evaluated


def train(
    config: RunConfig,
    task: Task,
    episodes: Episodes,
    device: torch.device,
    path: Path,
    ranks: Ranks,
    stop: StopRequest,
    how: How,
) -> int:
    """Trains to the last update, or until a signal; returns the exit code.

    Args:
        config: all that decides the result.
        task: what the policy is scored on, every `eval_every` updates.
        episodes: what it is trained on, less what is held out.
        device: where to train.
        path: the run's folder, which the caller holds.
        ranks: the processes that train together; the writer alone logs, evaluates and saves while the others wait.
        stop: a signal ends training after the update it comes in, with a checkpoint.
        how: what does not decide the result.

    Raises:
        CheckpointError: the checkpoint cannot be gone on from.
        NumericsError: a loss or gradient is not finite; the last good checkpoint is kept.
        SimulationError: an evaluation failed; --resume does it again.
    """
    keep_freed_memory()
    run = prepare(config, task, episodes, device, path, ranks, how)
    trainer, updates = run.trainer, config.optimizer.updates
    ranks.share(partial(announce, run))

    if trainer.update == 0 and config.data.start_from is None:
        trainer.fit_returns()
    hidden = not ranks.is_writer
    run.bar = progress_bar(total=updates, initial=trainer.update, desc=task.name, unit="update", disable=hidden)
    try:
        if run.owes_evaluation:
            share(run, complete)
        while trainer.update < updates:
            with run.watch:
                loss_and_norm = torch.stack(trainer.step())
            if ranks.is_writer:
                run.recent.append(loss_and_norm)
            run.bar.update()
            number = ranks.agree(stop.signal)
            for work in run.due(how.save_every):
                share(run, work)
            if number is not None and trainer.update < updates:
                share(run, leave)
                return 128 + number
    finally:
        run.bar.close()
        if ranks.is_writer:
            run.metrics.close()
    ranks.share(partial(report, run))
    return 0


def share(run: Run, work: Callable[[Run], None]) -> None:
    """What saves, on the writer, with what the other ranks carry."""
    run.trainer.gather()
    run.trainer.ranks.share(partial(work, run))


def prepare(
    config: RunConfig, task: Task, episodes: Episodes, device: torch.device, path: Path, ranks: Ranks, how: How
) -> Run:
    """The run as it stands before its next update; arguments and errors are those of `train`."""
    low, high = task.action_low, task.action_high
    training, held_out = hold_out(episodes, config.data.held_out, config.seed)
    training = training.best(config.data.best_fraction)
    config = settle_context(config, training)
    data = StepData(training, config.data.return_scale, device, action_low=low, action_high=high)
    start = None if config.data.start_from is None else read_start(config.data.start_from)
    if start is not None:
        data.normalise_as(start.card.observation_mean, start.card.observation_std)
    trainer = Trainer(config, data, training.action_dim, task.horizon, ranks, compiled=how.compiled)
    if start is not None:
        start.give(trainer)
    run = Run(config, task, training, held_out, data_returns(episodes), path, trainer, how.on_log)
    if how.resume:
        restore(run, ranks)
    return run


def restore(run: Run, ranks: Ranks) -> None:
    """Goes on from the last checkpoint; starts over where the run was ended before its first."""
    checkpoint = ranks.share(lambda: find_checkpoint(run.path / "checkpoints"))
    if checkpoint is None:
        ranks.share(lambda: print("no checkpoint yet: starting over", file=sys.stderr))
        return
    run.trainer.restore(checkpoint)
    run.timed_from = run.trainer.update
    run.recent = list(checkpoint.trainer["recent"].to(run.trainer.data.device).unbind())
    run.last, run.best = (Score.from_json(checkpoint.progress.get(name)) for name in ("last", "best"))


def announce(run: Run) -> None:
    """Says what is trained, and opens the logs."""
    config, episodes, trainer = run.config, run.episodes, run.trainer
    for remark in episodes.notes:
        print(f"{episodes.dataset}: {remark}")
    parameters = sum(p.numel() for p in trainer.model.parameters())
    print(
        f"{config.agent}, {parameters:,} parameters, {config.optimizer.updates} updates of about "
        f"{config.data.steps_per_update} steps ({config.data.context} contexts) on {len(episodes)} episodes, "
        f"{episodes.n_steps:,} steps, mean return {episodes.returns.mean():.0f}, from {SOURCES[episodes.source]}"
    )
    if run.held_out is not None:
        print(f"{len(run.held_out.episodes)} more episodes are held out: the action error on them measures imitation")
        if run.held_out.floor is None and episodes.source == "local":
            print("the noise under it is not known: options of the data's reading changed the local set")
    elif config.data.held_out:
        print("no episodes are held out: there are too few; imitation is not measured")
    if trainer.ranks.size > 1:
        print(f"{trainer.ranks.size} processes share every update")
    print(f"run folder: {run.path}")
    acting = config.evaluation.rollout, config.evaluation.rollout_context
    if note := mismatch(config.data.context, config.data.context_length, *acting):
        print(note, file=sys.stderr)
    # What an evaluation that is owed will log again is dropped.
    run.metrics = Metrics(run.path, trainer.update - run.owes_evaluation)
    run.metrics.text("config", f"```yaml\n{yaml.safe_dump(to_dict(config), sort_keys=False)}```")


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
        "train/gradient_norm": norm,
        "train/learning_rate": trainer.optimizers.learning_rate,
        **trainer.recurrence(),
    }
    if timed := trainer.update - run.timed_from:  # none where an evaluation is owed
        values["train/updates_per_second"] = timed / run.watch.seconds
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
    """Scores the averaged and the raw weights; keeps the policy, and the best one so far beside it."""
    config, trainer = run.config.evaluation, run.trainer
    at_end = trainer.update == run.config.optimizer.updates
    if at_end:
        run.data_returns |= behaviour_mode(run.episodes, config.eval_seed)
    card = make_card(run.config, run.task, run.episodes, trainer, run.data_returns)
    models = {"average": trainer.average, "raw": trainer.model}
    episodes = config.final_episodes if at_end else config.eval_episodes
    scores = {}
    for weights, model in models.items():
        policy = make_policy(model, card)
        plan = EpisodePlan(weights, episodes, [card.target_return], config.eval_seed)
        (score,) = score_policy(policy, card, plan)
        error = None if run.held_out is None else measure_action_error(policy, run.held_out, card)
        scores[weights] = dataclasses.replace(score, action_error=error)
    run.last = last = scores["average"]
    run.tell({**last.scalars("eval"), **scores["raw"].scalars("eval_raw")})
    if at_end and (data := last.data()) is not None:
        run.metrics.text("data", data)
    imitation = "" if last.action_error is None else f", held-out action error {last.action_error.short()}"
    run.bar.write(f"update {trainer.update}: {run.headline} {last.headline:.1f}{imitation}")
    card = dataclasses.replace(card, **error_fields(last.action_error))
    states = {weights: model.state_dict() for weights, model in models.items()}
    save_policy(run.path / "policy", card, **states)
    if run.best is None or run.last.headline > run.best.headline:
        run.best = run.last
        save_policy(run.path / "policy_best", card, **states)
    elif at_end:  # it was saved before the behaviour's mode was known
        amend_card(run.path / "policy_best", data_returns=run.data_returns)


def save(run: Run) -> None:
    """Adds a checkpoint.

    Raises:
        NumericsError: a loss or gradient since the last log is not finite, and nothing was saved.
    """
    recent = finite_losses(run)
    progress = {name: score and score.to_json() for name, score in (("last", run.last), ("best", run.best))}
    save_checkpoint(run.path / "checkpoints", run.trainer.checkpoint(progress, recent))


def finite_losses(run: Run) -> Tensor:
    """Losses and gradient norms since the last log, (updates, 2), without those of skipped updates.

    Raises:
        NumericsError: one is not finite or, with skipping, all; the message names the first update.
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


def leave(run: Run) -> None:
    """Saves before the last update, because of a signal."""
    save(run)
    run.bar.close()
    print(f"stopped at update {run.trainer.update}; --resume goes on from here", file=sys.stderr)


def report(run: Run) -> None:
    """Prints the last evaluation's scores, and where the policy is."""
    assert run.last is not None and run.best is not None
    print(f"\n{format_table([run.last])}")
    if run.last.action_error is not None:
        print(f"held-out action error: {run.last.action_error}")
    if run.best.updates != run.last.updates:
        print(f"best of the evaluations: {run.best.headline:.1f} after {run.best.updates} updates")
    print(f"policy: {run.path / 'policy'}")
