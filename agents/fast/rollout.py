"""A decision model in the form that acts soonest at rollout."""

from __future__ import annotations

import copy

import torch

from .. import kernels
from ..mixers import Aaren
from ..mixers.tree.mixer import plant_trees
from ..model.block import Block
from ..model.decision import DecisionModel
from .rollout_graph import STEPS, WINDOWS, GraphedCallable, GraphedStep
from .rollout_mixer import FusedAaren
from .rollout_step import CompiledStep, can_compile


@torch.no_grad()
def for_rollout(model: DecisionModel, *, compiled: bool = True) -> DecisionModel | CompiledStep | GraphedStep:
    """What does the same as `model.step` soonest, with today's weights and without dropout.

    It has `initial_state` and `step`; the states of the one are not those of the other.

    Args:
        model: stays as it is.
        compiled: on a CPU as one compiled call, on a GPU as one recorded graph, where there is one for the model;
            otherwise in PyTorch's operations, by `fused`.
    """
    if compiled and can_compile(model):
        return CompiledStep(model)
    if compiled and model.config.mixer in STEPS and kernels.on_gpu(model.head.weight):
        return GraphedStep(fused(model))
    return fused(model)


def for_windows(model: DecisionModel) -> GraphedCallable | None:
    """On a GPU, the actions of `model.forward` by recorded graphs, where the model can be recorded."""
    if model.config.mixer in WINDOWS and kernels.on_gpu(model.head.weight):
        return GraphedCallable(lambda *window: model(*window)[:1])
    return None


@torch.no_grad()
def fused(model: DecisionModel) -> DecisionModel:
    """A copy whose `step` does the same sooner: today's weights, no dropout, mixers in their form for rollouts."""
    copied = copy.deepcopy(model).eval().requires_grad_(False)
    for block in copied.trunk.blocks:
        assert isinstance(block, Block)
        if isinstance(block.mixer, Aaren):
            block.register_module("mixer", FusedAaren(block.mixer))
    if model.config.mixer == "tree":
        plant_trees(copied.trunk, model.config.tree())
    return copied
