"""One block of the stack: a mixer and a feed-forward network, each with its residual connection."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from torch import Tensor, nn

from ..mixers import MIXERS, Mixer
from ..mixers.rsa.config import RemConfig
from ..scan.rows import State

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu-tanh": partial(nn.GELU, approximate="tanh"),
    "relu": nn.ReLU,
}
TrunkState: TypeAlias = tuple[State, ...]  # of every mixer


class Block(nn.Module):
    """x = LN1(x + mixer(x)); x = LN2(x + MLP(x)): the block of min-decision-transformer, the paper's code base.

    Args:
        mixer: a name in MIXERS.
        width: C, channels of a token; the MLP has 4 C hidden units unless told otherwise.
        heads: heads of the mixer.
        dropout: probability, on the outputs of the mixer and of the MLP, and on attention's weights.
        rems: recurrence encoding, of the mixers that have one.
        activation: of the MLP, a name in ACTIVATIONS.
        mlp_width: hidden units of the MLP; 4 C by default.
    """

    def __init__(
        self,
        mixer: str,
        width: int,
        heads: int,
        dropout: float = 0.0,
        rems: RemConfig | None = None,
        activation: str = "gelu",
        mlp_width: int | None = None,
    ) -> None:
        super().__init__()
        self.mixer: Mixer = MIXERS[mixer](width, heads, dropout, rems)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        hidden = 4 * width if mlp_width is None else mlp_width
        self.mlp = nn.Sequential(nn.Linear(width, hidden), ACTIVATIONS[activation](), nn.Linear(hidden, width))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, state: State | None, starts: Tensor | None = None, keep: slice | None = None
    ) -> tuple[Tensor, State]:
        """Tokens (B, N, C) in parallel; with `keep`, nothing after the mixer is computed for other positions."""
        y, state = self.mixer(self._read(x), state, starts=starts, keep=keep)
        return self._rest(x if keep is None else x[:, keep], y), state

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One token (B, C)."""
        y, state = self.mixer.step(self._read(x), state)
        return self._rest(x, y), state

    def _read(self, x: Tensor) -> Tensor:
        return x  # what the mixer sees

    def _rest(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(y))
        out: Tensor = self.norm2(x + self.dropout(self.mlp(x)))
        return out


class PreNormBlock(Block):
    """x = x + mixer(LN1(x)); x = x + MLP(LN2(x)): the block of GPT-2 and of Hugging Face's Decision Transformer."""

    def _read(self, x: Tensor) -> Tensor:
        normalised: Tensor = self.norm1(x)
        return normalised

    def _rest(self, x: Tensor, y: Tensor) -> Tensor:
        x = x + self.dropout(y)
        out: Tensor = x + self.dropout(self.mlp(self.norm2(x)))
        return out


BLOCKS: dict[str, type[Block]] = {"post-norm": Block, "pre-norm": PreNormBlock}
