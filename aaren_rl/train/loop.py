"""The training loop: setup and gradient steps, each followed by the actions of `training_run` that are due."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import yaml

from ..agents import Policy, ReturnEstimate, expectile_loss
from ..agents.model.decision import MAX_EXPECTILE, MEAN_EXPECTILE
from ..base.errors import CheckpointError, NumericsError, UsageError
from ..base.files import is_there
from ..base.json_dataclass import read
from ..cli import StopRequest, progress_bar
from ..envs import D4RLTask, Episodes, LocalTask, Task
from ..envs.data.episodes import best_of, held_out
from ..envs.data.observations import Statistics
from ..evaluate.held_out import SAME_MEAN, keep_out
from ..evaluate.scores import MEASURES, Score, Unplayed, above_data, format_table, mismatch
from ..policies.folder import CARD, load_policy, read_card
from ..policies.names import SOURCES, return_words
from ..runs.checkpoints import Saved
from ..runs.folder import has_checkpoint
from ..runs.metrics import Metrics
from .acceleration import keep_freed_memory
from .config import RunConfig
from .critic import FIT_UPDATES as CRITIC_UPDATES
from .critic import PER_UPDATE, fit_critic
from .data.batches import StepData
from .data.sampling import settle_context
from .ranks import Ranks
from .settings import Job, to_dict
from .trainer import Trainer
from .training_run import Run, complete, data_identity, data_returns, find_checkpoint, make_card, save

# How the return estimators are fitted.
FIT_UPDATES = 1500  # a few seconds on one core
FIT_STEPS = 1280  # per gradient step
FIT_RATE = 3e-3  # peak; cosine decay to zero
FIT_DECAY = 1e-4
NAMED = 12  # most columns of a note

TIMESTEPS = 1000  # of a table of time steps at most, where no episode of the data is longer


def train(run: Run, stop: StopRequest, save_every: int | None) -> int:
    """Train to the last gradient step. A signal saves a checkpoint and stops. Returns the exit code.

    Raises NumericsError if a loss or gradient is not finite, SimulationError if an evaluation failed.
    """
    keep_freed_memory()
    trainer, ranks, updates = run.trainer, run.trainer.ranks, run.config.optimizer.updates
    ranks.share(partial(announce, run))
    if trainer.update == 0:  # after `start_from`, too: the best return of these data is asked for
        fit(run)
    hidden = not ranks.is_writer
    run.bar = progress_bar(total=updates, initial=trainer.update, desc=run.task.name, unit="update", disable=hidden)
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
            for work in run.due(save_every):
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


def fit(run: Run) -> None:
    """Fit the estimators of returns and the critic to the data. Raises NumericsError if a loss is not finite."""
    trainer, seed, updates = run.trainer, run.config.seed, run.config.optimizer.updates
    model, ema = trainer.model, trainer.ema
    for name, expectile in (("max_return_estimate", MAX_EXPECTILE), ("mean_return_estimate", MEAN_EXPECTILE)):
        if (estimate := getattr(model, name)) is not None:  # at most as many gradient steps as the policy
            fit_return(estimate, trainer.data, expectile, seed, min(FIT_UPDATES, updates))
            getattr(ema, name).load_state_dict(estimate.state_dict())
    if model.critic is not None and ema.critic is not None:
        held_out = None if run.held_out is None else run.held_out.episodes
        count = min(CRITIC_UPDATES, PER_UPDATE * updates)
        run.critic_r2 = fit_critic(model.critic, trainer.data, run.episodes, held_out, seed=seed, updates=count)
        ema.critic.load_state_dict(model.critic.state_dict())


def _check_critic(task: Task) -> None:
    if task.n_actions is not None:
        raise UsageError(f"--critic: needs continuous actions, and those of {task.name} are discrete; leave it out")
    if isinstance(task, LocalTask) and task.partial:
        raise UsageError(
            f"--critic: sees the current observation alone, and those of {task.name} leave out what acting well "
            "depends on, so that its choice lowers the score; leave it out"
        )


def share(run: Run, work: Callable[[Run], None]) -> None:
    """Run a function that saves on the writer, after collecting the carried states of the other ranks."""
    run.trainer.gather()
    run.trainer.ranks.share(partial(work, run))


def prepare(
    config: RunConfig, task: Task, episodes: Episodes, device: torch.device, path: Path, ranks: Ranks, job: Job
) -> Run:
    """The run before its next gradient step.

    `config` determines the result, `job` everything else. Some episodes are held out. The caller has locked `path`.
    Raises CheckpointError if the checkpoint or the initial policy does not fit, UsageError if a critic does not.
    """
    if config.network.critic:
        _check_critic(task)
    names = ("action_low", "action_high", "n_actions", "action_start")
    actions = {name: getattr(task, name) for name in names}
    # By all episodes, so that it does not depend on which the seed holds out: runs of one comparison have the same.
    best = best_of(episodes.returns, config.data.best_fraction)
    config = settle_context(config, episodes.outline(best))
    held_out = keep_out(episodes, config.data.held_out, config.seed)
    chosen = None if held_out is None and config.data.best_fraction == 1 else _chosen(episodes, config)
    scale = config.data.return_scale
    assert scale is not None  # chosen by the session
    data = ranks.in_turn(lambda: StepData(episodes, scale, device, **actions, chosen=chosen))
    # A run with a checkpoint no longer needs the policy that it started from.
    source = None if job.resume and has_checkpoint(path) else config.data.start_from
    start = None if source is None else ranks.in_turn(lambda: load_policy(source))  # before torch is seeded
    rows = min(task.data_horizon, max(TIMESTEPS, int(episodes.lengths.max())))
    if job.resume and is_there(path / "policy" / CARD):
        rows = read_card(path).model["max_timestep"]
    trainer = Trainer(config, data, task.action_dim, task.data_horizon, ranks, max_timestep=rows)
    if start is not None:
        ranks.in_turn(lambda: start_from(trainer, start, config))
    sha256 = ranks.share(episodes.sha256)
    run = Run(config, task, data.episodes, held_out, data_returns(episodes), sha256, path, trainer, job.on_log)
    if job.resume:
        restore(run)
    return run


def _chosen(episodes: Episodes, config: RunConfig) -> npt.NDArray[np.int64]:
    """The episodes to train on, in rising order: the best of those that are not held out."""
    kept = held_out(len(episodes), config.data.held_out, config.seed)
    others = np.setdiff1d(np.arange(len(episodes)), kept)
    return others[best_of(episodes.returns[others], config.data.best_fraction)]


def start_from(trainer: Trainer, policy: Policy, config: RunConfig) -> None:
    """Initialize the weights, their EMA and the normalization from a policy.

    Raises CheckpointError if its model or the sizes of its environment differ.
    """
    own, there = dataclasses.asdict(trainer.model.config), dataclasses.asdict(policy.model.config)
    # Settings that weights do not depend on may differ: dropout, and rollout settings of tree attention.
    free = ["dropout", "tree_budget", "tree_sampler"]
    if not own["timestep_embedding"]:
        free += ["max_timestep", "timestep_std"]
    differing = [name for name, value in there.items() if name not in free and own[name] != value]
    if differing := [f"{name} ({there[name]}, here {own[name]})" for name in differing]:
        raise CheckpointError(f"--from {config.data.start_from}: the policy's model has another {', '.join(differing)}")
    data, card = trainer.data, policy.card
    exact = data.observation_mean.dtype
    data.observation_mean = torch.tensor(card.observation_mean, dtype=exact, device=data.device)
    data.observation_std = torch.tensor(card.observation_std, dtype=exact, device=data.device)
    for model in (trainer.model, trainer.ema):
        model.load_state_dict(policy.model.state_dict())


def fit_return(model: ReturnEstimate, data: StepData, expectile: float, seed: int, updates: int = FIT_UPDATES) -> None:
    """Fit an estimator of an expectile of the returns-to-go, such as MAX_EXPECTILE, to a whole dataset, with AdamW.

    Every batch has FIT_STEPS steps, sampled by the seed. Raises NumericsError if the final loss is not finite.
    """
    generator = torch.Generator(data.device).manual_seed(seed)
    model.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=FIT_RATE, weight_decay=FIT_DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.5 * (1 + math.cos(math.pi * k / updates)))
    loss = torch.zeros(())
    for _ in range(updates):
        rows = torch.randint(len(data), (FIT_STEPS,), generator=generator, device=data.device)
        loss = expectile_loss(model(data.observed(rows)), data.returns_to_go[rows], expectile)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.requires_grad_(False)
    if not math.isfinite(loss.item()):
        raise NumericsError(
            "returns-to-go of the dataset are too large for the return estimators: raise --return-scale, or turn "
            "them off with --no-max-return-estimate --no-mean-return-estimate"
        )


def restore(run: Run) -> None:
    """Resume from the last checkpoint. Start over if the run ended before its first."""
    checkpoint = run.trainer.ranks.share(partial(checkpoint_of, run))
    if checkpoint is None:
        return
    run.trainer.restore(checkpoint.number, checkpoint.states)
    run.timed_from = run.trainer.update
    run.critic_r2 = checkpoint.progress.get("critic_r2")
    run.recent = list(checkpoint.states["recent"].to(run.trainer.data.device).unbind())
    scores = (checkpoint.progress.get(name) for name in ("last", "best"))
    try:
        kind: type[Score | Unplayed] = Score if run.task.env_id else Unplayed
        run.last, run.best = (None if tree is None else read(kind, tree) for tree in scores)
    except ValueError as error:
        raise CheckpointError(f"the scores in the checkpoint are not readable: {error}") from error


def checkpoint_of(run: Run) -> Saved | None:
    """The last checkpoint of a run, None before its first.

    Raises CheckpointError if the run was trained on other data until then.
    """
    checkpoint = find_checkpoint(run.path / "checkpoints")
    if checkpoint is None:
        print("no checkpoint yet: starting over", file=sys.stderr)
        return None
    now, then = data_identity(run), checkpoint.progress.get("data")
    way_out = "resume with the data of the run, or start a new one with another --out"
    if not np.allclose(now, then or math.nan, rtol=SAME_MEAN, atol=0):
        raise CheckpointError(
            f"{run.path}: {run.episodes.dataset} has changed since the run was started: steps and mean return are "
            f"{now}, then {then}; {way_out}"
        )
    sha256 = checkpoint.progress.get("data_sha256")
    # Local sets that other processors made may differ by rounding.
    if sha256 not in (None, run.data_sha256) and run.episodes.source != "local":
        raise CheckpointError(
            f"{run.path}: {run.episodes.dataset} has as many steps and the mean return of the run's data, but other "
            f"numbers (SHA-256 {run.data_sha256[:16]}..., then {sha256[:16]}...); {way_out}"
        )
    if sha256 is None:
        print("note: this run has no hash of its data: they were compared by steps and mean return", file=sys.stderr)
    before, after = checkpoint.progress.get("precision"), run.trainer.precision
    if before not in (None, after):
        print(f"note: the run was in {before}, this processor continues in {after} (--precision auto)", file=sys.stderr)
    return checkpoint


def announce(run: Run) -> None:
    """Print a summary of the run and open the logs."""
    config, episodes, trainer = run.config, run.episodes, run.trainer
    for remark in episodes.notes:
        print(f"{episodes.dataset}: {remark}")
    print(
        f"{config.agent}, {sum(map(torch.numel, trainer.model.parameters())):,} parameters, "
        f"{config.optimizer.updates} gradient steps of about "
        f"{config.data.steps_per_update} steps ({config.data.context} contexts) on {len(episodes)} episodes, "
        f"{episodes.n_steps:,} steps, mean return {return_words(episodes.returns.mean())}, "
        f"from {SOURCES[episodes.source]}"
    )
    if note := constant_columns(trainer.data.statistics):
        print(note)
    if run.held_out is not None:
        measure = MEASURES[trainer.data.discrete]
        print(f"{len(run.held_out.episodes)} more episodes are held out to measure imitation ({measure})")
        if run.held_out.floor is None and episodes.source == "local":
            changed = "data options modified the local dataset"
            why = changed if isinstance(run.task, D4RLTask) else "datasets of built-in tasks do not store it"
            print(f"noise variance unknown: {why}")
    elif config.data.held_out:
        print("too few episodes to hold any out: imitation is not measured")
    if trainer.ranks.size > 1:
        print(f"{trainer.ranks.size} processes share every gradient step")
    print(f"run folder: {run.path}")
    card = make_card(run)
    apart = mismatch(card.context, card.context_length, card.rollout, card.rollout_context)
    for note in filter(None, (apart, above_data([card.target_return], card))):
        print(note, file=sys.stderr)
    # Drop lines that a pending evaluation will log again.
    run.metrics = Metrics(run.path, trainer.update - run.owes_evaluation)
    run.metrics.text("config", f"```yaml\n{yaml.safe_dump(to_dict(config), sort_keys=False)}```")


def constant_columns(found: Statistics) -> str | None:
    """A note of the observation columns that are taken as constant, with what they hold; None: no column is."""
    columns = np.flatnonzero(found.constant)
    shown = ", ".join(f"{column} ({found.mean[column]:.9g})" for column in columns[:NAMED])
    more = "" if len(columns) <= NAMED else f" and {len(columns) - NAMED} more"
    whole = "" if found.mean.dtype == np.float64 else "; float32 holds 7 digits: store what moves less as float64"
    return f"observation columns taken as constant: {shown}{more}{whole}" if columns.size else None


def leave(run: Run) -> None:
    """Save a checkpoint before the last gradient step, because of a signal."""
    save(run)
    run.bar.close()
    print(f"stopped at gradient step {run.trainer.update}; --resume continues from here", file=sys.stderr)


def report(run: Run) -> None:
    """Print the scores of the last evaluation and the path of the policy."""
    assert run.last is not None and run.best is not None
    if isinstance(run.last, Score):
        print(f"\n{format_table([run.last])}")
    if run.last.action_error is not None:
        print(f"held-out {run.last.action_error.measure}: {run.last.action_error}")
    if run.best.updates != run.last.updates:
        best = run.best.headline_words if run.task.env_id else f"{run.headline} {run.best.headline_words}"
        print(f"best of the evaluations: {best} after {run.best.updates} gradient steps")
    print(f"policy: {run.path / 'policy'}")
