"""Slow, obviously correct versions, in float64: what the fast paths are held against."""

from __future__ import annotations

import torch
from torch import Tensor


def masked_softmax(scores: Tensor, values: Tensor, mask: Tensor | None = None, starts: Tensor | None = None) -> Tensor:
    """Softmax attention of one query over every prefix as a full N x N matrix, in float64.

    Args:
        scores: shape (..., N); -inf masks a position.
        values: shape (..., N, D).
        mask: bool (..., N), False where a position does not count.
        starts: bool (..., N), True where a new sequence begins.

    Returns:
        Outputs (..., N, D) in float64; zeros where nothing is attended to.
    """
    n = scores.shape[-1]
    scores, values = scores.double(), values.double()
    present = scores > -torch.inf if mask is None else (scores > -torch.inf) & mask
    allowed = torch.ones(n, n, dtype=torch.bool, device=scores.device).tril() & present.unsqueeze(-2)
    if starts is not None:
        segments = starts.cumsum(-1)
        allowed = allowed & (segments.unsqueeze(-1) == segments.unsqueeze(-2))
    rows = scores.masked_fill(~present, 0.0).unsqueeze(-2).masked_fill(~allowed, -torch.inf)
    anything = allowed.any(-1, keepdim=True)
    weights = torch.softmax(torch.where(anything, rows, 0.0), -1) * anything
    return weights @ values.masked_fill(~present.unsqueeze(-1), 0.0)
