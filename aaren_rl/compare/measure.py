"""From a finished run's folder to what a comparison shows of it: scores, learning curve, cost of an action."""

import gc
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..agents.policy.policy import Policy
from ..base.errors import CheckpointError
from ..base.fields import read
from ..base.files import is_there, processor_name, write_json
from ..evaluate.play import EpisodePlan, action_error, score_policy
from ..evaluate.scores import Score
from ..policies.card import PolicyCard, versions
from ..policies.folder import CARD, FOLDERS, load_policy, read_card
from ..policies.held_out import held_out_episodes
from ..policies.table import find_agent
from ..train.folder import is_finished, read_metrics

RESULTS_FORMAT = 4  # of results.json


@dataclass(frozen=True)
class CurvePoint:
    """An evaluation during training: `headline` is the normalized score, or the return if there is none."""

    update: int
    headline: float


@dataclass(frozen=True)
class ActionCost:
    """What one action costs at a step of an episode: the policy alone, one environment, one thread."""

    step: int
    microseconds: float
    state_bytes: int


@dataclass(frozen=True)
class Cell:
    """One training run of a comparison, and everything the report shows of it.

    Attributes:
        env: the task, e.g. "hopper-medium".
        seconds_per_update: median over the run, on `device`: "cpu" or the GPU's name; None: not measured.
        device: where it was trained.
        loss: of the last gradient steps that were logged together, on the agent's own training contexts.
        last: the score after the last gradient step, which is reported; with the held-out action error, where known.
        best: the score of the weights that were best during training, on episodes that did not choose them; None where
            not asked for.
        mean_of_last: mean headline of the last `mean_of` evaluations during training.
        sweep: last scores for several target returns; none of an agent that sees no return-to-go.
        action_cost: at several steps of an episode, in order.
    """

    env: str
    agent: str
    seed: int
    run: str
    parameters: int
    updates: int
    seconds_per_update: float | None
    device: str
    loss: float
    last: Score
    best: Score | None
    mean_of_last: float
    mean_of: int
    curve: list[CurvePoint]
    sweep: list[Score]
    action_cost: list[ActionCost]

    @property
    def best_headline(self) -> float | None:
        """The best weights' normalized score, or the return if there is none; None if they were not scored."""
        return None if self.best is None else self.best.headline


def write_results(
    file: Path, cells: Sequence[Cell], settings: Mapping[str, Any], statistics: Mapping[str, Sequence[Any]]
) -> None:
    """Writes results.json, whole or not at all: cells, how they were made, and statistics (dataclasses) of them."""
    derived = {name: [asdict(item) for item in items] for name, items in statistics.items()}
    runs = [asdict(cell) for cell in cells]
    write_json(file, {"format": RESULTS_FORMAT, "settings": settings, "statistics": derived, "cells": runs})


MEAN_OF = 3  # last evaluations that are averaged
COST_STEPS = (10, 20, 50, 100, 200, 500, 1000)
COST_NEIGHBORS = 4  # on either side of a step, whose median is taken
SWEEP = (0.25, 0.5, 0.75, 1.0, 1.25)  # target returns, in parts of the best return in the training data
UNSEEN = 1_000_000  # from the seeds of a run's evaluations to those of episodes that chose none of its weights
FORMAT = 7  # of a run's comparison.json


@dataclass(frozen=True)
class Evaluation:
    """How the runs of a comparison are scored: the same for all."""

    episodes: int
    seed: int
    sweep_episodes: int
    target_returns: list[float] | None
    best: bool = True  # whether the weights that were best during training are scored, too


def gather(run: Path, how: Evaluation, on_step: Callable[[int, int], None] | None = None) -> Cell:
    """Everything a comparison shows of a run; kept in its comparison.json, and read from there the next time.

    It is measured again with other policies or settings, on another processor, or with other versions of packages.

    Raises CheckpointError where the run has no policy or readable metrics, UsageError where its configuration cannot be
    read, DataError where its data cannot be, or are other ones by now, and SimulationError where the environment fails.
    """
    card, file = read_card(run), run / "comparison.json"
    cards = [run / name / CARD for name in FOLDERS]  # with the SHA-256 of the weights
    asked = {
        "format": FORMAT,
        "how": asdict(how),
        "policies": [hashlib.sha256(card.read_bytes()).hexdigest() for card in cards if is_there(card)],
        **measured_on(),
    }
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        cell = read(Cell, {**kept.pop("cell"), "run": str(run)})
        if kept == asked:
            return cell
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        pass  # not there, or not whole: it is measured again
    cell = _measure(run, card, how, on_step)
    write_json(file, {**asked, "cell": asdict(cell)})
    return cell


