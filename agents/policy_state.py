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
from .scan.rows import State, batch_size, each

if TYPE_CHECKING:
    import numpy.typing as npt

CHECK = Arguments()
StepperState: TypeAlias = TrunkState | Tensor


class Carry(NamedTuple):
    """One state, from the first step on."""

    state: StepperState


class Rolling(NamedTuple):
    """Two staggered states: actions come from the older; every K / 2 steps it is dropped and a fresh one begun.

    Until the first is begun, the younger is None, or a copy of the older where environments are at different steps.
    """

    older: StepperState
    younger: StepperState | None


class Window(NamedTuple):
    """The last K steps, the oldest first; zeros behind the newest while there are fewer, and for the newest action.

    Attributes:
        observations: (B, K, O), normalised.
        actions: (B, K, A).
        returns_to_go: (B, K), scaled.
        timesteps: (B, K).
    """

    observations: Tensor
    actions: Tensor
    returns_to_go: Tensor
    timesteps: Tensor

    @staticmethod
    def empty(batch_size: int, sizes: tuple[int, int], context_length: int, device: torch.device) -> Window:
        """Before any step, for `sizes` O and A."""
        shape = (batch_size, context_length)
        parts = (torch.zeros(*shape, *size, device=device) for size in [(n,) for n in sizes] + [()])
        observations, actions, returns_to_go = parts
        times = torch.zeros(shape, dtype=torch.long, device=device)
        return Window(observations, actions, returns_to_go, times)

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


Memory: TypeAlias = Carry | Rolling | Window
MEMORIES: dict[str, type[Memory]] = {"carry": Carry, "rolling": Rolling, "window": Window}


class PolicyState(NamedTuple):
    """What a policy remembers between two steps of B environments, in their units.

    Attributes:
        timestep: steps taken so far in the episode: one number, or int64 (B,) after `Policy.restart`.
        return_to_go: return still to come, float64 (B,); infinite where the best in reach is asked for.
        previous_action: the action handed out last, float32 (B, A); None before the first. Replace it
            (`state._replace(previous_action=...)`) if something else was executed.
        memory: what the rollout mode keeps, on the policy's device.
    """

    timestep: int | npt.NDArray[np.int64]
    return_to_go: npt.NDArray[np.float64]
    previous_action: npt.NDArray[np.float32] | None
    memory: Memory


def where(chosen: Tensor, part: State, other: State) -> State:
    """The rows of a part of a state where `chosen`, bool (B,), and those of another elsewhere."""
    return each(lambda pair: torch.where(chosen.view(-1, *[1] * (pair[0].dim() - 1)), pair[0], pair[1]), [part, other])


def check_state(state: Any, rollout: str, actions: int, runs: int) -> PolicyState:  # noqa: ANN401
    """A state that a caller hands back, parts of it perhaps replaced, for a policy of this rollout mode and A actions.

    Raises:
        ValueError: it is something else, of another rollout mode, or its parts are not of one number of environments.
    """
    if not isinstance(state, PolicyState):
        raise ValueError(f"state: must be what initial_state or act gave, not {type(state).__name__}")
    timestep, to_go, previous, memory = state
    if not isinstance(memory, MEMORIES[rollout]):
        other = type(memory).__name__.lower()
        raise ValueError(f"state: is of the rollout mode {other}, and this policy's is {rollout}")
    batch = batch_size(memory) // runs
    if previous is not None:
        previous = CHECK.array("previous_action", previous, np.float32, (batch, actions))
    elif not (isinstance(timestep, int) and timestep == 0):
        raise ValueError("previous_action: is None, and an action has been handed out before")
    to_go = CHECK.array("state: return_to_go", to_go, np.float64, (batch,))
    return PolicyState(CHECK.timestep(timestep, batch), to_go, previous, memory)
