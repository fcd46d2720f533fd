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


def token_by_token(scores: Tensor, values: Tensor) -> Tensor:
    """The same by the definition, one prefix at a time: softmax over the first k scores, then a weighted mean."""
    scores, values = scores.double(), values.double()
    outputs = [
        (torch.softmax(scores[..., : k + 1], -1).unsqueeze(-1) * values[..., : k + 1, :]).sum(-2)
        for k in range(scores.shape[-1])
    ]
    return torch.stack(outputs, -2)


def recurrence_encoding_matrix(
    length: int,
    decay: Tensor,
    angle: Tensor | None = None,
    *,
    sine: bool = False,
    dilation: int = 1,
    max_power: int = 0,
) -> Tensor:
    """One causal REM, entry by entry as equation (3) of Huang et al. 2023 and its P (x) I_d for dilation d say.

    Args:
        length: T.
        decay: lambda or gamma, a scalar.
        angle: theta; None for a regular REM.
        sine: gamma^j sin(j theta) instead of gamma^j cos(j theta).
        dilation: d.
        max_power: entries of larger powers are 0 (appendix D.1); 0: none are.

    Returns:
        (T, T) in float64, with gradients to `decay` and `angle`.
    """
    decay = decay.double()

    def f(power: int) -> Tensor:
        if power == 0 or (max_power and power > max_power):
            return torch.zeros_like(decay)
        if angle is None:
            return decay**power
        return decay**power * (torch.sin if sine else torch.cos)(power * angle.double())

    blocks = -(-length // dilation)
    distance = torch.arange(blocks).unsqueeze(1) - torch.arange(blocks)
    undilated = torch.stack([f(power) for power in range(blocks)])[distance.clamp(min=0)] * (distance > 0)
    return torch.kron(undilated, torch.eye(dilation, dtype=torch.float64))[:length, :length]


def linear_rnn(weight: Tensor, inputs: Tensor) -> Tensor:
    """h_t = W_h h_{t-1} + u_t from h_0 = 0, in float64: weight (d, d), inputs u = W_x x (T, d) -> (T, d)."""
    hidden, outputs = torch.zeros_like(inputs[0], dtype=torch.float64), []
    for u in inputs.double():
        hidden = weight.double() @ hidden + u
        outputs.append(hidden)
    return torch.stack(outputs)


def bud_attention(query: Tensor, keys: Tensor, values: Tensor, buds: list[tuple[int, int]]) -> Tensor:
    """Tree attention's output by its definition, in float64: every token of a bud has the mean of the bud's scores.

    Args:
        query: q, shape (D,), scaled.
        keys: shape (L, D).
        values: shape (L, V).
        buds: (first token, tokens) of blocks that cover all L tokens.
    """
    scores = (keys.double() @ query.double()).clone()
    for start, count in buds:
        scores[start : start + count] = scores[start : start + count].mean()
    return torch.softmax(scores, 0) @ values.double()
