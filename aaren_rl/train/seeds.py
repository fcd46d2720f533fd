"""Several seeds of one training at once: `aaren-rl train --seeds 0 1 2`.

Every seed has its run, as from a training alone, and what follows a gradient step (`run.due`) is done for one after
another. Their gradient steps are taken together by a `Group`. A seed that fails is left at its last checkpoint, and the
others go on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from statistics import fmean

import torch
from torch import Tensor

from ..agents import MIXERS
from ..base.entry import explain
from ..base.errors import AarenRLError, UsageError
from ..cli import StopRequest, launched, progress_bar
from ..evaluate.scores import Score
from ..evaluate.tables import format_overview
from ..runs.folder import holds_training
from .config import RunConfig
from .group import Group
from .ranks import ALONE
from .records import Run
from .run import announce, begin, catch_up, due, fit, leave, make_plan, on_writer, read_data
from .settings import Request, run_folder


def train_seeds(request: Request, seeds: Sequence[int]) -> int:
    """Train as requested, with each of these seeds. Returns the exit code, that of the first seed that failed.

    Raises the errors of `run_training` before any gradient step, UsageError where these seeds cannot train together.
    """
    _check(request, seeds)
    with ExitStack() as held:
        runs: list[Run] = []
        for seed in seeds:
            with _heard(not runs):
                runs.append(_begin(replace(request, typed={**request.typed, "seed": seed}), held))
        with StopRequest() as stop:
            return Seeds(runs).train(stop, request.save_every)


def _check(request: Request, seeds: Sequence[int]) -> None:
    if "seed" in request.typed:
        raise UsageError("--seed, --seeds: give one of them")
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"--seeds {' '.join(map(str, seeds))}: a seed is given twice")
    if launched() > 1:
        raise UsageError("--seeds: seeds train together in one process; start it without torchrun")
    if why := why_apart(request.config):
        raise UsageError(f"--seeds: {why}")


def why_apart(config: RunConfig) -> str | None:
    """Why seeds of this configuration do not train together; None: they do."""
    alone = "train one seed after another: aaren-rl compare or aaren-rl sweep"
    if config.network.dropout:
        return f"seeds that train together have no dropout; give --dropout 0, or {alone}"
    if not MIXERS[config.mixer].stackable:
        return f"seeds of {config.agent} do not train together; {alone}"
    return None


def _begin(request: Request, held: ExitStack) -> Run:
    """The run of one seed. A seed without a run begins, also where others resume."""
    folder = run_folder(request.config, request.out)
    there = (folder / "config.yaml").exists() or holds_training(folder)
    request = replace(request, resume=request.resume and there)
    plan = make_plan(request, held)
    return begin(request, plan, read_data(request, plan, ALONE), ALONE)


@contextmanager
def _heard(first: bool) -> Iterator[None]:
    """What is printed of the first seed holds for all: the settings and the data are the same."""
    with ExitStack() as quiet:
        if not first:
            quiet.enter_context(redirect_stdout(StringIO()))
            quiet.enter_context(redirect_stderr(StringIO()))
        yield


def _name(run: Run) -> str:
    return f"seed {run.config.seed}"


class Seeds:
    """The runs of several seeds, and the exit codes of those that failed."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs, self.codes = list(runs), dict[int, int]()  # by seed
        self._updates = runs[0].config.optimizer.updates

    def train(self, stop: StopRequest, save_every: int | None) -> int:
        """Train all to the last gradient step. A signal saves their checkpoints and stops. Returns the exit code."""
        self._prepare()
        together: list[Run] = []
        step: Callable[[], Sequence[Tensor]] = list
        try:
            for run in self.runs:
                self._attempt(run, catch_up)
            while behind := self._behind():
                if behind != together:
                    together, step = behind, _stepper(behind)
                began = time.perf_counter()
                found = step()
                seconds = time.perf_counter() - began
                for run, loss_and_norm in zip(together, found, strict=True):
                    run.recent.append(loss_and_norm)
                    run.watch.seconds += seconds
                self.bar.update(min(run.trainer.update for run in together) - self.bar.n)
                for run in together:
                    _ = all(self._attempt(run, work) for work in due(run, save_every))
                if stop.signal is not None and (going := self._going()):
                    for run in going:
                        self._attempt(run, leave)
                    return stop.exit_code
        finally:
            for run in self.runs:
                run.close()
        self._report()
        return next(iter(self.codes.values()), 0)

    def _prepare(self) -> None:
        """Announce every run, the first in full, and fit the estimators of those that begin."""
        for run in self.runs:
            with _heard(run is self.runs[0]):
                on_writer(run, announce)
            if run is not self.runs[0]:
                print(f"run folder: {run.path}")
        for run in self.runs:
            fit(run)
        name, first_update = self.runs[0].task.name, min(run.trainer.update for run in self.runs)
        described = f"{name}, {len(self.runs)} seeds"
        self.bar = progress_bar(total=self._updates, initial=first_update, desc=described, unit="update")
        for run in self.runs:
            run.bar, run.title = self.bar, f"{_name(run)}, "

    def _going(self) -> list[Run]:
        return [run for run in self.runs if run.config.seed not in self.codes and run.trainer.update < self._updates]

    def _behind(self) -> list[Run]:
        """Those that have taken the fewest gradient steps: after a kill, some may have saved more than others."""
        going = self._going()
        fewest = min((run.trainer.update for run in going), default=0)
        return [run for run in going if run.trainer.update == fewest]

    def _attempt(self, run: Run, work: Callable[[Run], None]) -> bool:
        """Do it, unless the run has failed; whether it has not."""
        if run.config.seed in self.codes:
            return False
        try:
            on_writer(run, work)
        except (AarenRLError, FloatingPointError, OSError) as error:
            message, self.codes[run.config.seed] = explain(error)
            others = "; the other seeds go on" if self._going() else ""
            self.bar.write(f"error: {_name(run)}: {message}{others}", file=sys.stderr)
            return False
        return True

    def _report(self) -> None:
        scores = [(_name(run), run.last) for run in self.runs if run.config.seed not in self.codes]
        played = [(name, score) for name, score in scores if isinstance(score, Score)]
        if played:
            print(f"\n{format_overview(played)}")
        headlines = [score.headline for _, score in played]
        if len(headlines) > 1:
            mean, ends = fmean(headlines), f"{min(headlines):.1f} to {max(headlines):.1f}"
            print(f"mean of {len(headlines)} seeds: {mean:.1f} ({ends})")
        for run in self.runs:
            if run.last is not None and run.last.action_error is not None:
                print(f"{_name(run)}: held-out {run.last.action_error.short()}")
            if run.config.seed not in self.codes:
                print(f"policy: {run.path / 'policy'}")


def _stepper(runs: Sequence[Run]) -> Callable[[], Sequence[Tensor]]:
    """What takes a gradient step of all; loss and gradient norm, (2,), of each."""
    trainers = [run.trainer for run in runs]
    if len(trainers) == 1:
        trainers[0].start_over()
        return lambda: [torch.stack(trainers[0].step())]
    group = Group(trainers)
    return lambda: torch.stack(group.step(), 1).unbind()
