"""A training run from top to bottom: configuration, data, weights, the gradient steps and what follows each.

All processes of a run go through it together. They differ in three ways, each of them in `ranks`: what the writer alone
does for all (`share`), what every process does, the writer first (`in_turn`), and the gradient steps of `Trainer`.
"""

import copy
import dataclasses
import math
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..agents.model.decision import DecisionModel
from ..agents.policy.policy import Policy
from ..base.errors import CheckpointError, NumericsError, one_line
from ..base.fields import AUTO, read
from ..base.files import core_count, is_there, write_text
from ..cli import StopRequest, choose_device, import_registering, progress_bar
from ..envs.data.episodes import Episodes
from ..envs.local.behavior import mode_returns
from ..envs.tasks.table import D4RLTask, get_task
from ..evaluate.play import EpisodePlan, action_error, score_policy
from ..evaluate.scores import MEASURES, Score, Unplayed, format_table
from ..policies.card import SOURCES, PolicyCard, ReturnBounds, target_words, task_fields, versions
from ..policies.folder import CARD, amend_card, has_policies, load_policy, make_policy, read_card, save_policy
from ..policies.held_out import SAME_MEAN
from .config import Request, RunConfig, build_config, differences, preset_settings, read_config, settings_of, to_yaml
from .data import TrainingData, constant_columns, load_data
from .folder import Checkpoint, Metrics, RunFolder, add_checkpoint, holds_training, is_finished, newest, read_metrics
from .ranks import Ranks, join_ranks
from .trainer import Trainer, keep_freed_memory

LOG_EVERY = 50  # gradient steps
BAR = "{desc}: {percentage:3.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"  # ends at the score
TIMESTEPS = 1000  # of a table of time steps at most, where no episode of the data is longer
INTERVALS = 50  # time intervals for which a card has the range of returns-to-go
# Only single episodes have returns-to-go above this quantile, so a model that gets them at every step extrapolates. On
# hopper-medium-replay with the best return as target, one seed of three scored 27 with them and 86 without.
HIGHEST = 0.99
# What every checkpoint holds, and the types; some hold "tbptt" and "cuda", too.
TENSORS = ("sampler", "recent", "torch", "normalization")
STATES = {"raw": dict, "ema": dict, "optimizer": dict} | dict.fromkeys(TENSORS, Tensor)


def run_training(request: Request) -> int:
    """Train as requested. Returns the exit code.

    Raises the errors of the configuration, the data and the checkpoint; NumericsError if a loss or gradient is not
    finite, SimulationError if an evaluation failed.
    """
    with join_ranks() as ranks, ExitStack() as held:
        plan = ranks.share(lambda: make_plan(request, held))
        data = ranks.in_turn(lambda: read_data(request, plan, ranks))
        run = Run(request, plan, data, ranks)
        with StopRequest() as stop:
            return run.train(stop)


def train(request: Request) -> int:
    """`run_training` in a process of its own, which keeps freed memory."""
    keep_freed_memory()
    return run_training(request)


@dataclass(frozen=True)
class Plan:
    """What the writer decides for all processes."""

    config: RunConfig
    path: Path  # the run folder
    source: str | list[str]  # of the data: that of the configuration, or the version of it that a resumed run has
    timesteps: int | None  # rows of a table of time steps in a run to resume


def make_plan(request: Request, held: ExitStack) -> Plan:
    """Choose the configuration, and lock the run folder for as long as `held` is open."""
    config, card = request.config, None
    folder = held.enter_context(RunFolder(request.folder))
    if request.resume:
        config = config_to_resume(folder, request)
        card = read_card(folder.path) if is_there(folder.path / "policy" / CARD) else None
    else:
        folder.require_new()
    source = config.data.source
    if card is not None and isinstance(source, str) and source.startswith((AUTO, "minari")):
        source = card.same_source(source)
    return Plan(config, folder.path, source, None if card is None else card.model["max_timestep"])


