"""AdamW, or Muon for the trunk's matrices and AdamW for the rest, under one schedule."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..agents import DecisionModel
from .config import OptimizerConfig
from .muon import Muon, trunk_matrices


def schedule(update: int, config: OptimizerConfig) -> float:
    """The share of the peak learning rate at update `update`, from 0: a linear warm-up, then constant or a cosine."""
    warm = min(1.0, (update + 1) / max(1, config.warmup_updates))
    return warm * (0.5 * (1 + math.cos(math.pi * update / config.updates)) if config.schedule == "cosine" else 1.0)


class Rates(NamedTuple):
    """How far one update goes: numbers, or tensors () on the device where nothing may wait for it.

    Attributes:
        adamw: AdamW's learning rate.
        muon: Muon's.
        average: what the moving average takes of the new weights.
    """

    adamw: float | Tensor
    muon: float | Tensor
    average: float | Tensor


def rates_at(update: int, config: OptimizerConfig) -> Rates:
    """Those of update number `update`, from 0."""
    share = schedule(update, config)
    # The decay rises from 0.1, or the first weights would stay in the average for a thousand updates.
    decay = min(config.average_decay, (1 + update) / (10 + update))
    return Rates(config.learning_rate * share, config.matrix_learning_rate * share, 1 - decay)


class Optimizers:
    """The optimisers of one model.

    Args:
        model: whose parameters are trained.
        config: which optimisers, and how they step.
        dtype: for Muon to compute in.
    """

    def __init__(self, model: DecisionModel, config: OptimizerConfig, dtype: torch.dtype) -> None:
        """Starts from zero moments."""
        self.config = config
        matrices = trunk_matrices(model.trunk) if config.optimizer == "muon" else []
        taken = {id(parameter) for parameter in matrices}
        rest = [parameter for parameter in model.parameters() if id(parameter) not in taken]
        self.adamw = torch.optim.AdamW(rest, weight_decay=config.weight_decay, fused=True)
        self.muon = Muon(matrices, weight_decay=config.weight_decay, dtype=dtype) if matrices else None

    @property
    def learning_rate(self) -> float:
        """AdamW's, of the last step."""
        return float(self.adamw.param_groups[0]["lr"])

    def step(self, rates: Rates, bad: Tensor | None = None) -> None:
        """Steps every parameter that has a gradient; none where `bad`, a float32 () on the device, is 1."""
        self.adamw.found_inf = bad  # type: ignore[attr-defined]  # of gradient scaling: a step that is not taken
        _step(self.adamw, rates.adamw)
        if self.muon is not None:
            self.muon.bad = bad
            _step(self.muon, rates.muon)

    def state_dict(self) -> dict[str, Any]:
        """AdamW's, and Muon's under its name; learning rates as numbers."""
        muon = {} if self.muon is None else {"muon": _plain(self.muon.state_dict())}
        return _plain(self.adamw.state_dict()) | muon

    def load_state_dict(self, states: dict[str, Any]) -> None:
        """The inverse of `state_dict`.

        Raises:
            ValueError: they are of other optimisers, or of parameters of other shapes.
            KeyError: Muon's are missing.
        """
        states = dict(states)
        if self.muon is not None:
            self.muon.load_state_dict(states.pop("muon"))
            _check_shapes(self.muon, ("momentum",))
        self.adamw.load_state_dict(states)
        _check_shapes(self.adamw, ("exp_avg", "exp_avg_sq"))


def _step(optimizer: torch.optim.Optimizer, learning_rate: float | Tensor) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
        if isinstance(learning_rate, Tensor) and learning_rate.is_cuda:
            group["capturable"] = True
    optimizer.step()


def _plain(states: dict[str, Any]) -> dict[str, Any]:
    groups = [group | {"lr": float(group["lr"])} for group in states["param_groups"]]
    return states | {"param_groups": groups}


def _check_shapes(optimizer: torch.optim.Optimizer, moments: tuple[str, ...]) -> None:
    """An optimiser takes moments of any shape, and fails at its next step."""
    for parameter, state in optimizer.state.items():
        if any(state[name].shape != parameter.shape for name in moments):
            raise ValueError("moments of other shapes than the weights")
