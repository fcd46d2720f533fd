"""Recurrence encoding written out: slow, obviously correct, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from aaren_rl.agents.mixers.rsa.encoding import Recurrence, Regular


def recurrence_encoding_matrix(
    length: int,
    decay: Tensor,
    angle: Tensor | None = None,
    *,
    sine: bool = False,
    dilation: int = 1,
    max_power: int = 0,
) -> Tensor:
    """One causal REM, entry by entry as equation (3) of Huang et al. 2023 and its P (x) I_d for dilation d say.

    Args:
        length: T.
        decay: lambda or gamma, a scalar.
        angle: theta; None for a regular REM.
        sine: gamma^j sin(j theta) instead of gamma^j cos(j theta).
        dilation: d.
        max_power: entries of larger powers are 0 (appendix D.1); 0: none are.

    Returns:
        (T, T) in float64, with gradients to `decay` and `angle`.
    """
    decay = decay.double()

    def f(power: int) -> Tensor:
        if power == 0 or (max_power and power > max_power):
            return torch.zeros_like(decay)
        if angle is None:
            return decay**power
        return decay**power * (torch.sin if sine else torch.cos)(power * angle.double())

    blocks = -(-length // dilation)
    distance = torch.arange(blocks).unsqueeze(1) - torch.arange(blocks)
    undilated = torch.stack([f(power) for power in range(blocks)])[distance.clamp(min=0)] * (distance > 0)
    return torch.kron(undilated, torch.eye(dilation, dtype=torch.float64))[:length, :length]


def linear_rnn(weight: Tensor, inputs: Tensor) -> Tensor:
    """h_t = W_h h_{t-1} + u_t from h_0 = 0, in float64: weight (d, d), inputs u = W_x x (T, d) -> (T, d)."""
    hidden, outputs = torch.zeros_like(inputs[0], dtype=torch.float64), []
    for u in inputs.double():
        hidden = weight.double() @ hidden + u
        outputs.append(hidden)
    return torch.stack(outputs)


def matrices(group: Recurrence, length: int) -> Tensor:
    """The REMs of a group's heads, (R, T, T), entry by entry."""
    form = {"dilation": group.dilation, "max_power": group.max_power}
    if isinstance(group, Regular):
        return torch.stack([recurrence_encoding_matrix(length, x.tanh(), **form) for x in group.eta])
    pairs, heads = list(zip(group.nu.sigmoid(), group.theta, strict=True)), []
    for sine, count in ((False, group.cosines), (True, group.sines)):
        heads += [recurrence_encoding_matrix(length, *pair, sine=sine, **form) for pair in pairs[:count]]
    return torch.stack(heads)
