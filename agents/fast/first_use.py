"""A step recorded as a CUDA graph against the plain formula, the first time that one is to be recorded on a device."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from ..kernels.cuda_graphs import call_aside, capture
from ..kernels.first_use import is_right
from ..model.config import ModelConfig
from ..model.decision import DecisionModel

STEPS = 300
Recorded = Callable[[], None]


def captures_are_right(device: torch.device) -> bool:
    """Whether a recorded step gives what the plain formula gives; checked once, by a training step's gradients."""
    return is_right("a step recorded as a CUDA graph", device, captured_difference, "steps are launched one by one")


def record(function: Recorded) -> Recorded:
    """What replays a function of no arguments as a CUDA graph."""
    for _ in range(2):
        call_aside(function)
    return capture(function)[0].replay


@torch.enable_grad()
def captured_difference(device: torch.device, record: Callable[[Recorded], Recorded] = record) -> float:
    """Of the gradients of a small model, recorded with one batch and replayed with another, from those in float64."""
    with torch.random.fork_rng(devices=[]):  # a run's weights are drawn by it
        torch.manual_seed(0)
        model = DecisionModel(ModelConfig(3, 2, width=32, layers=2, heads=2, dropout=0.0))
    exact, model = copy.deepcopy(model).double(), model.to(device)
    generator = torch.Generator().manual_seed(0)
    places = [torch.zeros(shape, device=device) for shape in ((1, STEPS, 3), (1, STEPS, 2), (1, STEPS))]
    starts = torch.rand(1, STEPS, generator=generator) < 0.02

    def gradients(model: DecisionModel, batch: list[Tensor]) -> list[Tensor]:
        times = torch.arange(STEPS, device=batch[0].device).unsqueeze(0)
        actions, _ = model(*batch, times, starts=starts.to(batch[0].device))
        loss = (actions - batch[1]).square().mean()
        parameters = [p for p in model.parameters() if p.requires_grad]
        return list(torch.autograd.grad(loss, parameters))

    found = [torch.zeros_like(p) for p in model.parameters() if p.requires_grad]

    def step() -> None:
        for place, gradient in zip(found, gradients(model, places), strict=True):
            place.copy_(gradient)

    with torch.autocast(device.type, enabled=False):
        replay = record(step)
        batch = [torch.randn(place.shape, generator=generator) for place in places]
        for place, values in zip(places, batch, strict=True):
            place.copy_(values)
        replay()
        wanted = gradients(exact, [values.double() for values in batch])
    largest = max(float(true.abs().max()) for true in wanted)
    pairs = zip(found, wanted, strict=True)
    return max(float((mine.cpu() - true).abs().max()) for mine, true in pairs) / largest
