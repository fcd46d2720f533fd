"""The stack of blocks between the token embedding and the action head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

from torch import Tensor, nn

from .mixers import Aaren, AarenRsa, Attention, AttentionState, Encoded, EncodedState, Rsa
from .mixers.rsa.config import RemConfig
from .products import products_dtype
from .residual import ResidualNorm
from .scan.state import ScanState
from .trained_block import can_train, train_blocks

Mixer: TypeAlias = Aaren | Attention | Encoded
MIXERS: dict[str, Callable[..., Mixer]] = {  # of width, heads, dropout inside the mixer, recurrence encoding
    "aaren": lambda width, heads, _dropout=0.0, _rems=None: Aaren(width, heads),
    "attention": lambda width, heads, dropout=0.0, _rems=None: Attention(width, heads, dropout),
    "aaren-rsa": lambda width, heads, _dropout=0.0, rems=None: AarenRsa(width, heads, rems=rems),
    "rsa": lambda width, heads, dropout=0.0, rems=None: Rsa(width, heads, dropout, rems),
    # Trained as "attention"; at rollout `DecisionModel.for_rollout` puts trees in its place.
    "tree": lambda width, heads, dropout=0.0, _rems=None: Attention(width, heads, dropout),
}
MixerState: TypeAlias = ScanState | AttentionState | EncodedState
TrunkState: TypeAlias = tuple[MixerState, ...]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu-tanh": partial(nn.GELU, approximate="tanh"),
    "relu": nn.ReLU,
}


class Block(nn.Module):
    """x = LN1(x + mixer(x)); x = LN2(x + MLP(x)): the block of min-decision-transformer, the paper's code base.

    Args:
        mixer: a name in MIXERS.
        width: C, channels of a token; the MLP has 4 C hidden units.
        heads: heads of the mixer.
        dropout: probability, on the outputs of the mixer and of the MLP, and on attention's weights.
        rems: recurrence encoding, of the mixers that have one.
        activation: of the MLP, a name in ACTIVATIONS.
    """

    def __init__(
        self,
        mixer: str,
        width: int,
        heads: int,
        dropout: float = 0.0,
        rems: RemConfig | None = None,
        activation: str = "gelu",
    ) -> None:
        """Builds mixer, layer norms and MLP; raises ValueError if `heads` does not divide `width`."""
        super().__init__()
        self.mixer = MIXERS[mixer](width, heads, dropout, rems)
        self.norm1: nn.LayerNorm = ResidualNorm(width, dropout)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), ACTIVATIONS[activation](), nn.Linear(4 * width, width))
        self.norm2: nn.LayerNorm = ResidualNorm(width, dropout)

    def forward(
        self, x: Tensor, state: MixerState | None, starts: Tensor | None = None, keep: slice | None = None
    ) -> tuple[Tensor, MixerState]:
        """Tokens (B, N, C) in parallel; with `keep`, nothing after the mixer is computed for other positions."""
        y, state = self.mixer(x, state, starts=starts, keep=keep)
        return self._rest(x if keep is None else x[:, keep], y), state

    def step(self, x: Tensor, state: MixerState) -> tuple[Tensor, MixerState]:
        """One token (B, C)."""
        y, state = self.mixer.step(x, state)  # type: ignore[arg-type]  # the state is this mixer's own
        return self._rest(x, y), state

    def _rest(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.norm1(x, y)
        out: Tensor = self.norm2(x, self.mlp(x))
        return out


class PreNormBlock(Block):
    """x = x + mixer(LN1(x)); x = x + MLP(LN2(x)): the block of GPT-2 and of Hugging Face's Decision Transformer."""

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401  those of Block
        """As `Block`."""
        super().__init__(*arguments, **named)
        assert isinstance(self.norm1, ResidualNorm)
        width, self.dropout = self.norm1.normalized_shape, self.norm1.dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(
        self, x: Tensor, state: MixerState | None, starts: Tensor | None = None, keep: slice | None = None
    ) -> tuple[Tensor, MixerState]:
        """Tokens (B, N, C) in parallel; with `keep`, nothing after the mixer is computed for other positions."""
        y, state = self.mixer(self.norm1(x), state, starts=starts, keep=keep)
        return self._rest(x if keep is None else x[:, keep], y), state

    def step(self, x: Tensor, state: MixerState) -> tuple[Tensor, MixerState]:
        """One token (B, C)."""
        y, state = self.mixer.step(self.norm1(x), state)  # type: ignore[arg-type]  # as in Block
        return self._rest(x, y), state

    def _rest(self, x: Tensor, y: Tensor) -> Tensor:
        x = x + self.dropout(y)
        out: Tensor = x + self.dropout(self.mlp(self.norm2(x)))
        return out


