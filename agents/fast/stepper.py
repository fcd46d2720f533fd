"""A decision model in its fastest form for rollout."""

import copy
from typing import Any, Protocol

from ..mixers.tree.mixer import TreeConfig, plant_trees
from ..model.decision import DecisionModel
from ..model.scaling import Array, PlainStep, Scaling, Step
from .compiled_step import CompiledStep, can_compile


class Stepper(Protocol):
    """The interface of the steps of a policy, in units of the environment. Each object has its own kind of state."""

    def initial_state(self, batch_size: int) -> Any: ...  # noqa: ANN401

    def step(self, step: Step, state: Any, begins: Array | None = None) -> tuple[Array, Any]: ...  # noqa: ANN401


def for_rollout(
    model: DecisionModel, scaling: Scaling, *, compiled: bool = True, tree: TreeConfig | None = None
) -> Stepper:
    """The steps of a model with its current weights, without dropout.

    Args:
        model: is not changed.
        scaling: of the policy.
        compiled: use one compiled call on a CPU, if the model has one; otherwise PyTorch operations.
        tree: of tree attention in the place of softmax attention.

    Raises ValueError where a tree is asked for and the model has no softmax attention.
    """
    if compiled and tree is None and can_compile(model):
        return CompiledStep(model, scaling)
    copied = copy.deepcopy(model).eval().requires_grad_(False)
    if tree is not None:
        plant_trees(copied.trunk, tree)
    return PlainStep(copied, scaling)
