"""The card of the policy that a training run has come to."""

from __future__ import annotations

import dataclasses

import torch

from ..envs import Episodes, Task
from ..evaluate.scores import ActionError
from ..policies.card import PolicyCard, task_fields, versions
from .config import RunConfig
from .trainer import Trainer


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
        held_out=config.data.held_out,
    )


def error_fields(error: ActionError | None) -> dict[str, float | None]:
    """The part of a card that its error on held-out episodes decides."""
    return {} if error is None else {"action_error": error.mean, "action_error_floor": error.floor}


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
