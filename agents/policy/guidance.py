"""Variants of a trained policy: with tree attention, and with guidance.

Guidance amplifies the effect of the target return: a policy trained on data of one behavior policy acts nearly the same
for every target. The model runs twice per step, with the target return and with the expected return-to-go
(`ReturnEstimate`), and the action is

    a = a_expected + W (a_asked - a_expected),

within the action bounds; discrete actions use such logits. This is classifier-free guidance (Ho & Salimans 2022), but
away from the expected return instead of a model without returns. Both runs get the executed action, and their states
are one batch.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..mixers.tree.mixer import TreeAttention, TreeConfig, plant_trees
from ..model.decision import ReturnEstimate
from ..model.scaling import Step
from .torch_policy import Policy, _exact

if TYPE_CHECKING:
    import numpy.typing as npt

    from .memory import Memory


def with_guidance(policy: Policy, guidance: float) -> Policy:
    """The policy with guidance W; without guidance for W = 1.

    Raises:
        ValueError: the guidance is below 1 or not finite, or the model cannot estimate the expected return-to-go.
    """
    if not (math.isfinite(guidance) and guidance >= 1):
        raise ValueError(f"guidance must be a number from 1, not {guidance}")
    if guidance == 1 and not isinstance(policy, GuidedPolicy):
        return policy
    own = {part.name: getattr(policy, part.name) for part in fields(Policy) if part.init}
    return Policy(**own) if guidance == 1 else GuidedPolicy(**own, guidance=float(guidance))


@dataclass(frozen=True)
class GuidedPolicy(Policy):
    """A policy with guidance. It acts in B environments as `Policy` does; its memory has both runs, 2 B rows.

    Attributes:
        guidance: W.
    """

    guidance: float = 1.0

    runs = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._mean_return_estimate is None:
            raise ValueError("this policy holds no estimate of the expected return-to-go, which guidance needs")

    @cached_property
    def _mean_return_estimate(self) -> ReturnEstimate | None:
        return _exact(self.model.mean_return_estimate)

    def _act(self, step: Step, memory: Memory) -> tuple[npt.NDArray[np.float32], Memory]:
        assert self._mean_return_estimate is not None
        asked = step.return_to_go, self._estimate(self._mean_return_estimate, step.observation)
        parts: Any = step
        twice: Any = (x if x is None or isinstance(x, int) else np.concatenate([x, x]) for x in parts)
        both, memory = super()._act(Step(*twice)._replace(return_to_go=np.concatenate(asked)), memory)
        wanted, expected = np.split(both, 2)
        guided = expected + np.float32(self.guidance) * (wanted - expected)
        if self.discrete:
            return guided, memory
        middle, half = (x.cpu().numpy() for x in (self._scaling.action_middle, self._scaling.action_half))
        return np.clip(guided, middle - half, middle + half), memory


def with_tree_attention(policy: Policy, config: TreeConfig) -> Policy:
    """A copy of the policy whose layers attend through a tree of the episode so far, with the same weights.

    Raises:
        ValueError: the mixer is not softmax attention over the tokens, or the rollout mode has no key-value cache.
    """
    if policy.rollout == "window":
        raise ValueError("tree attention needs a growing memory: use rollout recurrent or staggered, not window")
    model = copy.deepcopy(policy.model)
    model.config = replace(model.config, mixer="attention")  # its fields about tree attention are no longer valid
    plant_trees(model.trunk, config)
    return replace(policy, model=model)


def with_softmax_attention(policy: Policy) -> Policy:
    """A copy with exact attention of a policy trained to act with a tree; any other policy unchanged."""
    if policy.model.config.mixer != "tree":
        return policy
    model = copy.deepcopy(policy.model)
    model.config = replace(model.config, mixer="attention")
    return replace(policy, model=model)


def tree_config(policy: Policy) -> TreeConfig | None:
    """How the tree attention of the policy is computed; None if it has none."""
    mixer, config = policy.model.trunk.mixer, policy.model.config
    if isinstance(mixer, TreeAttention):
        return mixer.config
    return config.tree() if config.mixer == "tree" and policy.rollout != "window" else None