BLOCKS: dict[str, type[Block]] = {"post-norm": Block, "pre-norm": PreNormBlock}


class Trunk(nn.Module):
    """A stack of blocks with one state: a tuple of the mixers' states.

    Args:
        mixer: a name in MIXERS.
        width: channels of a token.
        layers: number of blocks.
        heads: heads of every mixer.
        dropout: probability.
        rems: recurrence encoding of every layer, where the mixer has one.
        block: a name in BLOCKS; after "pre-norm" blocks there is one more layer norm, as in GPT-2.
        activation: of the MLPs, a name in ACTIVATIONS.
    """

    def __init__(
        self,
        mixer: str,
        width: int,
        layers: int,
        heads: int,
        dropout: float = 0.0,
        rems: RemConfig | None = None,
        block: str = "post-norm",
        activation: str = "gelu",
    ) -> None:
        """Builds the blocks; raises ValueError if `heads` does not divide `width`."""
        super().__init__()
        self.blocks = nn.ModuleList(
            BLOCKS[block](mixer, width, heads, dropout, rems, activation) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width) if block == "pre-norm" else nn.Identity()

    def forward(
        self,
        x: Tensor,
        state: TrunkState | None = None,
        *,
        starts: Tensor | None = None,
        keep: slice | None = None,
        low: Tensor | None = None,
    ) -> tuple[Tensor, TrunkState]:
        """Tokens (B, N, C) -> (B, N, C), in parallel, continuing from `state`.

        Args:
            x: tokens (B, N, C).
            state: one mixer state a block, of the tokens before.
            starts: bool (B, N), True where a new sequence begins.
            keep: the positions that are read; the last block computes no others past its mixer.
            low: x again in the type of the matrix products, where it is at hand; read where `can_train` says so.
        """
        blocks = cast("Sequence[Block]", self.blocks)
        if self.can_train(x, state):
            x, trained = train_blocks(blocks, x, x.to(products_dtype(x)) if low is None else low, starts, keep)
            return self.norm(x), tuple(trained)
        states = []
        for i, block in enumerate(blocks):
            last = i == len(self.blocks) - 1
            x, new = block(x, None if state is None else state[i], starts, keep if last else None)
            states.append(new)
        return self.norm(x), tuple(states)

    def can_train(self, x: Tensor, state: TrunkState | None) -> bool:
        """Whether tokens of x's type and device go through the blocks as one operation each."""
        return can_train(cast("Sequence[Block]", self.blocks), x, state)

    def step(self, x: Tensor, state: TrunkState) -> tuple[Tensor, TrunkState]:
        """One token (B, C) -> (B, C)."""
        states = []
        for block, old in zip(self.blocks, state, strict=True):
            assert isinstance(block, Block)
            x, new = block.step(x, old)
            states.append(new)
        return self.norm(x), tuple(states)

    def initial_state(self, batch_size: int) -> TrunkState:
        """The state before any token."""
        return tuple(block.mixer.initial_state(batch_size) for block in self.blocks)  # type: ignore[union-attr,operator]
