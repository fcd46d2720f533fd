"""The return still to come after an observation, as the data know it: the best in reach, and the typical one.

Of the returns-to-go G after an observation, an expectile (Newey & Powell 1987): the value v that minimises
E |tau - 1[G < v]| (G - v)^2. At tau = 1/2 it is their mean; towards 1 it tends to the largest that the data have had
from such an observation. Who asks a policy for the best, at every step anew, need not know the environment's returns
(Reinformer, Zhuang et al. 2024, has it from the policy's own trunk); the typical one is what guidance goes away from.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

BEST, TYPICAL = 0.995, 0.5  # tau
WIDTH = 128  # of both hidden layers


class ReturnEstimate(nn.Module):
    """Normalised observations (..., O) -> scaled returns-to-go (...)."""

    def __init__(self, observation_dim: int) -> None:
        super().__init__()
        self.first = nn.Linear(observation_dim, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 1)
        self.requires_grad_(False)  # not the optimizer's: `aaren_rl.train` fits them to the data by themselves

    def forward(self, observations: Tensor) -> Tensor:
        """The estimate, in the type of the weights."""
        x = observations.to(self.last.weight.dtype)
        estimate: Tensor = self.last(self.second(self.first(x).relu()).relu())
        return estimate.squeeze(-1)


def expectile_loss(predicted: Tensor, target: Tensor, expectile: float) -> Tensor:
    """The mean of |tau - 1[target < predicted]| (target - predicted)^2 over tensors of one shape."""
    error = target - predicted
    return torch.where(error > 0, expectile, 1 - expectile).mul(error.square()).mean()
