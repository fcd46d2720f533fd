"""AdamW, or Muon for the trunk matrices and AdamW for the rest, with one schedule.

Muon orthogonalizes the momentum of every matrix before it takes a step (Jordan et al. 2024).
"""

import math
from collections import defaultdict
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..agents.model.decision import DecisionModel
from .config import OptimizerConfig

# Coefficients of the quintic iteration that brings singular values near 1 in the fewest products (Jordan et al. 2024).
QUINTIC = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
MOMENTUM = 0.95
AS_ADAMW = 0.2  # root mean square of AdamW steps at a learning rate of 1 (Liu et al. 2025, section 2.2)


def schedule(update: int, config: OptimizerConfig) -> float:
    """The fraction of the peak learning rate at step `update` >= 0: linear warm-up, then constant or cosine."""
    warm = min(1.0, (update + 1) / max(1, config.warmup_updates))
    return warm * (0.5 * (1 + math.cos(math.pi * update / config.updates)) if config.lr_schedule == "cosine" else 1.0)


class Rates(NamedTuple):
    """The rates of one gradient step: numbers, or tensors () on the device to avoid synchronization."""

    adamw: float | Tensor  # its learning rate
    muon: float | Tensor  # its learning rate
    ema: float | Tensor  # weight of the new weights in the exponential moving average (EMA)


def rates_at(update: int, config: OptimizerConfig) -> Rates:
    """The rates of gradient step `update` >= 0."""
    share = schedule(update, config)
    # The decay rises from 0.1. Otherwise the initial weights would stay in the EMA for a thousand gradient steps.
    decay = min(config.ema_decay, (1 + update) / (10 + update))
    return Rates(config.learning_rate * share, config.muon_learning_rate * share, 1 - decay)


class Optimizers:
    """The optimizers of the parameters of one model. Muon computes in `dtype`."""

    def __init__(self, model: DecisionModel, config: OptimizerConfig, dtype: torch.dtype) -> None:
        layers = [module for module in model.trunk.modules() if isinstance(module, nn.Linear)]
        matrices = [layer.weight for layer in layers if layer.weight.requires_grad and config.optimizer == "muon"]
        taken = {id(parameter) for parameter in matrices}
        rest = [parameter for parameter in model.parameters() if id(parameter) not in taken]
        self.adamw = torch.optim.AdamW(rest, weight_decay=config.weight_decay, fused=True)
        self.muon = Muon(matrices, config.weight_decay, dtype) if matrices else None

    @property
    def learning_rate(self) -> float:
        """The learning rate of AdamW in the last step."""
        return float(self.adamw.param_groups[0]["lr"])

    def step(self, rates: Rates) -> None:
        """Step every parameter."""
        for group in self.adamw.param_groups:
            group["lr"] = rates.adamw
            if isinstance(rates.adamw, Tensor) and rates.adamw.is_cuda:
                group["capturable"] = True
        self.adamw.step()
        if self.muon is not None:
            self.muon.step(rates.muon)

    def state_dict(self) -> dict[str, Any]:
        """The state of AdamW, with a number as learning rate, and the Muon momenta under a key of their own."""
        states = self.adamw.state_dict()
        groups = [group | {"lr": float(group["lr"])} for group in states["param_groups"]]
        return states | {"param_groups": groups} | ({} if self.muon is None else {"muon": self.muon.momenta})

    def load_state_dict(self, states: dict[str, Any]) -> None:
        """Load a `state_dict`. Raises ValueError or KeyError if it is from other optimizers or weights."""
        states = dict(states)
        if self.muon is not None:
            for mine, given in zip(self.muon.momenta, states.pop("muon"), strict=True):
                _check_shape(mine, given)
                mine.copy_(given)
        self.adamw.load_state_dict(states)
        for parameter, state in self.adamw.state.items():  # accepts any shapes, and copies what fits by repeating it
            for moment in ("exp_avg", "exp_avg_sq"):
                _check_shape(parameter, state[moment])


def _check_shape(parameter: Tensor, moment: Tensor) -> None:
    if moment.shape != parameter.shape:
        raise ValueError("optimizer moments have other shapes than the weights")


def orthogonalize(matrices: Tensor) -> Tensor:
    """Approximate U V^T for every matrix U S V^T, by a Newton-Schulz iteration. Singular values are in [0.6, 1.4].

    An iteration is X <- Q X with Q = a I + b G + c G^2 and G = X X^T. If X is wide, a few iterations update G alone
    (the next is Q G Q) and their product multiplies X. This takes 0.7 of the time for 128 x 512. The remaining
    iterations use X, since the smallest singular values of G are rounding errors, which iterations would amplify.

    Takes and returns (n, R, C), R <= C, in the computing precision. Zero matrices stay zero.
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
    # Q - a I: Q itself loses digits in bfloat16.
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

    torch.optim.Muon steps one matrix after another, always in bfloat16, which is slow on processors without it. Every
    matrix (R, C) needs a gradient at every step.
    """

    def __init__(self, matrices: list[Tensor], weight_decay: float, dtype: torch.dtype) -> None:
        self.matrices, self.weight_decay, self.dtype = matrices, weight_decay, dtype
        self.momenta = [torch.zeros_like(matrix) for matrix in matrices]

    @torch.no_grad()
    def step(self, lr: float | Tensor) -> None:
        """Take one step, its size scaled to match AdamW."""
        gradients = [matrix.grad for matrix in self.matrices if matrix.grad is not None]
        torch._foreach_lerp_(self.momenta, gradients, 1 - MOMENTUM)
        directions = torch._foreach_lerp(gradients, self.momenta, MOMENTUM)
        torch._foreach_mul_(self.matrices, 1 - lr * self.weight_decay)
        # A matrix and its transpose have the same step: transpose tall ones and batch all of one shape.
        of_shape: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for i, matrix in enumerate(self.matrices):
            of_shape[tuple(sorted(matrix.shape))].append(i)
        for shape, places in of_shape.items():
            found = [directions[i].mT if directions[i].shape != shape else directions[i] for i in places]
            lying = torch.stack([direction.to(self.dtype) for direction in found])
            scale = -lr * AS_ADAMW * shape[1] ** 0.5
            for i, step in zip(places, orthogonalize(lying).unbind(), strict=True):
                matrix = self.matrices[i]
                # Make it contiguous first: adding a matrix to a transposed one takes many times as long.
                step = (step if matrix.shape == step.shape else step.mT).to(matrix.dtype).contiguous()
                if isinstance(scale, Tensor):  # `alpha` cannot be a tensor
                    matrix.addcmul_(step, scale.to(step.dtype))
                else:
                    matrix.add_(step, alpha=scale)
