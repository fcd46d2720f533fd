"""The stack of blocks between the token embedding and the action head."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from ..mixers import Mixer
from ..mixers.rsa.config import RemConfig
from ..mixers.tree.mixer import TreeAttention, TreeConfig, plant_trees
from ..scan.rows import RowModule
from .block import BLOCKS, Block, TrunkState


class Trunk(RowModule):
    """A stack of blocks with one state: a tuple of the mixers' states.

    Args:
        mixer, width, heads, dropout, rems, activation, mlp_width: as in `Block`.
        layers: number of blocks.
        block: a name in BLOCKS; after "pre-norm" blocks there is one more layer norm, as in GPT-2.
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
        mlp_width: int | None = None,
    ) -> None:
        super().__init__()
        of_blocks = mixer, width, heads, dropout, rems, activation, mlp_width
        self.blocks = nn.ModuleList(BLOCKS[block](*of_blocks) for _ in range(layers))
        self.norm = nn.LayerNorm(width) if block == "pre-norm" else nn.Identity()

    @property
    def mixer(self) -> Mixer:
        """The first block's: what it declares of itself holds for all."""
        block = self.blocks[0]
        assert isinstance(block, Block)
        return block.mixer

    def run(
        self, x: Tensor, state: TrunkState | None, starts: Tensor | None, keep: slice | None
    ) -> tuple[Tensor, TrunkState]:
        states = []
        for i, block in enumerate(self.blocks):
            last = i == len(self.blocks) - 1  # which computes no positions but the kept past its mixer
            x, new = block(x, None if state is None else state[i], starts, keep if last else None)
            states.append(new)
        return self.norm(x), tuple(states)

    def run_one(self, x: Tensor, state: TrunkState) -> tuple[Tensor, TrunkState]:
        states = []
        for block, old in zip(self.blocks, state, strict=True):
            assert isinstance(block, Block)
            x, new = block.step(x, old)
            states.append(new)
        return self.norm(x), tuple(states)

    def initial_state(self, batch_size: int) -> TrunkState:
        return tuple(block.mixer.initial_state(batch_size) for block in self.blocks)  # type: ignore[union-attr,operator]

    def with_trees(self, config: TreeConfig) -> Trunk:
        """A copy for evaluation that attends through a tree of the tokens so far (Menet et al.), with today's weights.

        Raises:
            ValueError: no block's mixer is softmax attention.
        """
        planted = copy.deepcopy(self).eval().requires_grad_(False)
        plant_trees(planted, config)
        if not any(isinstance(module, TreeAttention) for module in planted.modules()):
            raise ValueError("tree attention takes the place of softmax attention, and this trunk has none")
        return planted
