"""What every mixer is; `agents/mixers/__init__.py` says how to add one.

Shape suffixes: B batch, N tokens, C channels, H heads, D = C / H channels a head.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeAlias

from torch import Tensor, nn

from ..scan.rows import RowModule, State

if TYPE_CHECKING:
    from .rsa import GatedEncoding, RemConfig


Mixed: TypeAlias = tuple[Tensor, Tensor, State]  # outputs of the heads, values, and the state


@dataclass(frozen=True)
class MixerConfig:
    """The settings of a model that decide a mixer; each mixer takes those that it has.

    Attributes:
        width: C, channels of a token.
        heads: H; must divide C, where the mixer has heads.
        dropout: probability.
        forget_gate: whether tokens fade those before them.
        rems: recurrence encoding; None: the default one.
    """

    width: int
    heads: int
    dropout: float = 0.0
    forget_gate: bool = False
    rems: RemConfig | None = None


class StepWeights(NamedTuple):
    """The weights of Aaren, from which `kernels/step.py` computes a step.

    Attributes:
        weight: of a token's values, scores and, with a forget gate, gates: (C + H or C + 2 H, C).
        bias: likewise, (C + H or C + 2 H,).
        output: W_o.
        heads: H.
        encoding: recurrence encoding around the heads; None: there is none.
    """

    weight: Tensor
    bias: Tensor
    output: nn.Linear
    heads: int
    encoding: GatedEncoding | None = None


class Mixer(RowModule):
    """A token mixer, and what it declares of itself, so that nothing else lists mixers by these properties.

    What is declared holds for that class alone: a subclass, which may compute something else, declares its own.

    Attributes:
        constant_state: whether the size of the state does not grow with the tokens seen. Such a state can be carried
            through training and begun again in some rows of a batch.
        compiled_step: whether `kernels/step.py` computes its step, from its `step_weights`.
        capturable: whether it launches the same for the same shapes and waits for nothing, as CUDA graphs need.
        takes: the settings of `MixerConfig` that `build` uses besides the width: those that `__init__` names.
    """

    constant_state: bool = False
    compiled_step: bool = False
    capturable: bool = False
    takes: ClassVar[frozenset[str]]

    DECLARED: ClassVar[tuple[str, ...]] = ("constant_state", "compiled_step", "capturable")

    def __init_subclass__(cls, **keywords: Any) -> None:  # Python's own
        super().__init_subclass__(**keywords)
        for name in Mixer.DECLARED:
            if name not in vars(cls):
                setattr(cls, name, False)
        if "takes" not in vars(cls):
            named = {field.name for field in fields(MixerConfig)} - {"width"}
            cls.takes = frozenset(named & signature(cls.__init__).parameters.keys())

    @classmethod
    def build(cls, config: MixerConfig) -> Self:
        """The mixer of a model with these settings, of which it takes the width and those in `takes`."""
        return cls(config.width, **{name: getattr(config, name) for name in cls.takes})

    def step_weights(self) -> StepWeights:
        """Its current weights for `kernels/step.py`; of a mixer with a compiled step."""
        raise NotImplementedError


def check_heads(width: int, heads: int) -> None:
    """Raises ValueError unless heads divide the width."""
    if heads < 1 or width % heads:
        raise ValueError(f"width {width} is not a multiple of heads {heads}")


class HeadMixer(Mixer):
    """A mixer of heads over values, W_o mix(x), around whose heads recurrence encoding can be put."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        check_heads(width, heads)
        self.heads, self.head_dim = heads, width // heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.output = nn.Linear(width, width), nn.Linear(width, width)

    def run(self, x: Tensor, state: State | None, starts: Tensor | None, keep: slice | None) -> tuple[Tensor, State]:
        mixed, _, state = self.mix(x, state, starts, keep)
        return self.project(mixed.transpose(1, 2)), state

    def run_one(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        mixed, _, state = self.mix_step(x, state)
        return self.project(mixed), state

    def mix(self, x: Tensor, state: State | None, starts: Tensor | None = None, keep: slice | None = None) -> Mixed:
        """`forward` up to the heads' outputs where kept (B, H, N', D); also all values (B, H, N, D) and the state."""
        raise NotImplementedError

    def mix_step(self, x: Tensor, state: State) -> Mixed:
        """`step` up to the heads' outputs (B, H, D); the value (B, H, D); the new state."""
        mixed, values, state = self.mix(x.unsqueeze(1), state)
        return mixed.squeeze(2), values.squeeze(2), state

    def project(self, mixed: Tensor) -> Tensor:
        """The heads' outputs (..., H, D) joined, through W_o: (..., C)."""
        return self.output(mixed.flatten(-2))  # type: ignore[no-any-return]

    def split(self, x: Tensor) -> Tensor:
        """The heads' channels apart, (..., N, C) -> (..., H, N, D)."""
        return x.unflatten(-1, (self.heads, self.head_dim)).transpose(-3, -2)  # type: ignore[no-any-return]
