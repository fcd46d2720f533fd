"""The REMs of a group of heads written out by the reference."""

from __future__ import annotations

import torch
from torch import Tensor

from aaren_rl.agents import reference
from aaren_rl.agents.mixers.rsa.encoding import Recurrence, Regular


def matrices(group: Recurrence, length: int) -> Tensor:
    """The REMs of a group's heads, (R, T, T), by the reference."""
    form = {"dilation": group.dilation, "max_power": group.max_power}
    if isinstance(group, Regular):
        return torch.stack([reference.recurrence_encoding_matrix(length, x.tanh(), **form) for x in group.eta])
    pairs, heads = list(zip(group.nu.sigmoid(), group.theta, strict=True)), []
    for sine, count in ((False, group.cosines), (True, group.sines)):
        heads += [reference.recurrence_encoding_matrix(length, *pair, sine=sine, **form) for pair in pairs[:count]]
    return torch.stack(heads)