def config_to_resume(folder: RunFolder, request: Request) -> RunConfig:
    """The configuration of a run with more updates or another source if requested.

    Raises CheckpointError if other requested settings differ, unless nothing was saved yet.
    """
    folder.require_run()
    path, preset, given = folder.path, request.preset, request.given
    if preset != "default":
        made = settings_of(request.config)
        given = {**{name: made[name] for name in preset_settings(preset, request.config.agent)}, **given}
    of_run = settings_of(read_config(path / "config.yaml"))
    if not holds_training(path):
        if differing := "; ".join(differences(of_run, given)):
            print(f"{path}: no checkpoint was saved yet; starting with {differing}", file=sys.stderr)
        return build_config({**of_run, **given})
    if request.given.get("updates", 0) > of_run["updates"]:  # resuming may extend a run
        of_run["updates"] = given["updates"]
    if "source" in request.typed and given["source"] != of_run["source"]:  # the checkpoint tells whose
        print(f"{path}: the data are {given['source']} from now on, no longer {of_run['source']}", file=sys.stderr)
        of_run["source"] = given["source"]
    if differing := "; ".join(differences(of_run, given)):
        raise CheckpointError(f"{path}: the run to resume differs in {differing}")
    return build_config(of_run)


def read_data(request: Request, plan: Plan, ranks: Ranks) -> TrainingData:
    """The data on the device of this process."""
    import_registering(request.register)  # the writer has, for the configuration
    device = ranks.device(choose_device(request.device))
    torch.set_num_threads(request.threads or min(torch.get_num_threads(), core_count()))
    return load_data(plan.config, plan.source, device, memory_map=request.memory_map, resumed=request.resume)


