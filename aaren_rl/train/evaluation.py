"""Evaluations during training: the policy of the current weights with its card, and its score."""

import copy
import dataclasses
import math
from typing import Any

import numpy as np
import torch

from ..agents.model.decision import DecisionModel
from ..agents.policy.policy import Policy
from ..envs import D4RLTask, Episodes, get_task
from ..envs.local.behavior import mode_returns
from ..evaluate.held_out import action_error
from ..evaluate.play import EpisodePlan, score_policy
from ..evaluate.scores import Score, Unplayed
from ..policies.card import PolicyCard, ReturnBounds, task_fields, versions
from ..policies.folder import make_policy
from .data import TrainingData
from .trainer import Trainer

INTERVALS = 50  # time intervals for which a card has the range of returns-to-go
# Only single episodes have returns-to-go above this quantile, so a model that gets them at every step extrapolates. On
# hopper-medium-replay with the best return as target, one seed of three scored 27 with them and 86 without.
HIGHEST = 0.99


def evaluate(trainer: Trainer, data: TrainingData, episodes: int) -> tuple[PolicyCard, Score | Unplayed]:
    """The card of the EMA weights, and what they score in so many episodes and on the held-out ones."""
    card = make_card(trainer, data)
    policy = acting_policy(trainer.ema, card)
    error = None if data.held_out is None else action_error(policy, data.held_out, card.action_low, card.action_high)
    score: Score | Unplayed = Unplayed(trainer.update, error)
    if card.env_id:
        plan = EpisodePlan("ema", episodes, [card.target_return], data.config.evaluation.eval_seed)
        score = dataclasses.replace(score_policy(policy, card, plan)[0], action_error=error)
    if error is not None:
        fields: Any = error.on_card()
        card = dataclasses.replace(card, **fields)
    return card, score


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
