"""What the passes of `training_cuda_passes.py` keep and share: parameters by name, what is saved, sums over all rows.

Shape suffixes: B batch, N tokens, C channels, H heads, D = C / H channels a head. Rows are tokens of all sequences,
(B N, C); after the last mixer only those that are kept.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from .. import kernels
from ..scan.state import ScanState

Tensors: TypeAlias = tuple[Tensor, ...]
TOKENS = 9  # parameters before the blocks'


class Weights(NamedTuple):
    """A block's parameters, or their gradients: weights w, biases b."""

    token: Tensor
    wq: Tensor
    bq: Tensor
    wk: Tensor
    bk: Tensor
    wv: Tensor
    bv: Tensor
    wo: Tensor
    bo: Tensor
    weight1: Tensor  # of the layer norm
    bias1: Tensor
    wu: Tensor  # up to the hidden units
    bu: Tensor
    wd: Tensor
    bd: Tensor
    weight2: Tensor
    bias2: Tensor


LOWERED = "wv", "bv", "wo", "wu", "wd"  # those that are multiplied in the type of the products


class Kept(NamedTuple):
    """What a block's backward pass reads; tokens are rows, in the type of the products where nothing else is said."""

    wv: Tensor  # in the type of the products, as wo, wu and wd
    wo: Tensor
    wu: Tensor
    wd: Tensor
    query: Tensor  # scaled, as `kernels/cuda/scores.py` has it; float32, as its map ws, bs
    ws: Tensor
    bs: Tensor
    low: Tensor  # the block's tokens
    values: Tensor  # (B, H, N, D)
    outputs: Tensor  # of the scan, (B, H, N, D)
    weights: Tensor  # of every position for itself, (B, H, N), float32
    last_u: Tensor  # of the state after the last token, (B, H), float64
    normed1: Tensor  # by the first layer norm, as inverse1; float32
    inverse1: Tensor
    middle: Tensor  # the MLP's input
    active: Tensor  # its hidden units after GELU, rows of 4 C
    slope: Tensor  # of GELU there
    normed2: Tensor
    inverse2: Tensor


class Call(NamedTuple):
    """What is not differentiated.

    Attributes:
        steps: their numbers, times and starts.
        heads: of every mixer.
        dtype: of the matrix products.
        epsilons: of the tokens' layer norm, and of every block's two.
        dropout: of every block's two residual connections.
        states: of every block before the steps; None where there were none.
    """

    steps: Any
    heads: int
    dtype: torch.dtype
    epsilons: tuple[float, ...]
    dropout: float
    states: Sequence[ScanState] | None


class Sums:
    """Sums over all rows, in parts side by side, so that they are added up in one operation.

    Args:
        channels: C.
        heads: H.
        layers: the number of blocks.
        like: on whose device they are.
    """

    def __init__(self, channels: int, heads: int, layers: int, like: Tensor) -> None:
        """Every part is to be filled."""
        kernel = gpu_kernels()
        sizes = {"tokens": kernel.tokens.columns(channels, heads)}
        for i in range(layers):
            following = 0 if i == layers - 1 else heads
            sizes[f"norm1 {i}"] = kernel.residual.columns(channels, 0)
            sizes[f"norm2 {i}"] = kernel.residual.columns(channels, following)
            sizes[f"hidden {i}"] = 4 * channels
        ends = [0, *itertools.accumulate(sizes.values())]
        self._places = {name: slice(*ends[i : i + 2]) for i, name in enumerate(sizes)}
        self._parts = torch.empty(kernel.launching.PARTS, ends[-1], device=like.device)

    def part(self, name: str) -> Tensor:
        """Where a kernel leaves its sums."""
        return self._parts[:, self._places[name]]

    def totals(self) -> dict[str, Tensor]:
        """Each kernel's sums."""
        total = self._parts.sum(0)
        return {name: total[place] for name, place in self._places.items()}


class Kernels(NamedTuple):
    """The modules of kernels, which need Triton."""

    tokens: ModuleType
    residual: ModuleType
    gelu: ModuleType
    scores: ModuleType
    scan: ModuleType
    launching: ModuleType

    @property
    def scoring(self) -> Any:  # noqa: ANN401  a class of the kernels'
        """Of the map from normalised tokens to scores."""
        return self.residual.Scoring


@functools.cache
def gpu_kernels() -> Kernels:
    """Imports them; raises ImportError without Triton."""
    names = "cuda.tokens", "cuda.residual_norm", "cuda.gelu", "cuda.scores", "scan_triton", "cuda.launching"
    return Kernels(*map(kernels.load_kernels, names))


def block_weights(parameters: Tensors) -> list[Weights]:
    """Of all parameters, those of every block."""
    return [Weights(*some) for some in groups(parameters[TOKENS:-2], len(Weights._fields))]


def token_layers(parameters: Tensors) -> Any:  # noqa: ANN401  of the kernels
    """Of all parameters, those before the blocks."""
    maps = tuple(groups(parameters[: TOKENS - 3], 2))
    return gpu_kernels().tokens.Layers(maps, *parameters[TOKENS - 3 : TOKENS])


def lowered(blocks: Sequence[Weights], head: Tensors, dtype: torch.dtype) -> list[Any]:
    """The weights of the products in their type, five of every block and the head's two, all in one operation."""
    whole = [getattr(weights, name) for weights in blocks for name in LOWERED] + list(head)
    if dtype == torch.float32:
        lows = whole
    else:
        lows = [torch.empty_like(part, dtype=dtype) for part in whole]
        torch._foreach_copy_(lows, whole)
    return [*groups(lows[: -len(head)], len(LOWERED)), *lows[-len(head) :]]


def groups(tensors: Sequence[Tensor], size: int) -> list[Tensors]:
    """As many at a time."""
    return [tuple(tensors[at : at + size]) for at in range(0, len(tensors), size)]


def by_heads(rows: Tensor, batch: int, heads: int) -> Tensor:
    """(B N, C) -> (B, H, N, D)."""
    return rows.view(batch, -1, heads, rows.shape[-1] // heads).transpose(1, 2)


def by_rows(values: Tensor) -> Tensor:
    """The inverse of `_heads`."""
    return values.transpose(1, 2).flatten(2).flatten(0, 1)
