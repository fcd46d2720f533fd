"""A decision model in the form that trains soonest: tokens and blocks as one operation each, or all as one on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ..model.block import Block, TrunkState
from ..model.decision import ACTED_ON, DecisionModel, token_starts
from ..scan.state import ScanState
from . import training_cuda
from .products import products_dtype
from .training_blocks import can_train, train_blocks
from .training_tokens import can_embed, embed


def for_training(model: DecisionModel) -> FusedTraining:
    """What is called in the model's place in training: the same numbers and parameters, sooner where it can be.

    Wrap it before DistributedDataParallel and torch.compile, and keep the model's own state dictionary.
    """
    return FusedTraining(model)


class FusedTraining(nn.Module):
    """`DecisionModel.forward` by `embed` and `train_blocks`, or by `training_cuda`, where these can stand in.

    Args:
        model: lends its parameters; hooks on its parts are not called where they are stood in for.
    """

    def __init__(self, model: DecisionModel) -> None:
        """Copies nothing."""
        super().__init__()
        self.model = model

    def forward(
        self,
        observations: Tensor,
        actions: Tensor,
        returns_to_go: Tensor,
        timesteps: Tensor,
        state: TrunkState | None = None,
        *,
        starts: Tensor | None = None,
    ) -> tuple[Tensor, TrunkState]:
        """As `DecisionModel.forward`.

        Raises:
            IndexError: a time step is below 0.
        """
        model = self.model
        blocks = cast("Sequence[Block]", model.trunk.blocks)
        sources, layers = (returns_to_go.unsqueeze(-1), observations, actions), model.token_layers()
        if training_cuda.can_train(model, observations, sources, state):
            return training_cuda.train(model, sources, timesteps, starts, state)
        if not (can_train(blocks, observations, state) and can_embed(sources, layers, model.norm)):
            found: tuple[Tensor, TrunkState] = model(
                observations, actions, returns_to_go, timesteps, state, starts=starts
            )
            return found
        times, table = timesteps.clamp(max=model.config.max_timestep - 1), model.embed_timestep.weight
        tokens, low = embed(sources, layers, times, table, model.norm, products_dtype(observations))
        before = cast("tuple[ScanState, ...] | None", state)
        x, after = train_blocks(blocks, tokens, low, token_starts(starts), ACTED_ON, before)
        return torch.tanh(model.head(x)), tuple(after)  # `can_train` says post-norm: no layer norm comes last
