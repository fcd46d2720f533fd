"""AdamW, or Muon for the trunk's matrices and AdamW for the rest, under one schedule.

Muon is momentum whose matrices are orthogonalized before they become a step (Jordan et al. 2024).
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..agents import DecisionModel
from .config import OptimizerConfig

# Coefficients of the quintic iteration that brings singular values near 1 in the fewest products (Jordan et al. 2024).
QUINTIC = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
MOMENTUM = 0.95
AS_ADAMW = 0.2  # root mean square of AdamW's steps at a learning rate of 1 (Liu et al. 2025, section 2.2)


def schedule(update: int, config: OptimizerConfig) -> float:
    """The share of the peak learning rate at update `update`, from 0: a linear warm-up, then constant or a cosine."""
    warm = min(1.0, (update + 1) / max(1, config.warmup_updates))
    return warm * (0.5 * (1 + math.cos(math.pi * update / config.updates)) if config.lr_schedule == "cosine" else 1.0)


class Rates(NamedTuple):
    """How far one update goes: numbers, or tensors () on the device where nothing may wait for it."""

    adamw: float | Tensor  # its learning rate
    muon: float | Tensor  # its learning rate
    ema: float | Tensor  # weight of the new weights in the exponential moving average (EMA)


def rates_at(update: int, config: OptimizerConfig) -> Rates:
    """Those of update number `update`, from 0."""
    share = schedule(update, config)
    # The decay rises from 0.1, or the first weights would stay in the EMA for a thousand updates.
    decay = min(config.ema_decay, (1 + update) / (10 + update))
    return Rates(config.learning_rate * share, config.muon_learning_rate * share, 1 - decay)


class Optimizers:
    """The optimizers of one model's parameters; Muon computes in `dtype`."""

    def __init__(self, model: DecisionModel, config: OptimizerConfig, dtype: torch.dtype) -> None:
        layers = [module for module in model.trunk.modules() if isinstance(module, nn.Linear)]
        matrices = [layer.weight for layer in layers if layer.weight.requires_grad and config.optimizer == "muon"]
        taken = {id(parameter) for parameter in matrices}
        rest = [parameter for parameter in model.parameters() if id(parameter) not in taken]
        self.adamw = torch.optim.AdamW(rest, weight_decay=config.weight_decay, fused=True)
        self.muon = Muon(matrices, config.weight_decay, dtype) if matrices else None

    @property
    def learning_rate(self) -> float:
        """AdamW's, of the last step."""
        return float(self.adamw.param_groups[0]["lr"])

    def step(self, rates: Rates, bad: Tensor | None = None) -> None:
        """Steps every parameter; none where `bad`, a float32 () on the device, is 1."""
        self.adamw.found_inf = bad  # type: ignore[attr-defined]  # of gradient scaling: a step that is not taken
        for group in self.adamw.param_groups:
            group["lr"] = rates.adamw
            if isinstance(rates.adamw, Tensor) and rates.adamw.is_cuda:
                group["capturable"] = True
        self.adamw.step()
        if self.muon is not None:
            self.muon.step(rates.muon, bad)

    def state_dict(self) -> dict[str, Any]:
        """AdamW's, its learning rate a number, and Muon's momenta under its name."""
        states = self.adamw.state_dict()
        groups = [group | {"lr": float(group["lr"])} for group in states["param_groups"]]
        return states | {"param_groups": groups} | ({} if self.muon is None else {"muon": self.muon.momenta})

    def load_state_dict(self, states: dict[str, Any]) -> None:
        """The inverse of `state_dict`; raises ValueError or KeyError where they are of other optimizers or weights."""
        states = dict(states)
        if self.muon is not None:
            for mine, given in zip(self.muon.momenta, states.pop("muon"), strict=True):
                _check_shape(mine, given)
                mine.copy_(given)
        self.adamw.load_state_dict(states)
        for parameter, state in self.adamw.state.items():  # which takes any, and fails at its next step
            for moment in ("exp_avg", "exp_avg_sq"):
                _check_shape(parameter, state[moment])


def _check_shape(parameter: Tensor, moment: Tensor) -> None:
    if moment.shape != parameter.shape:
        raise ValueError("moments of other shapes than the weights")


