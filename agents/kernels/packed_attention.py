"""Causal softmax attention over sequences packed into rows, on a GPU: no mask of N x N, no work for what it hides.

PyTorch's FlexAttention (Dong et al. 2024), compiled: blocks of positions none of which see one another are left out,
and the work grows with the squares of the sequences' lengths, not with that of the row's. Shapes do not depend on where
sequences begin, and nothing waits for the device. Shape suffixes: B rows, N positions, Q of them whose outputs are
wanted, H heads, D channels a head.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from . import on_gpu

BLOCK = 128  # positions
LEAST, MOST = 16, 256  # D, a power of two
TYPES = torch.float32, torch.bfloat16, torch.float16


def can_attend(values: Tensor, dropout: float) -> bool:
    """Whether `attend` can be called: on a GPU, for a size that its tiles have, without dropout of the weights."""
    dim = values.shape[-1]
    fits = LEAST <= dim <= MOST and dim & (dim - 1) == 0 and values.dtype in TYPES
    return fits and dropout == 0 and on_gpu(values)


def attend(queries: Tensor, keys: Tensor, values: Tensor, starts: Tensor, keep: slice) -> Tensor:
    """Every position attends to itself and those before it in its own sequence.

    Args:
        queries: (B, H, Q, D), of the positions `keep`.
        keys: (B, H, N, D).
        values: (B, H, N, D).
        starts: bool (B, N), True where a new sequence begins; each row begins one.
        keep: which positions.

    Returns:
        (B, H, Q, D).
    """
    mask = packed_mask(starts, torch.arange(starts.shape[1], device=starts.device)[keep])
    mixed: Tensor = _attention(queries.is_cuda)(queries, keys, values, block_mask=mask)
    return mixed


def packed_mask(starts: Tensor, kept: Tensor) -> BlockMask:
    """Which of N positions are seen from `kept`, increasing (Q,), where `starts` (B, N) begins new sequences."""
    rows, n = starts.shape
    own = starts.cumsum(-1)

    def seen(row: Tensor, head: Tensor, query: Tensor, position: Tensor) -> Tensor:
        place = kept[query]
        return (position <= place) & (own[row, position] == own[row, place])

    # A block of queries sees the blocks of positions from the one where its first query's sequence begins to the one
    # that its last query is in: sequences lie one behind another.
    first, last = kept[::BLOCK], kept[BLOCK - 1 :: BLOCK]
    last = torch.cat([last, kept[-1:]])[: len(first)]
    begins = torch.where(starts, torch.arange(n, device=starts.device), 0).cummax(-1).values
    low, high = begins[:, first] // BLOCK, (last // BLOCK).expand(rows, -1)
    blocks = torch.arange(-(-n // BLOCK), device=starts.device)
    indices = (low.unsqueeze(-1) + blocks).clamp(max=len(blocks) - 1)
    return BlockMask.from_kv_blocks(
        (high - low + 1).int().unsqueeze(1),
        indices.int().unsqueeze(1),
        BLOCK_SIZE=BLOCK,
        mask_mod=seen,
        seq_lengths=(len(kept), n),
    )


@functools.cache
def _attention(compiled: bool) -> Callable[..., Tensor]:
    """Uncompiled, on a CPU, it is dense: for tests."""
    return cast("Callable[..., Tensor]", torch.compile(flex_attention) if compiled else flex_attention)
