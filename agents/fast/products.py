"""Matrix products of training on a CPU: their type, and those that add up over all tokens."""

from __future__ import annotations

import torch
from torch import Tensor

HALVED = 1 << 16  # elements of a result that two threads make by halves of the rows; of 2^18 it was no gain


def products_dtype(x: Tensor) -> torch.dtype:
    """The type of matrix products with x on a CPU: autocast's, or x's own."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype


def product_over_rows(x: Tensor, y: Tensor) -> Tensor:
    """x^T y in float32, (I, J), of rows (R, I) and (R, J).

    Two threads take half of the rows each, as in the kernels before: torch has each read all of them, half of which lie
    in the other's cache. Where I J is larger, adding the two results up takes what that gains.
    """
    if torch.get_num_threads() != 2 or len(x) % 2 or x.shape[1] * y.shape[1] > HALVED:
        return (x.t() @ y).float()
    x, y = (part.unflatten(0, (2, -1)) for part in (x, y))
    return torch.bmm(x.mT, y).sum(0, dtype=torch.float32)
