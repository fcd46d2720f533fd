"""What decides a decision model's shape, without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...base.fields import BELOW_1, COUNT, COUNT_FROM_0, DILATION, Range, check_limits, setting

if TYPE_CHECKING:
    from ..mixers.rsa import RemConfig
    from ..mixers.tree import TreeConfig


BLOCKS, ACTIVATIONS = ("post-norm", "pre-norm"), ("gelu", "gelu-tanh", "relu")


@dataclass(frozen=True)
class ModelConfig:
    """Everything that decides the model's shape; stored with its weights.

    Attributes:
        observation_dim, action_dim: O and A.
        mixer: a name in MIXERS.
        width: C, channels of a token.
        layers: number of blocks.
        heads: of every mixer; must divide `width`.
        dropout: probability.
        action_dropout: probability that a training step does not see the action before it, as in the first step of an
            episode (past motion dropout, Bansal et al. 2018). None: 0.5 where actions are discrete, else 0.
        forget_gate: of Aaren: every token fades those before it, by a gate per head.
        max_timestep: rows of the timestep embedding, if there is one; later steps use the last row.
        rem_counts, rem_dilation, rem_max_power, rem_gate: recurrence encoding, see `parse_counts` and `RemConfig`.
        block: "post-norm" (min-decision-transformer, the paper's code base) or "pre-norm" (GPT-2).
        activation: of the MLPs, "gelu", "gelu-tanh" or "relu".
        timestep_embedding: whether tokens carry the time step, from a table with a row for each.
        timestep_std: deviation of that embedding before training. At 1, as `nn.Embedding` draws it, it is noise on
            every token that takes half of the training to unlearn.
        return_conditioned: whether the return-to-go is seen; without, its token's weights are zero and not trained, and
            the model clones behavior.
        tree_budget, tree_sampler: of the mixer "tree" at rollout, as in `TreeConfig`.
        max_return_estimate: whether the model holds a `ReturnEstimate`.
        tokens_per_step: J, 1 or 3.
        discrete: whether an action is one of A, a one-hot vector, and the model gives their logits.
    """

    observation_dim: int = field(metadata={"limits": COUNT})
    action_dim: int = field(metadata={"limits": COUNT})
    mixer: str = "aaren"
    width: int = setting(128, "channels of a token", COUNT)
    layers: int = setting(3, "number of blocks", Range(1, 1000))
    heads: int = setting(4, "heads of a mixer", COUNT)
    dropout: float = setting(0.1, "dropout probability", BELOW_1)
    action_dropout: float | None = setting(
        None, "share of training steps that do not see the last action (default: 0.5 of discrete ones, else 0)", BELOW_1
    )
    forget_gate: bool = setting(False, "of Aaren: every token fades those before it, by a gate per head")
    max_timestep: int = setting(1000, limits=COUNT)
    rem_counts: str = setting(
        "auto", "of the -rsa agents: heads with each recurrence encoding, k1,...,k6 (RSA, section 3)"
    )
    rem_dilation: int = setting(2, "dilation of k4 to k6, in environment steps", Range(1, DILATION))
    rem_max_power: int | None = setting(
        None, "mask larger powers; 0: none (default: 200 for decision-rsa, else 0)", COUNT_FROM_0
    )
    rem_gate: float = setting(0.0, "mu before training; sigmoid(mu) is the encoding's share", Range(-3, 3))
    block: str = "post-norm"
    activation: str = "gelu"
    timestep_embedding: bool = setting(True, "tell the model the time step")
    timestep_std: float = setting(0.02, "deviation of the time steps' embedding before training", Range(0, 10))
    return_conditioned: bool = True
    tree_budget: float = setting(0.5, "E of decision-transformer-tree: l^E terms for l tokens; 1 is exact", Range(0, 1))
    tree_sampler: str = setting("edh", "its sampler, a name in aaren_rl.nn.SAMPLERS")
    max_return_estimate: bool = setting(
        False,
        "also train an estimator of the maximum achievable return (0.995 expectile), for --target-return auto",
    )
    tokens_per_step: int = setting(
        1, "1, or 3: return-to-go, observation and action apart (Decision Transformer)", Range(1, 3)
    )
    discrete: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError naming the field that does not fit."""
        from ..mixers import MIXERS  # with torch
        from ..mixers.base import check_heads

        check_limits(self)
        check_names(self.mixer, self.block, self.activation)
        if "heads" in MIXERS[self.mixer].takes:
            check_heads(self.width, self.heads)
        if self.tokens_per_step not in (1, 3):
            raise ValueError(f"tokens_per_step must be 1 or 3, not {self.tokens_per_step}")
        self.rems()
        self.tree()

    @property
    def actions_dropped(self) -> float:
        """`action_dropout`, or its default."""
        return (0.5 if self.discrete else 0.0) if self.action_dropout is None else self.action_dropout

    def rems(self) -> RemConfig | None:
        """Recurrence encoding of a layer; None for a mixer without one. Raises ValueError where it does not fit."""
        from ..mixers import MIXERS  # with torch
        from ..mixers.rsa import RemConfig, parse_counts

        if "rems" not in MIXERS[self.mixer].takes:
            return None
        counts = parse_counts(self.rem_counts, self.heads)
        dilation = self.rem_dilation * self.tokens_per_step
        return RemConfig(counts, dilation, self.rem_max_power, self.rem_gate)

    def tree(self) -> TreeConfig | None:
        """Tree attention at rollout, of the mixer "tree" alone; raises ValueError where it does not fit."""
        from ..mixers.tree import TreeConfig  # with torch

        return TreeConfig(self.tree_budget, self.tree_sampler) if self.mixer == "tree" else None


def check_names(mixer: str, block: str, activation: str) -> None:
    """Raises ValueError where one is not known."""
    from ..mixers import MIXERS  # with torch

    known = (("mixer", mixer, MIXERS), ("block", block, BLOCKS), ("activation", activation, ACTIVATIONS))
    for what, name, allowed in known:
        if name not in allowed:
            raise ValueError(f"{what} {name!r} is not one of {', '.join(allowed)}")
