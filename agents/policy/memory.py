"""The state of a policy between two steps, for each rollout mode.

Shape suffixes: B environments, O observation, A action, K steps of context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..model.scaling import ModelStep
from ..model.trunk import TrunkState
from ..scan.rows import State, each
from .arguments import Arguments

if TYPE_CHECKING:
    import numpy.typing as npt

CHECK = Arguments()
StepperState: TypeAlias = TrunkState | Tensor


class Recurrent(NamedTuple):
    """One state since the first step."""

    state: StepperState


class Staggered(NamedTuple):
    """Two staggered states. Actions come from the older; every K / 2 steps it is dropped and a new one starts.

    In the first K / 2 steps, the younger is None, or a copy of the older if environments are at different steps.
    """

    older: StepperState
    younger: StepperState | None


class Window(NamedTuple):
    """The last K steps, oldest first; zeros after the newest while there are fewer, and for the newest action.

    Attributes:
        observations: (B, K, O), normalized; likewise actions (B, K, A), scaled returns_to_go and timesteps (B, K).
    """

    observations: Tensor
    actions: Tensor
    returns_to_go: Tensor
    timesteps: Tensor

    @staticmethod
    def empty(batch_size: int, sizes: tuple[int, int], context_length: int, device: torch.device) -> Window:
        """The window before any step, for `sizes` O and A."""
        observations, actions = (torch.zeros(batch_size, context_length, size, device=device) for size in sizes)
        returns_to_go = torch.zeros(batch_size, context_length, device=device)
        return Window(observations, actions, returns_to_go, torch.zeros_like(returns_to_go, dtype=torch.long))

    def push(self, step: ModelStep) -> tuple[Window, Tensor]:
        """The window with one more step, and its index in it, (B,). Steps before the first of an episode are masked."""
        (batch, length), (observation, to_go, timestep, previous) = self.returns_to_go.shape, step
        every = torch.arange(batch, device=self.timesteps.device)
        times = torch.as_tensor(timestep, device=every.device).expand(batch)
        full, place = times >= length, times.clamp(max=length - 1)
        after = Window(*(where(full, part.roll(-1, 1), part) for part in self))
        if previous is not None:
            after.actions[every, place - 1] = previous  # at a first step the last index, which is masked
        new = (observation, torch.zeros_like(after.actions[:, 0]), to_go, times)
        for part, value in zip(after, new, strict=True):
            part[every, place] = value
        return after, place


Memory: TypeAlias = Recurrent | Staggered | Window
MEMORIES: dict[str, type[Memory]] = {"recurrent": Recurrent, "staggered": Staggered, "window": Window}


class PolicyState(NamedTuple):
    """The state of a policy between two steps of B environments, in their units.

    Attributes:
        timestep: steps taken so far in the episode: one number, or int64 (B,) after `Policy.reset`.
        return_to_go: remaining target return, float64 (B,); infinite for the maximum achievable one.
        previous_action: the last returned action, float32 (B, A), or int64 (B,) if discrete; None before the first.
            Replace it (`state._replace(previous_action=...)`) if a different action was executed.
        memory: the memory of the rollout mode, on the device of the policy.
        seeds: int64 (B,), the seeds of a policy with a temperature; None for any other.
        improves: bool (B,), where a policy with a critic takes the best of its candidates; None for any other.
    """

    timestep: int | npt.NDArray[np.int64]
    return_to_go: npt.NDArray[np.float64]
    previous_action: npt.NDArray[Any] | None
    memory: Memory
    seeds: npt.NDArray[np.int64] | None = None
    improves: npt.NDArray[np.bool_] | None = None


def where(chosen: Tensor, part: State, other: State) -> State:
    """Rows of one part of a state if `chosen`, bool (B,), of another otherwise."""
    return each(lambda pair: torch.where(chosen.view(-1, *[1] * (pair[0].dim() - 1)), pair[0], pair[1]), [part, other])