class Run:
    """A training run in progress. Only the writer logs, evaluates and saves."""

    def __init__(self, request: Request, plan: Plan, data: TrainingData, ranks: Ranks) -> None:
        """Begin with new weights, those of a policy, or those of the last checkpoint."""
        self.data, self.config, self.task, self.path, self.ranks = data, data.config, data.task, plan.path, ranks
        self.asked = plan.config  # as in config.yaml: the data settle what is left to them
        self.save_every, self.on_log = request.save_every, request.on_log
        self.recent: list[Tensor] = []  # loss and gradient norm of every step since the last log
        self.seconds, self.timed = 0.0, 0  # of the gradient steps since the last log in this process, and their number
        self.logged: dict[str, float] = {}  # the last log, by tag
        self.last: Score | Unplayed | None = None  # the last evaluation
        self.best: Score | Unplayed | None = None  # the evaluation of `policy_best`
        rows = plan.timesteps or min(self.task.data_horizon, max(TIMESTEPS, data.longest))
        sizes = self.task.action_dim, self.task.data_horizon
        self.trainer = Trainer(self.config, data.steps, *sizes, ranks, max_timestep=rows)
        checkpoint = ranks.share(self.last_checkpoint) if request.resume else None
        if checkpoint is not None:
            self.restore(checkpoint)
        elif (name := self.config.data.start_from) is not None:
            ranks.in_turn(lambda: self.trainer.start_from(load_policy(name), name))
        # After reading the data, so that a mistyped path leaves no run folder, and other data no trace in it.
        ranks.share(lambda: write_text(plan.path / "config.yaml", to_yaml(self.asked)))

    def train(self, stop: StopRequest) -> int:
        """Train to the last gradient step. A signal saves a checkpoint and stops. Returns the exit code."""
        trainer = self.trainer
        self.on_writer(self.announce)
        if trainer.update == 0:  # after `start_from`, too: the best return of these data is asked for
            trainer.fit_return_estimate()
        shown: dict[str, Any] = {"total": self.updates, "initial": trainer.update, "desc": self.task.name}
        self.bar = progress_bar(**shown, bar_format=BAR, disable=not self.ranks.is_writer)
        try:
            self.on_writer(lambda: self.complete() if self.owes_evaluation else None)
            while trainer.update < self.updates:
                began = time.perf_counter()
                loss_and_norm = torch.stack(trainer.step())
                self.seconds, self.timed = self.seconds + time.perf_counter() - began, self.timed + 1
                if self.ranks.is_writer:
                    self.recent.append(loss_and_norm)
                self.bar.update()
                number = self.ranks.agree(stop.signal)
                for work in self.due():
                    self.on_writer(work)
                if number is not None and trainer.update < self.updates:
                    self.on_writer(self.leave)
                    return 128 + number
        except BrokenPipeError:  # of the bar, whose reader has gone, as where a connection is lost
            if self.ranks.size == 1:  # others wait for this one elsewhere
                self.on_writer(self.save)
            raise
        finally:
            self.bar.close()
            if self.ranks.is_writer:
                self.metrics.close()
        self.on_writer(self.report)
        return 0

    def on_writer(self, work: Callable[[], None]) -> None:
        """Run a function that logs, saves or prints on the writer, with the carried states of all processes."""
        self.trainer.gather()
        self.ranks.share(work)

    @property
    def updates(self) -> int:
        """Gradient steps in all."""
        return self.config.optimizer.updates

    def is_due(self, every: int) -> bool:
        """Whether an action every so many gradient steps, and after the last, is due now."""
        return self.trainer.update % every == 0 or self.trainer.update == self.updates

    def due(self) -> list[Callable[[], None]]:
        """The actions due after the current gradient step."""
        if self.is_due(self.config.evaluation.eval_every):
            return [self.complete]
        saves = self.save_every is not None and self.is_due(self.save_every)
        return [*([self.log] if self.is_due(LOG_EVERY) else []), *([self.save] if saves else [])]

    @property
    def owes_evaluation(self) -> bool:
        """Whether the run ended between a checkpoint and the evaluation that was due, or lost its line or a policy."""
        update = self.trainer.update
        evaluated = self.last is not None and self.last.updates == update and has_policies(self.path)
        evaluated = evaluated and is_finished(read_metrics(self.path), update)
        return update > 0 and self.is_due(self.config.evaluation.eval_every) and not evaluated

    @property
    def score_name(self) -> str:
        """What policies of this task are compared by."""
        if not self.task.env_id:
            return f"held-out {MEASURES[self.trainer.data.discrete]}"
        return "return" if self.task.reference is None else "normalized score"

    def announce(self) -> None:
        """Print a summary of the run and open the logs."""
        config, trainer, episodes = self.config, self.trainer, self.data.steps.episodes
        card = make_card(trainer, self.data)
        local = episodes.source == "local"
        for remark in () if local else episodes.notes:  # `datasets info` says how a local set was made
            print(f"{episodes.dataset}: {remark}")
        print(
            f"{config.agent}, {sum(map(torch.numel, trainer.model.parameters())):,} parameters, "
            f"{self.updates} gradient steps of about "
            f"{config.data.steps_per_update} steps ({config.data.context} contexts), target return "
            f"{target_words(card.target_return)}"
        )
        print(f"{'data' if local else SOURCES[episodes.source]}: {self.data.drawn}")
        if note := constant_columns(trainer.data.statistics):
            print(note)
        if self.ranks.size > 1:
            print(f"{self.ranks.size} processes share every gradient step")
        print(f"run folder: {self.path}")
        apart = card.mismatch(card.rollout, card.rollout_context)
        # Asked for by the user: a task's own target, which is above most data, needs no note.
        asked = [] if card.target_return in self.task.target_returns[:1] else [card.target_return]
        for note in filter(None, (apart, card.above_data(asked))):
            print(note, file=sys.stderr)
        lines = [line for line in read_metrics(self.path) if line["update"] == trainer.update and "train/loss" in line]
        self.logged = {tag: value for line in lines for tag, value in line.items() if tag != "update"}
        # Drop lines that a pending evaluation will log again.
        self.metrics = Metrics(self.path, trainer.update - self.owes_evaluation)

    def complete(self) -> None:
        """Save, log if due, evaluate and save the scores. A failed evaluation loses no gradient steps."""
        self.save()
        if self.is_due(LOG_EVERY):
            self.log()
        self.show(", evaluating")
        self.evaluate()
        self.show()
        self.save()

    def evaluate(self) -> None:
        """Evaluate the EMA weights. Saves the policy, and the best one so far as `policy_best`."""
        how, trainer, data, best = self.config.evaluation, self.trainer, self.data, self.path / "policy_best"
        if at_end := trainer.update == self.updates:
            data.returns.update(behavior_mode(data.steps.episodes, how.eval_seed))
        card, error = make_card(trainer, data), None
        policy = acting_policy(trainer.ema, card)
        if data.held_out is not None:
            error = action_error(policy, data.held_out, card.action_low, card.action_high)
        self.last = Unplayed(trainer.update, error)
        if card.env_id:
            episodes = how.final_episodes if at_end else how.eval_episodes
            plan = EpisodePlan("ema", episodes, [card.target_return], how.eval_seed)
            self.last = dataclasses.replace(score_policy(policy, card, plan)[0], action_error=error)
        if error is not None:
            card = dataclasses.replace(card, **error.on_card())
        states = {"ema": trainer.ema.state_dict(), "raw": trainer.model.state_dict()}
        save_policy(self.path / "policy", card, states)
        lost = not is_there(best / CARD)  # a user may have deleted it
        if self.best is None or self.last.headline > self.best.headline or lost:
            self.best = self.last
            save_policy(best, card, states)
        elif at_end:  # it was saved before the return of the behavior policy was known
            amend_card(best, data_returns=data.returns)
        told = [] if error is None else [f"held-out {error.short()}"]
        if isinstance(self.last, Score):
            told.insert(0, f"{self.score_name} {self.last.headline_words}")
        self.bar.write(f"gradient step {trainer.update}: {', '.join(told) or 'saved'}")
        # At the end: a callback that stops at this score finds its policy saved.
        self.tell(self.last.scalars())

    def log(self) -> None:
        """Log the means since the last log, or that one again, and show them on the progress bar."""
        if self.recent:
            began = time.perf_counter()
            loss, norm = self.finite_losses().mean(0).tolist()  # waits for the GPU
            self.seconds += time.perf_counter() - began
            self.logged = {
                "train/loss": loss,
                "train/grad_norm": norm,
                "train/learning_rate": self.trainer.optimizers.learning_rate,
                **self.trainer.recurrence(),
                # None if an evaluation is pending
                **({"time/updates_per_second": self.timed / self.seconds} if self.timed else {}),
            }
            self.recent, self.seconds, self.timed = [], 0.0, 0
        if self.logged:  # of an evaluation that is made again, unless its line was deleted
            self.tell(self.logged)
        self.show()

    def tell(self, values: dict[str, float]) -> None:
        """Log values, tag -> value, at the current gradient step."""
        self.metrics.log(self.trainer.update, values)
        if self.on_log is not None:
            self.on_log(self.trainer.update, values)

    def show(self, doing: str = "") -> None:
        """Show the last loss and score on the bar: at once on a terminal, with its next line in a log file."""
        loss = f"{self.logged['train/loss']:.4f}" if self.logged else "-"
        score = (self.last and self.last.headline_words) or "-"
        short = self.score_name.removeprefix("normalized ")  # the bar fits in 80 columns
        self.bar.set_postfix_str(f"loss {loss}, {short} {score}{doing}", refresh=sys.stderr.isatty())

    def save(self) -> None:
        """Add a checkpoint. Raises NumericsError if a loss since the last log is not finite."""
        recent = self.finite_losses()
        scores = {"last": self.last, "best": self.best}
        progress: dict[str, Any] = {name: score and dataclasses.asdict(score) for name, score in scores.items()}
        progress |= {"data_sha256": self.data.sha256, "data": self.identity}
        progress["settings"] = settings_of(self.asked)
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
        saved = "nothing was saved yet"
        if holds_training(self.path):
            saved = f"the last good checkpoint is kept in {self.path / 'checkpoints'}"
        rate = "" if update == 1 else "lower --learning-rate or "  # no step with this rate was taken before the first
        raise NumericsError(
            f"loss or gradient is not finite at gradient step {update}; {saved}; {rate}use --precision float32"
        )

    @property
    def identity(self) -> list[float]:
        """What tells the data from others that have other digits: the number of steps, and the mean return."""
        return [len(self.data.steps), self.data.returns["mean"]]

    def last_checkpoint(self) -> Checkpoint | None:
        """The last checkpoint of a run, None before its first.

        Raises CheckpointError if the run was trained on other data or with other settings until then.
        """
        checkpoint = newest(self.path / "checkpoints", STATES)
        if checkpoint is None:
            print("no checkpoint yet: starting over", file=sys.stderr)
            return None
        episodes, then = self.data.steps.episodes, checkpoint.progress
        # Local sets that other processors made may differ by rounding.
        alike = np.allclose(self.identity, then.get("data") or math.nan, rtol=SAME_MEAN, atol=0)
        if then.get("data_sha256") != self.data.sha256 and not (alike and episodes.source == "local"):
            raise CheckpointError(
                f"{self.path}: {episodes.dataset} has changed since the run was started: steps and mean return are "
                f"{self.identity}, then {then.get('data')}; resume with the data of the run, or start a new one with "
                "another --out"
            )
        now = settings_of(self.asked)
        settings = {**now, **(then.get("settings") or {}), "updates": now["updates"], "source": now["source"]}
        if changed := "; ".join(differences(settings, now)):
            raise CheckpointError(
                f"{self.path / 'config.yaml'}: has changed since the checkpoint: {changed}; undo that"
            )
        return checkpoint

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint. Raises CheckpointError if it does not fit."""
        device = self.trainer.data.device
        kind: type[Score | Unplayed] = Score if self.task.env_id else Unplayed
        try:
            self.trainer.restore(checkpoint.number, checkpoint.states)
            self.recent = list(checkpoint.states["recent"].to(device).view(-1, 2).unbind())
            scores = [checkpoint.progress.get(name) for name in ("last", "best")]
            self.last, self.best = (None if tree is None else read(kind, tree) for tree in scores)
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise CheckpointError(
                f"{checkpoint.file}: does not fit this run on {device} ({one_line(f'{type(error).__name__}: {error}')})"
                "; resume where it was trained, or start again with another --out"
            ) from error

    def leave(self) -> None:
        """Save a checkpoint before the last gradient step, because of a signal."""
        self.save()
        self.bar.close()
        print(f"stopped at gradient step {self.trainer.update}; --resume continues from here", file=sys.stderr)

    def report(self) -> None:
        """Print the scores of the last evaluation and the path of the policy."""
        assert self.last is not None and self.best is not None
        if isinstance(self.last, Score):
            print(f"\n{format_table([self.last])}")
        if self.last.action_error is not None:
            print(f"held-out {self.last.action_error.measure}: {self.last.action_error}")
        if self.best.updates != self.last.updates:
            best = self.best.headline_words if self.task.env_id else f"{self.score_name} {self.best.headline_words}"
            print(f"best of the evaluations: {best} after {self.best.updates} gradient steps")
        print(f"policy: {self.path / 'policy'}")


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


def make_card(trainer: Trainer, data: TrainingData) -> PolicyCard:
    """The card of the current policy of a run."""
    config, episodes, steps = data.config, data.steps.episodes, trainer.data
    target, drawn = config.evaluation.target_return, config.data.draws
    device = torch.cuda.get_device_name(steps.device) if steps.device.type == "cuda" else steps.device.type
    return PolicyCard(
        **task_fields(data.task),
        agent=config.agent,
        dataset=episodes.dataset,
        source=episodes.source,
        source_path=episodes.path,
        context=config.data.context,
        context_length=config.data.context_length,
        draws=drawn,
        draw_share=config.data.draw_share if drawn != "uniform" else 1.0,
        rollout=config.evaluation.rollout,
        rollout_context=config.evaluation.rollout_context,
        target_return=data.task.target_returns[0] if target is None else target,
        return_scale=steps.return_scale,
        observation_mean=steps.observation_mean.tolist(),
        observation_std=steps.observation_std.tolist(),
        model=dataclasses.asdict(trainer.model.config),
        updates=trainer.update,
        seed=config.seed,
        weights="ema",
        versions={**versions(), "device": device, "precision": str(trainer.dtype).removeprefix("torch.")},
        held_out=config.data.held_out,
        data_returns=dict(data.returns),
        data_sha256=data.sha256,
        exact=steps.scaling.origin is not None,
        return_range=return_bounds(episodes) if trainer.model.config.return_conditioned else None,
    )


def return_bounds(episodes: Episodes) -> ReturnBounds:
    """The range of returns-to-go in at most 50 time intervals: from the smallest to the 99th percentile."""
    every = math.ceil(episodes.lengths.max() / INTERVALS)
    place, to_go = episodes.timesteps() // every, episodes.returns_to_go().astype(np.float64)
    intervals = [to_go[place == k] for k in range(place.max() + 1)]
    high = [float(np.quantile(interval, HIGHEST)) for interval in intervals]
    return ReturnBounds(every, [float(interval.min()) for interval in intervals], high)


def behavior_mode(episodes: Episodes, seed: int) -> dict[str, float]:
    """The "mode" of `PolicyCard.data_returns`: the mean return of the deterministic behavior policy.

    It starts from the first states of an evaluation. Empty if the package has no such policy.

    Raises SimulationError if the environment fails.
    """
    task = get_task(episodes.dataset) if episodes.source == "local" else None
    returns = mode_returns(task, seed=seed) if isinstance(task, D4RLTask) else None
    return {} if returns is None else {"mode": float(returns.mean())}
