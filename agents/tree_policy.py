"""A trained Transformer policy made to act with tree attention."""

from __future__ import annotations

import copy
from dataclasses import replace

from .decision import DecisionModel
from .mixers.attention import Attention, AttentionState
from .mixers.tree import TreeAttention, TreeConfig
from .policy import Policy
from .trunk import Block, TrunkState


def with_tree_attention(policy: Policy, config: TreeConfig) -> Policy:
    """A copy of the policy whose layers attend through a tree of the episode so far; the weights stay as they are.

    Raises:
        ValueError: the model's mixer is not softmax attention over the tokens, or the rollout keeps no cache of them.
    """
    if policy.model.config.mixer != "attention":
        raise ValueError(
            f"tree attention replaces a Transformer's softmax attention; this policy's mixer is "
            f"{policy.model.config.mixer!r}, which has none"
        )
    if policy.rollout == "window":
        raise ValueError("tree attention needs a growing memory: use the rollout carry or rolling, not window")
    model = copy.deepcopy(policy.model)
    for layer, block in enumerate(model.trunk.blocks):
        assert isinstance(block, Block) and isinstance(block.mixer, Attention)
        block.register_module("mixer", TreeAttention(block.mixer, config, layer))
    return replace(policy, model=model)


def tree_config(model: DecisionModel) -> TreeConfig | None:
    """How the model's tree attention is computed; None where it has none."""
    mixer = model.trunk.blocks[0].mixer
    return mixer.config if isinstance(mixer, TreeAttention) else None


def tree_state(model: DecisionModel, caches: TrunkState) -> TrunkState:
    """The state of a model with tree attention after the tokens in the key-value caches of the model it was made of."""
    states = []
    for block, cache in zip(model.trunk.blocks, caches, strict=True):
        assert isinstance(block, Block) and isinstance(cache, AttentionState)
        mixer = block.get_submodule("mixer")
        assert isinstance(mixer, TreeAttention)
        states.append(mixer.from_cache(cache))
    return tuple(states)  # type: ignore[arg-type]  # a state of its own kind, which only these mixers see
