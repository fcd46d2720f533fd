"""A decision model in the form that acts fastest at rollout."""

from __future__ import annotations

import copy
from typing import Any, Protocol

from ..mixers import CONSTANT
from ..mixers.tree.mixer import plant_trees
from ..model.decision import DecisionModel
from ..model.scaling import Array, PlainStep, Scaling, Step
from ..scan.first_use import gpu_is_right
from .rollout_graph import GraphedCallable, GraphedStep
from .rollout_step import CompiledStep, can_compile


class Stepper(Protocol):
    """What takes a policy's steps, in the environment's units; a state belongs to the one that made it."""

    def initial_state(self, batch_size: int) -> Any: ...  # noqa: ANN401

    def step(self, step: Step, state: Any, begins: Array | None = None) -> tuple[Array, Any]: ...  # noqa: ANN401


def for_rollout(model: DecisionModel, scaling: Scaling, *, compiled: bool = True) -> Stepper:
    """The model's steps with the weights that it has now, without dropout.

    Args:
        model: stays as it is.
        scaling: of the policy.
        compiled: on a CPU as one compiled call, on a GPU as one recorded graph, where there is one for the model;
            otherwise in PyTorch's operations.
    """
    if compiled and can_compile(model):
        return CompiledStep(model, scaling)
    copied = copy.deepcopy(model).eval().requires_grad_(False)
    if model.config.mixer == "tree":
        plant_trees(copied.trunk, model.config.tree())
    if compiled and model.trunk.mixer.state_size == CONSTANT and _can_record(model):
        return GraphedStep(copied, scaling)
    return PlainStep(copied, scaling)


def for_windows(model: DecisionModel) -> GraphedCallable | None:
    """On a GPU, the actions of `model.forward` by recorded graphs, where the model can be recorded."""
    if _can_record(model):
        return GraphedCallable(lambda *window: model(*window)[:1])
    return None


def _can_record(model: DecisionModel) -> bool:
    weight = model.head.weight
    return model.trunk.mixer.recordable and weight.is_cuda and gpu_is_right(weight.device)
