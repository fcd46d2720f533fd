"""What is fitted to the whole dataset before the first gradient step: the return estimators."""

import math

import torch

from ..agents import DecisionModel, ReturnEstimate, expectile_loss
from ..agents.model.decision import MAX_EXPECTILE, MEAN_EXPECTILE
from ..base.errors import NumericsError
from .config import RunConfig
from .data.batches import StepData
from .data.load import TrainingData

RETURN_UPDATES = 1500  # a few seconds on one core
RETURN_RECIPE = (1280, 3e-3, 1e-4)  # steps per gradient step, peak rate with cosine decay to zero, weight decay


def fit_estimators(model: DecisionModel, ema: DecisionModel, data: TrainingData) -> None:
    """Fit the return estimators of a model, and copy them to its EMA. Raises NumericsError if a loss is not finite."""
    seed, updates = data.config.seed, data.config.optimizer.updates
    for name, expectile in (("max_return_estimate", MAX_EXPECTILE), ("mean_return_estimate", MEAN_EXPECTILE)):
        if (estimate := getattr(model, name)) is not None:  # at most as many gradient steps as the policy
            fit_return(estimate, data.steps, expectile, seed, min(RETURN_UPDATES, updates))
            getattr(ema, name).load_state_dict(estimate.state_dict())


def notes_on_fewer_steps(config: RunConfig) -> list[str]:
    """Notes on what a run of so few updates has fitted in fewer steps than a longer one would have."""
    fitted, network = config.optimizer.updates, config.model(1, 1, 1)
    notes = []
    if fitted < RETURN_UPDATES and (network.max_return_estimate or network.mean_return_estimate):
        notes.append(
            f"note: the return estimates of this run, for auto and --guidance, were fitted for at most {fitted} "
            f"steps, not {RETURN_UPDATES:,}; a new run of so many updates fits them better"
        )
    return notes


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
            "returns-to-go of the dataset are too large for the return estimators: raise --return-scale, or turn "
            "them off with --no-max-return-estimate --no-mean-return-estimate"
        )