def measured_on() -> dict[str, Any]:
    """The processor and the versions of packages, on which times and scores depend."""
    return {"processor": f"{processor_name()}, {os.cpu_count() or 1} cores", "versions": versions()}


def _measure(run: Path, card: PolicyCard, how: Evaluation, on_step: Callable[[int, int], None] | None) -> Cell:
    held_out = held_out_episodes(run, card)  # refused before minutes of scoring, not after
    policy = load_policy(run)
    metrics = read_metrics(run)
    losses = [line["train/loss"] for line in metrics if "train/loss" in line]
    if not losses or not is_finished(metrics, card.updates):
        raise CheckpointError(f"{run / 'metrics.jsonl'}: lines are missing; --resume the run, or else train it again")
    curve = [
        CurvePoint(line["update"], float(line.get("eval/normalized_score", line["eval/mean_return"])))
        for line in metrics
        if "eval/mean_return" in line
    ]
    rates = [line["time/updates_per_second"] for line in metrics if "time/updates_per_second" in line]
    plan = EpisodePlan(card.weights, how.episodes, [card.target_return], how.seed)
    highest = card.data_returns.get("best", math.nan)  # unknown of an imported policy: no sweep
    # Also of negative returns, targets rise to above the best.
    asked = how.target_returns or [highest + (part - 1) * abs(highest) for part in SWEEP]
    sweep = replace(plan, episodes=how.sweep_episodes, target_returns=asked)
    swept = find_agent(card.agent).conditioned and not math.isnan(asked[0])
    last = score_policy(policy, card, plan, on_step=on_step)[0]
    error = None if held_out is None else action_error(policy, held_out, card.action_low, card.action_high)
    best = None
    if how.best:  # on episodes that did not choose them
        chosen = load_policy(run / "policy_best")
        best = score_policy(chosen, chosen.card, replace(plan, seed=plan.seed + UNSEEN), on_step=on_step)[0]
    return Cell(
        env=card.env,
        agent=card.agent,
        seed=card.seed,
        run=str(run),
        parameters=sum(parameter.numel() for parameter in policy.model.parameters()),
        updates=card.updates,
        seconds_per_update=median(1 / rate for rate in rates) if rates else None,
        device=card.versions.get("device", "-"),
        loss=losses[-1],
        last=replace(last, action_error=error),
        best=best,
        mean_of_last=fmean(point.headline for point in curve[-MEAN_OF:]),
        mean_of=len(curve[-MEAN_OF:]),
        curve=curve,
        sweep=score_policy(policy, card, sweep, on_step=on_step) if swept else [],
        action_cost=action_cost(policy, card),
    )


def action_cost(policy: Policy, card: PolicyCard) -> list[ActionCost]:
    """Time of an action, median of a step and its neighbors, and size of the state; observations are random."""
    probes = [step for step in COST_STEPS if step <= card.horizon]
    shape = max(probes, default=0) + COST_NEIGHBORS + 1, 1, policy.model.config.observation_dim
    observations = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    state = policy.initial_state(1, card.target_return)
    reward = np.zeros(1, np.float32)
    times, sizes = [], []
    gc.disable()
    try:
        for observation in observations:
            began = time.perf_counter()
            _, state = policy.act(observation, reward, state)
            times.append((time.perf_counter() - began) * 1e6)
            sizes.append(bytes_kept_alive(state))
    finally:
        gc.enable()
    near = {step: slice(step - 1 - COST_NEIGHBORS, step + COST_NEIGHBORS) for step in probes}
    return [ActionCost(step, median(times[near[step]]), sizes[step - 1]) for step in probes]


def bytes_kept_alive(state: object) -> int:
    """Bytes of the storages that a state's tensors and arrays keep alive, each counted once."""
    leaves = [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor | np.ndarray)]
    storages = [torch.as_tensor(leaf).untyped_storage() for leaf in leaves]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
