"""The rollout modes: what a policy remembers between two steps, and one step of each.

Shape suffixes: B environments, O observation, A action, K steps of context.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..model.decision import DecisionModel
from ..model.scaling import ModelStep, Scaling, Step, to_array
from ..scan.rows import where
from .compiled import Stepper

StepperState: TypeAlias = Any  # a stepper knows its own: `TrunkState`, or one tensor


class Recurrent(NamedTuple):
    """One state since the first step."""

    state: StepperState


class Staggered(NamedTuple):
    """Two staggered states. Actions come from the older; every K / 2 steps it is dropped and a new one starts.

    In the first K / 2 steps, the younger is None, or a copy of the older if environments are at different steps.
    """

    older: StepperState
    younger: StepperState


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


def act_staggered(
    step: Step, memory: Staggered, stepper: Stepper, half: int, device: torch.device
) -> tuple[npt.NDArray[np.float32], Staggered]:
    """Acts with the older state, which the younger replaces every `half` = K / 2 steps; `device` is the states'."""
    older, younger = memory
    if isinstance(step.timestep, np.ndarray):
        turns = step.timestep % half == 0
        older = where(torch.from_numpy(turns).to(device), younger, older)
        action, older = stepper.step(step, older, step.begins())
        return action, Staggered(older, stepper.step(step, younger, turns)[1])
    fresh = step.timestep > 0 and step.timestep % half == 0
    if fresh and younger is not None:
        older = younger
    action, older = stepper.step(step, older)
    if fresh:
        step, younger = step._replace(previous_action=None), stepper.initial_state(len(action))
    if younger is not None:
        _, younger = stepper.step(step, younger)
    return action, Staggered(older, younger)


@torch.no_grad()
def act_on_window(
    step: Step, memory: Window, model: DecisionModel, scaling: Scaling
) -> tuple[npt.NDArray[np.float32], Window]:
    """Acts with the model on the last K steps."""
    window, place = memory.push(scaling.to_model(step))
    # Where all environments are at one step, without the places that are empty yet: less work, and how many there are
    # does not show in the last bits.
    seen = step.timestep + 1 if isinstance(step.timestep, int) else None
    actions, _ = model(*(part[:, :seen] for part in window))
    newest = actions[torch.arange(len(place), device=place.device), place]
    return to_array(scaling.actions(newest)), window
