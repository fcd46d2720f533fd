"""The stack of blocks between the token embedding and the action head."""

from __future__ import annotations

from torch import Tensor, nn

from ..mixers.rsa.config import RemConfig
from .block import BLOCKS, Block, TrunkState


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
    ) -> tuple[Tensor, TrunkState]:
        """Tokens (B, N, C) -> (B, N, C), in parallel, continuing from `state`.

        Args:
            x: tokens (B, N, C).
            state: one mixer state a block, of the tokens before.
            starts: bool (B, N), True where a new sequence begins.
            keep: the positions that are read; the last block computes no others past its mixer.
        """
        states = []
        for i, block in enumerate(self.blocks):
            last = i == len(self.blocks) - 1
            x, new = block(x, None if state is None else state[i], starts, keep if last else None)
            states.append(new)
        return self.norm(x), tuple(states)

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