def orthogonalize(matrices: Tensor) -> Tensor:
    """U V^T of every matrix U S V^T, roughly: singular values between 0.6 and 1.4, by a Newton-Schulz iteration.

    An iteration is X <- Q X with Q = a I + b G + c G^2 and G = X X^T. Where X is wide, a few are made on G alone (the
    next is Q G Q) and their product multiplies X: 0.7 of the time of 128 x 512. Not all of them: the smallest singular
    values of G are rounding, which the iterations would raise.

    Takes and returns (n, R, C), R <= C, in the type to compute in, bfloat16 where the processor has it. Zeros stay.
    """
    a, _, _ = QUINTIC
    x: Tensor = matrices / matrices.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    if x.shape[-1] >= 2 * x.shape[-2]:
        for iterations in (2, ITERATIONS - 2):
            x = _iterated(x @ x.mT, iterations) @ x
    else:
        for _ in range(ITERATIONS):
            x = torch.baddbmm(x, _without_a(x @ x.mT), x, beta=a)
    return x


def _without_a(gram: Tensor) -> Tensor:
    # Q - a I: Q itself has fewer digits in bfloat16.
    _, b, c = QUINTIC
    return torch.baddbmm(gram, gram, gram, beta=b, alpha=c)


def _iterated(gram: Tensor, iterations: int) -> Tensor:
    a, _, _ = QUINTIC
    rest = _without_a(gram)
    product = rest.clone()
    product.diagonal(dim1=-2, dim2=-1).add_(a)
    for _ in range(iterations - 1):
        gram = torch.baddbmm(gram, rest, gram, beta=a)
        gram = torch.baddbmm(gram, gram, rest, beta=a)
        rest = _without_a(gram)
        product = torch.baddbmm(product, rest, product, beta=a)
    return product


class Muon:
    """Nesterov momentum, orthogonalized in `dtype`, with decoupled weight decay; all matrices of one shape at once.

    torch.optim.Muon takes one matrix after another, always in bfloat16, which is slow on processors without it. Every
    matrix (R, C) has a gradient at every step.
    """

    def __init__(self, matrices: list[Tensor], weight_decay: float, dtype: torch.dtype) -> None:
        self.matrices, self.weight_decay, self.dtype = matrices, weight_decay, dtype
        self.momenta = [torch.zeros_like(matrix) for matrix in matrices]

    @torch.no_grad()
    def step(self, lr: float | Tensor, bad: Tensor | None = None) -> None:
        """One step at a learning rate of AdamW's size; none where `bad`, a float32 () on the device, is 1."""
        gradients = [matrix.grad for matrix in self.matrices if matrix.grad is not None]
        if bad is not None:
            # A gradient may be NaN, which times 0 is NaN: what it would change stays what it is, one by one.
            pairs = zip(gradients, self.momenta, strict=True)
            gradients = [gradient.where(bad == 0, momentum) for gradient, momentum in pairs]
            lr = lr * (1 - bad)
        torch._foreach_lerp_(self.momenta, gradients, 1 - MOMENTUM)
        directions = torch._foreach_lerp(gradients, self.momenta, MOMENTUM)
        torch._foreach_mul_(self.matrices, 1 - lr * self.weight_decay)
        # A matrix and its transpose have one step: those that are taller lie down, and all of one shape go together.
        of_shape: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for i, matrix in enumerate(self.matrices):
            of_shape[tuple(sorted(matrix.shape))].append(i)
        for shape, places in of_shape.items():
            found = [directions[i].mT if directions[i].shape != shape else directions[i] for i in places]
            lying = torch.stack([direction.to(self.dtype) for direction in found])
            scale = -lr * AS_ADAMW * shape[1] ** 0.5
            for i, step in zip(places, orthogonalize(lying).unbind(), strict=True):
                matrix = self.matrices[i]
                # Contiguous first: a sum of one that lies with one that stands takes many times as long.
                step = (step if matrix.shape == step.shape else step.mT).to(matrix.dtype).contiguous()
                if isinstance(scale, Tensor):  # which `alpha` cannot be
                    matrix.addcmul_(step, scale.to(step.dtype))
                else:
                    matrix.add_(step, alpha=scale)
