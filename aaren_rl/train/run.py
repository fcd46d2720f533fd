"""A training run from top to bottom: configuration, data, weights, the gradient steps and what follows each.

All processes of a run go through it together. They differ in three ways, each of them in `ranks`: what the writer alone
does for all (`share`), what every process does, the writer first (`in_turn`), and the gradient steps of `Trainer`.
"""

import dataclasses
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

from ..base.errors import CheckpointError
from ..base.files import is_there, write_text
from ..cli import StopRequest, choose_device, import_registering, progress_bar
from ..envs import D4RLTask
from ..evaluate.scores import MEASURES, Score, above_data, mismatch
from ..evaluate.tables import format_table
from ..policies.folder import CARD, SavedPolicy, load_policy, read_card
from ..policies.names import AUTO, SOURCES, target_words
from ..runs.folder import RunFolder, has_checkpoint, holds_training, read_metrics
from ..runs.metrics import Metrics
from . import settings
from .config import RunConfig
from .data.load import TrainingData, constant_columns, load_data, require_room
from .evaluation import complete, make_card
from .fit import fit_estimators, note_on_fewer_steps
from .options import remarks
from .ranks import Ranks, join_ranks
from .records import LOG_EVERY, Run
from .settings import Request
from .trainer import Trainer

TIMESTEPS = 1000  # of a table of time steps at most, where no episode of the data is longer


def run_training(request: Request) -> int:
    """Train as requested. Returns the exit code.

    Raises the errors of the configuration, the data and the checkpoint; NumericsError if a loss or gradient is not
    finite, SimulationError if an evaluation failed.
    """
    with join_ranks() as ranks, ExitStack() as held:
        plan = ranks.share(lambda: make_plan(request, held))
        data = ranks.in_turn(lambda: read_data(request, plan, ranks))
        run = begin(request, plan, data, ranks)
        with StopRequest() as stop:
            on_writer(run, announce)
            fit(run)
            return train(run, stop, request.save_every)


@dataclass(frozen=True)
class Plan:
    """What the writer decides for all processes."""

    config: RunConfig
    path: Path  # the run folder
    source: str | list[str]  # of the data: that of the configuration, or the version of it that a resumed run has
    start_from: str | None  # initial policy; a run with a checkpoint no longer needs it
    timesteps: int | None  # rows of a table of time steps in a run to resume


def make_plan(request: Request, held: ExitStack) -> Plan:
    """Choose the configuration, and lock the run folder for as long as `held` is open."""
    config = request.config
    for remark in remarks(config, request.typed):
        print(remark, file=sys.stderr)
    path = settings.run_folder(config, request.out)
    folder = held.enter_context(RunFolder(path))
    card = None
    if request.resume:
        config = config_to_resume(folder, request)
        card = read_card(path) if is_there(path / "policy" / CARD) else None
    else:
        folder.require_new()
    source = config.data.source
    if card is not None and isinstance(source, str) and source.startswith((AUTO, "minari")):
        source = card.same_source(source)
    start = None if request.resume and has_checkpoint(path) else config.data.start_from
    return Plan(config, path, source, start, None if card is None else card.model["max_timestep"])


def config_to_resume(folder: RunFolder, request: Request) -> RunConfig:
    """The configuration of a run with more updates or another source if requested.

    Raises CheckpointError if other requested settings differ, unless nothing was saved yet.
    """
    folder.require_run()
    config, path, given = settings.read_config(folder.path / "config.yaml"), folder.path, request.given
    preset = {} if request.preset == "default" else settings.preset_settings(request.preset, request.config.agent)
    if not holds_training(path):
        if differing := "; ".join(settings.differences(config, preset | given)):
            print(f"{path}: no checkpoint was saved yet; starting with {differing}", file=sys.stderr)
        return settings.build_config({**settings.settings_of(config), **preset, **given})
    changed: dict[str, Any] = {}
    if given.get("updates", 0) > config.optimizer.updates:  # resuming may extend a run
        changed["updates"] = given["updates"]
        if note := note_on_fewer_steps(config):
            print(note, file=sys.stderr)
    if "source" in request.typed and given["source"] != config.data.source:  # the checkpoint tells whose
        changed["source"] = given["source"]
        print(f"{path}: the data are {given['source']} from now on, no longer {config.data.source}", file=sys.stderr)
    config = settings.build_config({**settings.settings_of(config), **changed})
    if differing := "; ".join(settings.differences(config, given)):
        raise CheckpointError(f"{path}: the run to resume differs in {differing}")
    if differing := "; ".join(settings.differences(config, preset)):
        print(f"{path}: keeps its settings, not those of --preset {request.preset}: {differing}", file=sys.stderr)
    return config


def read_data(request: Request, plan: Plan, ranks: Ranks) -> tuple[TrainingData, SavedPolicy | None]:
    """The data on the device of this process, and the policy to start from."""
    import_registering(request.register)  # the writer has, for the configuration
    device = ranks.device(choose_device(request.device))
    require_room(plan.config, device)
    if request.threads is not None:
        torch.set_num_threads(request.threads)
    data = load_data(plan.config, plan.source, device, memory_map=request.memory_map, resumed=request.resume)
    return data, None if plan.start_from is None else load_policy(plan.start_from)


