"""Matrix products of training: their type, and those that add up over all tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import kernels

HALVED = 1 << 16  # elements of a result that two threads make by halves of the rows; of 2^18 it was no gain


def products_dtype(x: Tensor) -> torch.dtype:
    """The type of matrix products with x: autocast's, or x's own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def product_over_rows(x: Tensor, y: Tensor) -> Tensor:
    """x^T y in float32, (I, J), of rows (R, I) and (R, J).

    On a GPU the product itself is float32. On a CPU two threads take half of the rows each, as in the kernels before:
    torch has each read all of them, half of which lie in the other's cache. Where I J is larger, adding the two results
    up takes what that gains.
    """
    if kernels.on_gpu(x) and x.dtype != torch.float32:
        return torch.mm(x.t(), y, out_dtype=torch.float32)
    if torch.get_num_threads() != 2 or len(x) % 2 or x.shape[1] * y.shape[1] > HALVED:
        return (x.t() @ y).float()
    x, y = (part.unflatten(0, (2, -1)) for part in (x, y))
    return torch.bmm(x.mT, y).sum(0, dtype=torch.float32)
