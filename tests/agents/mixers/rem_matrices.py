"""Recurrence encoding written out: slow, obviously correct, in float64."""

import torch
from torch import Tensor

from aaren_rl.agents.mixers.rsa import Recurrence, Regular


def recurrence_encoding_matrix(
    length: int,
    decay: Tensor,
    angle: Tensor | None = None,
    *,
    sine: bool = False,
    dilation: int = 1,
    max_power: int = 0,
) -> Tensor:
    """One causal REM (T, T), entry by entry as equation (3) of Huang et al. 2023 and its P (x) I_d for dilation d say.

    `decay` is lambda or gamma, `angle` theta, None for a regular REM. Entries of larger powers than `max_power` are 0
    (appendix D.1); where it is 0, none are.
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


def matrices(group: Recurrence, length: int) -> Tensor:
    """The REMs of a group's heads, (R, T, T), entry by entry."""
    form = {"dilation": group.dilation, "max_power": group.max_power}
    if isinstance(group, Regular):
        return torch.stack([recurrence_encoding_matrix(length, x.tanh(), **form) for x in group.eta])
    pairs, heads = list(zip(group.nu.sigmoid(), group.theta, strict=True)), []
    for sine, count in ((False, group.cosines), (True, group.sines)):
        heads += [recurrence_encoding_matrix(length, *pair, sine=sine, **form) for pair in pairs[:count]]
    return torch.stack(heads)
