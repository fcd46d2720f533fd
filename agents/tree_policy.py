"""A trained Transformer policy made to act with tree attention."""

from __future__ import annotations

import copy
from dataclasses import replace

from .mixers.tree.mixer import TreeAttention, TreeConfig, plant_trees
from .model.decision import DecisionModel
from .model.trunk import TrunkState
from .policy import Policy


def with_tree_attention(policy: Policy, config: TreeConfig) -> Policy:
    """A copy of the policy whose layers attend through a tree of the episode so far; the weights stay as they are.

    Raises:
        ValueError: the model's mixer is not softmax attention over the tokens, or the rollout keeps no cache of them.
    """
    if policy.rollout == "window":
        raise ValueError("tree attention needs a growing memory: use the rollout carry or rolling, not window")
    model = copy.deepcopy(policy.model)
    model.config = replace(model.config, mixer="attention")  # what it says of a tree of its own no longer holds
    plant_trees(model.trunk, config)
    return replace(policy, model=model)


def with_softmax_attention(policy: Policy) -> Policy:
    """A copy of the policy that attends exactly where it was trained to act with a tree; any other as it is."""
    if policy.model.config.mixer != "tree":
        return policy
    model = copy.deepcopy(policy.model)
    model.config = replace(model.config, mixer="attention")
    return replace(policy, model=model)


def tree_config(policy: Policy) -> TreeConfig | None:
    """How the policy's tree attention is computed; None where it has none."""
    mixer, config = policy.model.trunk.blocks[0].mixer, policy.model.config
    if isinstance(mixer, TreeAttention):
        return mixer.config
    return config.tree() if config.mixer == "tree" and policy.rollout != "window" else None


def tree_state(model: DecisionModel, caches: TrunkState) -> TrunkState:
    """The state of a model with tree attention after the tokens in the key-value caches of the model it was made of."""
    mixers = (block.get_submodule("mixer") for block in model.trunk.blocks)
    return tuple(mixer.from_cache(cache) for mixer, cache in zip(mixers, caches, strict=True))  # type: ignore[operator]
