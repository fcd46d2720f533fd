"""What is fitted to the whole dataset before the first gradient step: the return estimator."""

import math

import torch

from ..agents import DecisionModel, ReturnEstimate, expectile_loss
from ..agents.model.decision import MAX_EXPECTILE
from ..base.errors import NumericsError
from .config import RunConfig
from .data.batches import StepData
from .data.load import TrainingData

RETURN_UPDATES = 1500  # a few seconds on one core
RETURN_RECIPE = (1280, 3e-3, 1e-4)  # steps per gradient step, peak rate with cosine decay to zero, weight decay


def fit_estimators(model: DecisionModel, ema: DecisionModel, data: TrainingData) -> None:
    """Fit the return estimator of a model, and copy it to its EMA. Raises NumericsError if a loss is not finite."""
    if model.max_return_estimate is None or ema.max_return_estimate is None:
        return
    seed, updates = data.config.seed, data.config.optimizer.updates
    # At most as many gradient steps as the policy.
    fit_return(model.max_return_estimate, data.steps, MAX_EXPECTILE, seed, min(RETURN_UPDATES, updates))
    ema.max_return_estimate.load_state_dict(model.max_return_estimate.state_dict())


def note_on_fewer_steps(config: RunConfig) -> str | None:
    """A note if a run of so few updates fits its return estimate in fewer steps than a longer one would, or None."""
    updates = config.optimizer.updates
    if updates >= RETURN_UPDATES or not config.model(1, 1, 1).max_return_estimate:
        return None
    return (
        f"note: the return estimate of this run, for auto, was fitted for at most {updates} steps, not "
        f"{RETURN_UPDATES:,}; a new run of so many updates fits it better"
    )


def fit_return(
    model: ReturnEstimate, data: StepData, expectile: float, seed: int, updates: int = RETURN_UPDATES
) -> None:
    """Fit an estimator of an expectile of the returns-to-go, such as MAX_EXPECTILE, to a whole dataset with AdamW.

    Raises NumericsError if the final loss is not finite.
    """
    count, rate, decay = RETURN_RECIPE
    generator = torch.Generator(data.device).manual_seed(seed)
    model.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.5 * (1 + math.cos(math.pi * k / updates)))
    loss = torch.zeros(())
    for _ in range(updates):
        rows = torch.randint(len(data), (count,), generator=generator, device=data.device)
        loss = expectile_loss(model(data.observed(rows)), data.returns_to_go[rows], expectile)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.requires_grad_(False)
    if not loss.isfinite():
        raise NumericsError(
            "returns-to-go of the dataset are too large for the return estimator: raise --return-scale, or turn it "
            "off with --no-max-return-estimate"
        )
