"""The stack of blocks between the token embedding and the action head, each of a mixer and a feed-forward network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

from ..mixers import MIXERS
from ..mixers.base import Mixer, MixerConfig
from ..mixers.rsa import RemConfig
from ..mixers.tree import TreeConfig, plant_trees
from ..scan.rows import RowModule, State

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu-tanh": partial(nn.GELU, approximate="tanh"),
    "relu": nn.ReLU,
}
TrunkState: TypeAlias = tuple[State, ...]  # of every mixer


class Dropout(nn.Module):
    """Zeroes elements with a probability, in steps of 1 / 256, and scales the others to keep the mean, in training.

    One random byte per element: on a CPU a seventh of the time of `nn.Dropout`, which takes a tenth of a gradient step.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.dropped = min(round(256 * probability), 255)

    def forward(self, x: Tensor) -> Tensor:
        """x of any shape; the same object where nothing is dropped."""
        if not self.training or not self.dropped:
            return x
        words = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device).random_(-(2**63), None)
        mask = words.view(torch.uint8)[: x.numel()].view(x.shape).to(x.dtype)
        return x * mask.ge_(self.dropped).mul_(256 / (256 - self.dropped))


class Block(nn.Module):
    """x = LN1(x + mixer(x)); x = LN2(x + MLP(x)): the block of min-decision-transformer, the paper's code base.

    Args:
        mixer: a name in MIXERS.
        config: of the mixer; its dropout is on the outputs of the mixer and of the MLP, and on attention's weights.
        activation: of the MLP, a name in ACTIVATIONS.
        mlp_width: hidden units of the MLP; 4 C by default.
    """

    def __init__(self, mixer: str, config: MixerConfig, activation: str = "gelu", mlp_width: int | None = None) -> None:
        super().__init__()
        width = config.width
        self.mixer: Mixer = MIXERS[mixer].build(config)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        hidden = 4 * width if mlp_width is None else mlp_width
        self.mlp = nn.Sequential(nn.Linear(width, hidden), ACTIVATIONS[activation](), nn.Linear(hidden, width))
        self.dropout = Dropout(config.dropout)

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
        return self.norm2(x + self.dropout(self.mlp(x)))  # type: ignore[no-any-return]


class PreNormBlock(Block):
    """x = x + mixer(LN1(x)); x = x + MLP(LN2(x)): the block of GPT-2 and of Hugging Face's Decision Transformer."""

    def _read(self, x: Tensor) -> Tensor:
        return self.norm1(x)  # type: ignore[no-any-return]

    def _rest(self, x: Tensor, y: Tensor) -> Tensor:
        x = x + self.dropout(y)
        return x + self.dropout(self.mlp(self.norm2(x)))  # type: ignore[no-any-return]


BLOCKS: dict[str, type[Block]] = {"post-norm": Block, "pre-norm": PreNormBlock}


def check_names(mixer: str, block: str, activation: str) -> None:
    """Raises ValueError where one is not known."""
    known: dict[str, tuple[str, Collection[str]]]
    known = {"mixer": (mixer, MIXERS), "block": (block, BLOCKS), "activation": (activation, ACTIVATIONS)}
    for what, (name, allowed) in known.items():
        if name not in allowed:
            raise ValueError(f"{what} {name!r} is not one of {', '.join(allowed)}")


class Trunk(RowModule):
    """A stack of blocks with one state: a tuple of the mixers' states.

    Args:
        mixer: a name in MIXERS.
        width: C, channels of a token.
        layers: number of blocks.
        heads: of every mixer.
        dropout: probability.
        rems: recurrence encoding of every layer, where the mixer has one; None: the default one.
        block: a name in BLOCKS; after "pre-norm" blocks there is one more layer norm, as in GPT-2.
        activation: of the MLPs, a name in ACTIVATIONS.
        mlp_width: hidden units of the MLPs; 4 C by default.
        forget_gate: whether tokens fade those before them, where the mixer has a gate.
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
        forget_gate: bool = False,
    ) -> None:
        super().__init__()
        check_names(mixer, block, activation)
        config = MixerConfig(width, heads, dropout, forget_gate, rems)
        self.blocks = nn.ModuleList(BLOCKS[block](mixer, config, activation, mlp_width) for _ in range(layers))
        self.norm = nn.LayerNorm(width) if block == "pre-norm" else nn.Identity()

    @property
    def mixer(self) -> Mixer:
        """The first block's: what it declares of itself holds for all."""
        return self.blocks[0].get_submodule("mixer")  # type: ignore[return-value]

    def run(
        self, x: Tensor, state: TrunkState | None, starts: Tensor | None, keep: slice | None
    ) -> tuple[Tensor, TrunkState]:
        states = []
        self._check_state(state)
        for i, block in enumerate(self.blocks):
            last = i == len(self.blocks) - 1  # which computes no positions but the kept past its mixer
            x, new = block(x, None if state is None else state[i], starts, keep if last else None)
            states.append(new)
        return self.norm(x), tuple(states)

    def run_one(self, x: Tensor, state: TrunkState) -> tuple[Tensor, TrunkState]:
        states = []
        self._check_state(state)
        for block, old in zip(self.blocks, state, strict=True):
            x, new = block.step(x, old)  # type: ignore[operator]
            states.append(new)
        return self.norm(x), tuple(states)

    def _check_state(self, state: TrunkState | None) -> None:
        if state is not None and len(state) != len(self.blocks):
            raise ValueError(f"the state is of {len(state)} blocks, and the trunk has {len(self.blocks)}")

    def initial_state(self, batch_size: int) -> TrunkState:
        """The state before any token."""
        return tuple(block.mixer.initial_state(batch_size) for block in self.blocks)  # type: ignore[union-attr,operator]

    def with_trees(self, config: TreeConfig) -> Trunk:
        """A copy for evaluation that attends through a tree of the tokens so far (Menet et al.), with today's weights.

        Raises:
            ValueError: no block's mixer is softmax attention.
        """
        planted = copy.deepcopy(self).eval().requires_grad_(False)
        plant_trees(planted, config)
        return planted
