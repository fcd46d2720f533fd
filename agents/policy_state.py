"""What a policy remembers between two steps, in each rollout mode.

Shape suffixes: B environments, O observation, A action, K steps of context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .arguments import Arguments
from .model.scaling import ModelStep
from .model.trunk import TrunkState
from .scan.rows import State, each

if TYPE_CHECKING:
    import numpy.typing as npt

CHECK = Arguments()
StepperState: TypeAlias = TrunkState | Tensor


class Recurrent(NamedTuple):
    """One state, from the first step on."""

    state: StepperState


class Staggered(NamedTuple):
    """Two staggered states: actions come from the older; every K / 2 steps it is dropped and a fresh one begun.

    Until the first is begun, the younger is None, or a copy of the older where environments are at different steps.
    """

    older: StepperState
    younger: StepperState | None


class Window(NamedTuple):
    """The last K steps, the oldest first; zeros behind the newest while there are fewer, and for the newest action.

    Attributes:
        observations: (B, K, O), normalised; likewise actions (B, K, A), scaled returns_to_go and timesteps (B, K).
    """

    observations: Tensor
    actions: Tensor
    returns_to_go: Tensor
    timesteps: Tensor

    @staticmethod
    def empty(batch_size: int, sizes: tuple[int, int], context_length: int, device: torch.device) -> Window:
        """Before any step, for `sizes` O and A."""
        observations, actions = (torch.zeros(batch_size, context_length, size, device=device) for size in sizes)
        returns_to_go = torch.zeros(batch_size, context_length, device=device)
        return Window(observations, actions, returns_to_go, torch.zeros_like(returns_to_go, dtype=torch.long))

    def push(self, step: ModelStep) -> tuple[Window, Tensor]:
        """The window with one more step, and its place in it, (B,); what came before an episode's first is not seen."""
        (batch, length), (observation, to_go, timestep, previous) = self.returns_to_go.shape, step
        every = torch.arange(batch, device=self.timesteps.device)
        times = torch.as_tensor(timestep, device=every.device).expand(batch)
        full, place = times >= length, times.clamp(max=length - 1)
        after = Window(*(where(full, part.roll(-1, 1), part) for part in self))
        if previous is not None:
            after.actions[every, place - 1] = previous  # at a first step the last place, which is not seen
        new = (observation, torch.zeros_like(after.actions[:, 0]), to_go, times)
        for part, value in zip(after, new, strict=True):
            part[every, place] = value
        return after, place


Memory: TypeAlias = Recurrent | Staggered | Window
MEMORIES: dict[str, type[Memory]] = {"recurrent": Recurrent, "staggered": Staggered, "window": Window}


class PolicyState(NamedTuple):
    """What a policy remembers between two steps of B environments, in their units.

    Attributes:
        timestep: steps taken so far in the episode: one number, or int64 (B,) after `Policy.reset`.
        return_to_go: return still to come, float64 (B,); infinite for the maximum achievable one.
        previous_action: the action handed out last, float32 (B, A), or int64 (B,) of discrete ones; None before the
            first. Replace it (`state._replace(previous_action=...)`) if something else was executed.
        memory: what the rollout mode keeps, on the policy's device.
        seeds: int64 (B,), what a policy with a temperature draws from, with the time step; None of any other.
    """

    timestep: int | npt.NDArray[np.int64]
    return_to_go: npt.NDArray[np.float64]
    previous_action: npt.NDArray[Any] | None
    memory: Memory
    seeds: npt.NDArray[np.int64] | None = None


def where(chosen: Tensor, part: State, other: State) -> State:
    """The rows of a part of a state where `chosen`, bool (B,), those of another elsewhere."""
    return each(lambda pair: torch.where(chosen.view(-1, *[1] * (pair[0].dim() - 1)), pair[0], pair[1]), [part, other])
