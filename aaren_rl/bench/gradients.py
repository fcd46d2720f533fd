"""What the benchmark of training checks before it times: a loss's gradients against the float64 reference."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..agents import DecisionModel
from ..agents.model.decision import ACTED_ON
from ..envs import get_task
from ..train.acceleration import autocast
from ..train.config import RunConfig
from ..train.contexts.batches import Batch, StepData, part
from ..train.trainer import Trainer, masked_mse
from .harness import require

TASK = get_task("hopper-medium")
TOLERANCES = {"float32": 1e-4, "bfloat16": 5e-2}  # of a gradient, relative to the largest of its parameter's
CHECKED_ROWS = 4


def check_gradients(config: RunConfig, data: StepData, precisions: Iterable[str]) -> dict[str, float]:
    """By precision, the largest difference of a gradient from that of the tokens taken one by one in float64.

    Without dropout; relative to the parameter's largest gradient. NumericsError where it is above its tolerance.
    """
    config = replace(config, network=replace(config.network, dropout=0.0))
    trainer = Trainer(config, data, TASK.action_dim, TASK.horizon)
    rows = config.data.steps_per_update // config.data.context_length
    batch = part(trainer.sampler.sample(trainer.generator), 0, max(1, rows // CHECKED_ROWS))
    fast, slow = trainer.model.train(), copy.deepcopy(trainer.model).double().eval()
    exact = Batch(**{k: v.double() if v is not None and v.is_floating_point() else v for k, v in vars(batch).items()})
    errors = (_token_by_token(slow, exact) - exact.actions).square().mean(-1)
    (errors[exact.mask].sum() / exact.mask.sum()).backward()
    found = {}
    for precision in precisions:
        fast.zero_grad()
        with autocast(replace(config.optimizer, precision=precision), data.device):
            predicted = _forward(fast, batch)
        masked_mse(predicted, batch.actions, batch.mask).backward()
        found[precision] = difference = _difference(fast, slow)
        require(f"gradients in {precision} differ from the float64 reference", difference, TOLERANCES[precision])
    return found


def _difference(fast: DecisionModel, slow: DecisionModel) -> float:
    difference, floor = 0.0, max(float(p.grad.abs().max()) for p in slow.parameters() if p.grad is not None) * 1e-3
    for mine, true in zip(fast.parameters(), slow.parameters(), strict=True):
        assert (mine.grad is None) == (true.grad is None)
        if mine.grad is not None and true.grad is not None:
            scale = max(float(true.grad.abs().max()), floor)  # some gradients are zero but for rounding
            difference = max(difference, float((mine.grad.double() - true.grad).abs().max()) / scale)
    return difference


def _forward(model: nn.Module, batch: Batch) -> Tensor:
    inputs = batch.observations, batch.actions, batch.returns_to_go, batch.timesteps
    actions: Tensor = model(*inputs, starts=batch.starts)[0]
    return actions


def _token_by_token(model: DecisionModel, batch: Batch) -> Tensor:
    """The model's actions with the trunk stepped through the tokens, as the paper's RNN cell does."""
    seen: list[Tensor] = []
    handle = model.trunk.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    _forward(model, batch)
    handle.remove()
    state, outputs = model.trunk.initial_state(len(batch.mask)), []
    for token in seen[0].unbind(1):
        x, state = model.trunk.step(token, state)
        outputs.append(x)
    acted_on = ACTED_ON[model.config.tokens_per_step]
    return torch.tanh(model.head(torch.stack(outputs[acted_on], 1)))
