"""Fits a model's estimates of returns, before its training and apart from it."""

from __future__ import annotations

import math

import torch

from ..agents import ReturnEstimate, expectile_loss
from ..errors import NumericsError
from .contexts.batches import StepData

MOST_UPDATES = 1500  # a few seconds on one core
STEPS = 1280  # an update
LEARNING_RATE = 3e-3  # peak; a cosine to zero
WEIGHT_DECAY = 1e-4


def fit_return(model: ReturnEstimate, data: StepData, expectile: float, seed: int, updates: int = MOST_UPDATES) -> None:
    """Fits an estimate to all steps of a data set, by AdamW; the same weights for the same seed on the same machine.

    The estimate shares nothing with the policy's model, whose training it leaves as it would be without.

    Args:
        model: the estimate, changed in place.
        data: with observations to normalise and scaled returns-to-go.
        expectile: what of the returns-to-go it shall be: BEST, TYPICAL or between.
        seed: of the steps drawn.
        updates: of STEPS steps each.

    Raises:
        NumericsError: the loss is not finite in the end.
    """
    generator = torch.Generator(data.device).manual_seed(seed)
    model.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.5 * (1 + math.cos(math.pi * k / updates)))
    loss = torch.zeros(())
    for _ in range(updates):
        rows = torch.randint(len(data), (STEPS,), generator=generator, device=data.device)
        observed = (data.observations[rows] - data.observation_mean) / data.observation_std
        loss = expectile_loss(model(observed), data.returns_to_go[rows], expectile)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.requires_grad_(False)
    if not math.isfinite(loss.item()):
        raise NumericsError(
            "the data's returns-to-go are too large to learn what can be reached: raise --return-scale, or leave it "
            "out with --no-best-return --no-typical-return"
        )