def begin(request: Request, plan: Plan, read: tuple[TrainingData, SavedPolicy | None], ranks: Ranks) -> Run:
    """The run before its next gradient step: new weights, those of a policy, or those of its last checkpoint."""
    data, start = read
    task, config = data.task, data.config
    rows = plan.timesteps or min(task.data_horizon, max(TIMESTEPS, data.longest))
    trainer = Trainer(config, data.steps, task.action_dim, task.data_horizon, ranks, max_timestep=rows)
    if start is not None:
        ranks.in_turn(lambda: start_from(trainer, start, config))
    run = Run(data, plan.path, trainer, request.on_log)
    if request.resume and (checkpoint := ranks.share(run.last_checkpoint)) is not None:
        run.restore(checkpoint)
    # After reading the data, so that a mistyped path leaves no run folder, and other data no trace in it.
    asked = replace(config, data=replace(config.data, context=plan.config.data.context))  # "auto" stays
    text = yaml.safe_dump(settings.to_dict(asked), sort_keys=False)
    ranks.share(lambda: write_text(plan.path / "config.yaml", text))
    return run


def start_from(trainer: Trainer, policy: SavedPolicy, config: RunConfig) -> None:
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
    statistics = torch.tensor([card.observation_mean, card.observation_std], dtype=torch.float64, device=data.device)
    data.normalize_by(*statistics.to(data.observation_mean.dtype))
    for model in (trainer.model, trainer.ema):
        model.load_state_dict(policy.model.state_dict())


def fit(run: Run) -> None:
    """Fit the return estimate in steps of their own before the first gradient step of the policy."""
    if run.trainer.update == 0:  # after `start_from`, too: the best return of these data is asked for
        fit_estimators(run.trainer.model, run.trainer.ema, run.data)


def train(run: Run, stop: StopRequest, save_every: int | None) -> int:
    """Train to the last gradient step. A signal saves a checkpoint and stops. Returns the exit code."""
    trainer, ranks, updates = run.trainer, run.trainer.ranks, run.config.optimizer.updates
    hidden = not ranks.is_writer
    run.bar = progress_bar(total=updates, initial=trainer.update, desc=run.task.name, unit="update", disable=hidden)
    try:
        on_writer(run, catch_up)
        while trainer.update < updates:
            with run.watch:
                loss_and_norm = torch.stack(trainer.step())
            if ranks.is_writer:
                run.recent.append(loss_and_norm)
            run.bar.update()
            number = ranks.agree(stop.signal)
            for work in due(run, save_every):
                on_writer(run, work)
            if number is not None and trainer.update < updates:
                on_writer(run, leave)
                return 128 + number
    finally:
        run.close()
    on_writer(run, report)
    return 0


def on_writer(run: Run, work: Callable[[Run], None]) -> None:
    """Run a function that logs, saves or prints on the writer, with the carried states of all processes."""
    run.trainer.gather()
    run.trainer.ranks.share(partial(work, run))


def due(run: Run, save_every: int | None) -> list[Callable[[Run], None]]:
    """The actions due after the current gradient step."""
    if run.is_due(run.config.evaluation.eval_every):
        return [complete]
    works = [(Run.log, run.is_due(LOG_EVERY)), (Run.save, save_every is not None and run.is_due(save_every))]
    return [work for work, is_due in works if is_due]


def announce(run: Run) -> None:
    """Print a summary of the run and open the logs."""
    config, trainer, episodes, card = run.config, run.trainer, run.data.steps.episodes, make_card(run)
    for remark in episodes.notes:
        print(f"{episodes.dataset}: {remark}")
    print(
        f"{config.agent}, {sum(map(torch.numel, trainer.model.parameters())):,} parameters, "
        f"{config.optimizer.updates} gradient steps of about "
        f"{config.data.steps_per_update} steps ({config.data.context} contexts), target return "
        f"{target_words(card.target_return)}"
    )
    print(f"{SOURCES[episodes.source]}: {run.data.drawn}")
    if note := constant_columns(trainer.data.statistics):
        print(note)
    if (held_out := run.data.held_out) is not None:
        measure = MEASURES[trainer.data.discrete]
        print(f"{len(held_out.episodes)} more episodes are held out to measure imitation ({measure})")
        if held_out.floor is None and episodes.source == "local":
            changed = "data options modified the local dataset"
            why = changed if isinstance(run.task, D4RLTask) else "datasets of built-in tasks do not store it"
            print(f"noise variance unknown: {why}")
    elif config.data.held_out:
        print("too few episodes to hold any out: imitation is not measured")
    if trainer.ranks.size > 1:
        print(f"{trainer.ranks.size} processes share every gradient step")
    print(f"run folder: {run.path}")
    apart = mismatch(card.context, card.context_length, card.rollout, card.rollout_context)
    for note in filter(None, (apart, above_data([card.target_return], card))):
        print(note, file=sys.stderr)
    lines = [line for line in read_metrics(run.path) if line["update"] == trainer.update and "train/loss" in line]
    run.logged = {tag: value for line in lines for tag, value in line.items() if tag != "update"}
    # Drop lines that a pending evaluation will log again.
    run.metrics = Metrics(run.path, trainer.update - run.owes_evaluation)
    run.metrics.text("config", f"```yaml\n{yaml.safe_dump(settings.to_dict(config), sort_keys=False)}```")


def catch_up(run: Run) -> None:
    """Make the evaluation that the run owes."""
    if run.owes_evaluation:
        complete(run)


def leave(run: Run) -> None:
    """Save a checkpoint before the last gradient step, because of a signal."""
    run.save()
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
