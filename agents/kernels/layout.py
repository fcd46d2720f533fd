"""Where a tensor's rows (batch, head) lie in memory: kernels take any strides but the channels'."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def rows_of_channels(x: Tensor) -> Tensor:
    """x (..., N, D) with its channels side by side, copied only where they are not."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def dense_batches(x: Tensor) -> Tensor:
    """x (..., N, D), copied where its batch dimensions are more than two and so may not lie like two."""
    return x.contiguous() if x.dim() > 4 else x


def two_batch_dimensions(x: Tensor, batch: int) -> Tensor:
    """x with `batch` batch dimensions as (B, H, ...): ones are put in front, and all but the last become one.

    The same memory unless there are more than two that do not lie like two.
    """
    return x[(None,) * (2 - batch)] if batch < 2 else x.flatten(0, batch - 2)


def flatten_batch(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """The first element of every row of (..., N) or (..., N, D) tensors, (tensors, rows), and their strides over N.

    The last tensor is one with channels; all have the same batch dimensions.
    """
    batch = tensors[-1].dim() - 2
    layouts = tuple((x.shape[:batch], x.stride()[:batch]) for x in tensors)
    return _offsets(layouts, tensors[-1].device), *(x.stride(batch) for x in tensors)


@functools.lru_cache(256)  # a model's layouts are few, and come again at every call
def _offsets(layouts: tuple[tuple[torch.Size, tuple[int, ...]], ...], device: torch.device) -> Tensor:
    rows = []
    for shape, strides in layouts:
        offsets = torch.zeros(1, dtype=torch.int64, device=device)
        for size, stride in zip(shape, strides, strict=True):
            offsets = (offsets.unsqueeze(-1) + torch.arange(size, device=device) * stride).flatten()
        rows.append(offsets)
    return torch.stack(rows)
