"""What lies between an environment's units and the model's: observations, actions, and the return that is asked for.

Shape suffixes: B environments, O observation, A action, K intervals of time steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array: TypeAlias = npt.NDArray[Any]
# A `Step` in the model's units: the arguments of `DecisionModel.step`, but the state.
ModelStep: TypeAlias = tuple[Tensor, Tensor, int | Tensor, Tensor | None]


class Step(NamedTuple):
    """One environment step of B environments, as a policy's engine has it: in the environment's units.

    Attributes:
        observation: s_t (B, O), float32, without the policy's origin.
        return_to_go: R_t (B,), float64, within the policy's `ReturnRange`.
        timestep: t, one for all or int64 (B,).
        previous_action: a_{t-1} as executed, (B, A), float32; None at the first step the state sees.
    """

    observation: Array
    return_to_go: Array
    timestep: int | Array
    previous_action: Array | None

    def begins(self) -> Array | None:
        """Where environments that are at different steps begin an episode, bool (B,); None where all are at one."""
        return self.timestep == 0 if isinstance(self.timestep, np.ndarray) else None


class ReturnRange(NamedTuple):
    """The smallest and the largest return-to-go that a policy feeds its model at a time step.

    In one token per step a return-to-go far outside of the training data would drown the observation.

    Attributes:
        every: time steps of an interval, at least 1.
        bounds: (K, 2), float64, the smallest and the largest in every interval; later steps use the last one.
    """

    every: int
    bounds: Array

    def clamp(self, return_to_go: Array, timestep: int | Array) -> Array:
        """Returns-to-go (B,) moved into the range of their time step; an exported graph has the same formula."""
        last, interval = len(self.bounds) - 1, timestep // self.every
        if isinstance(interval, int):  # a slice: operations on arrays are faster than on an array and a number
            row: Any = slice(min(interval, last), min(interval, last) + 1)
        else:
            row = np.minimum(interval, last)
        pair = self.bounds[row]
        clamped: Array = np.minimum(np.maximum(return_to_go, pair[:, 0]), pair[:, 1])
        return clamped


def middle_and_half(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The middle and half the range of actions from `low` to `high`, each (A,) in float32.

    Half is rounded down so that middle - half and middle + half are inside the bounds, which environments check.
    """
    # A bound in float64 may lie between two float32 numbers: the one inside.
    inside_low, inside_high = low.float(), high.float()
    up, down = (torch.full_like(inside_low, end) for end in (torch.inf, -torch.inf))
    low = torch.where(inside_low < low, torch.nextafter(inside_low, up), inside_low)
    high = torch.where(inside_high > high, torch.nextafter(inside_high, down), inside_high)
    middle = (high + low) / 2
    half = torch.minimum(high - middle, middle - low)
    outside = (middle + half > high) | (middle - half < low)
    return middle, torch.where(outside, torch.nextafter(half, torch.zeros_like(half)), half)


@dataclass(frozen=True)
class Scaling:
    """How a model sees its environment: in training, in a policy, in its compiled step and in an exported graph.

    Attributes:
        observation_mean, observation_std: (O,), float32, of the training data less the origin.
        return_scale: returns-to-go are divided by it.
        action_middle: (A,), of the environment's actions; the model's 0.
        action_half: (A,), half of their range.
        origin: (O,), float64, is subtracted from observations before they become float32; None: nothing is.
    """

    observation_mean: Tensor
    observation_std: Tensor
    return_scale: float
    action_middle: Tensor
    action_half: Tensor
    origin: npt.NDArray[np.float64] | None = None

    @staticmethod
    def of(
        mean: Tensor,
        std: Tensor,
        return_scale: float,
        action_low: Tensor,
        action_high: Tensor,
        origin: npt.NDArray[np.float64] | None = None,
    ) -> Scaling:
        """Of the mean and deviation (O,) of raw observations, and bounds (A,) of actions."""
        if origin is not None:
            mean = mean - torch.from_numpy(origin).to(mean.device)
        return Scaling(mean.float(), std.float(), return_scale, *middle_and_half(action_low, action_high), origin)

    def from_origin(self, observation: Array) -> Array:
        """Raw observations (B, O) as float32."""
        return observation if self.origin is None else (observation - self.origin).astype(np.float32)

    def normalized(self, observation: Tensor) -> Tensor:
        """Observations (..., O) from the origin, normalized."""
        return (observation - self.observation_mean) / self.observation_std

    def unit_actions(self, action: Tensor) -> Tensor:
        """Actions (..., A) in the model's units, in which they span [-1, 1]."""
        return (action - self.action_middle) / self.action_half

    def actions(self, unit: Tensor) -> Tensor:
        """Actions (..., A) in the environment's units, of the model's."""
        return self.action_middle + self.action_half * unit

    def to_model(self, step: Step) -> ModelStep:
        """A step in the model's units, on its device."""
        device = self.observation_mean.device
        given: Any = (x if x is None or isinstance(x, int) else torch.tensor(x, device=device) for x in step)
        observation, to_go, timestep, previous = given
        return (
            self.normalized(observation),
            (to_go / self.return_scale).float(),
            timestep,
            None if previous is None else self.unit_actions(previous),
        )


def to_array(action: Tensor) -> Array:
    """Actions as float32 in the processor's memory."""
    return action.detach().cpu().numpy().astype(np.float32, copy=False)
