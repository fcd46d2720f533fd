"""One step in the rollout modes "staggered" and "window": the model's actions or logits, and the memory after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ..fast.stepper import Stepper
from ..model.decision import DecisionModel
from ..model.scaling import Scaling, Step, to_array
from .memory import Staggered, Window, where

if TYPE_CHECKING:
    import numpy.typing as npt


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
    return to_array(scaling.from_model(newest)), window
