"""A critic's choice among candidate actions, in the environment's units: as one compiled call, or in PyTorch.

Shape suffixes: B environments, O observation, A action.
"""

import copy
from typing import Protocol

import numpy as np
import torch

from .. import kernels
from ..model.critic import SCALE, Critic
from ..model.scaling import Array, Scaling, to_array
from .arrays import packed, packed_scaling, plain


class Choice(Protocol):
    """What replaces a policy's actions by better candidates."""

    def __call__(self, observed: Array, acted: Array, improves: Array) -> Array:
        """Actions (B, A), float32, from raw observations (B, O), the policy's actions (B, A) and bool (B,).

        Where `improves` is False, or no candidate is better, the policy's action is unchanged, to the last bit.
        """


def for_choice(critic: Critic, scaling: Scaling, *, compiled: bool) -> Choice:
    """The choice of a critic with its current weights; `compiled`: in one compiled call on the CPU."""
    return CompiledChoice(critic, scaling) if compiled else PlainChoice(critic, scaling)


class PlainChoice:
    """In PyTorch, in float64: rounded sums then do not depend on how many environments there are."""

    def __init__(self, critic: Critic, scaling: Scaling) -> None:
        self._critic, self._scaling = copy.deepcopy(critic).double(), scaling

    @torch.no_grad()
    def __call__(self, observed: Array, acted: Array, improves: Array) -> Array:
        scaling, rows = self._scaling, np.flatnonzero(improves)
        seen, own = (torch.tensor(x[rows], device=scaling.observation_mean.device) for x in (observed, acted))
        seen = scaling.normalized(seen).double()
        candidates = self._critic.candidates(scaling.unit_actions(own).double())
        number = self._critic.best(seen, candidates)
        better = scaling.actions(candidates[torch.arange(len(rows), device=number.device), number].float())
        chosen = acted.copy()
        chosen[rows] = to_array(torch.where((number > 0).unsqueeze(1), better, own))
        return chosen


class CompiledChoice:
    """As `PlainChoice`, in float32 and a fraction of the time. A row is the same however many others there are."""

    def __init__(self, critic: Critic, scaling: Scaling) -> None:
        first, second, last = critic.weights
        biases = [bias.squeeze(1) for bias in critic.biases]
        observations = len(scaling.observation_mean)
        self._scaling = packed_scaling(scaling)
        self._critic = (
            packed(SCALE * critic.deviation * critic.offsets),
            (packed(first[:, :observations]), packed(first[:, observations:]), packed(biases[0])),
            (packed(second), packed(biases[1])),
            packed(last.squeeze(-1)),
        )
        self._choose = kernels.load_kernels("critic").choose
        observed, acted = np.zeros((1, observations), np.float32), np.zeros((1, len(critic.deviation)), np.float32)
        self(observed, acted, np.ones(1, np.bool_))

    def __call__(self, observed: Array, acted: Array, improves: Array) -> Array:
        chosen = acted.copy()
        self._choose(plain(observed), plain(improves), self._scaling, *self._critic, chosen)
        return chosen
