"""Linear recurrences h_t = Z (h_{t-1} + u_{t-1}) of many heads as one parallel scan: dense in blocks, carried between.

Z is one 1 x 1 or 2 x 2 block a head, given by its powers. Shape suffixes: B batch, R heads, d dilation (as many
independent recurrences, each over every d-th token), M tokens of one of them, P rows of Z, Q <= P rows that the input
has (the others are zeros), D channels.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 64  # tokens handled densely

Powers: TypeAlias = Callable[[Tensor], Tensor]  # exponents (M,) -> Z to their power (R, M, P, P), in float64


def scan(
    powers: Powers, inputs: Tensor, before: Tensor | None = None, segments: Tensor | None = None, stride: int = 1
) -> Tensor:
    """h_t = sum_{i<t} Z^(stride (t - i)) u_i over the tokens i of t's own sequence.

    Args:
        powers: of Z.
        inputs: u (B, R, d, M, Q, D).
        before: h + u of the token before the first, of segment 0, (B, R, d, P, D).
        segments: the sequence that a token belongs to, (B, 1, d, M); None: all to one.
        stride: the power between neighbors.

    Returns:
        (B, R, d, M, P, D), in the inputs' type, or that of `before` if it is wider.
    """
    m = inputs.shape[3]
    table = powers(stride * torch.arange(min(m, BLOCK) + 1, device=inputs.device))
    sums = _dense(table, inputs, segments) if m <= BLOCK else _blocked(powers, table, inputs, segments, stride)
    if before is None:
        return sums
    if m > BLOCK:
        table = powers(stride * torch.arange(m + 1, device=inputs.device))
    earlier = _decayed(table, before)
    if segments is not None:
        earlier = earlier * (segments == 0)[..., None, None]
    return earlier if m == 1 else sums + earlier


def with_inputs(sums: Tensor, inputs: Tensor) -> Tensor:
    """h + u, (..., P, D)."""
    missing = sums.shape[-2] - inputs.shape[-2]
    return sums + (F.pad(inputs, (0, 0, 0, missing)) if missing else inputs)


def _blocked(powers: Powers, table: Tensor, inputs: Tensor, segments: Tensor | None, stride: int) -> Tensor:
    m = inputs.shape[3]
    blocks = -(-m // BLOCK)
    extra = blocks * BLOCK - m
    inputs = F.pad(inputs, (0, 0, 0, 0, 0, extra)).unflatten(3, (blocks, BLOCK))
    if segments is not None:
        last = segments[..., -1:].expand(*segments.shape[:-1], extra)
        segments = torch.cat([segments, last], -1).unflatten(3, (blocks, BLOCK))
    inside = _dense(table, inputs, segments)
    ends = None if segments is None else segments[..., -1]
    totals = with_inputs(inside[..., -1, :, :], inputs[..., -1, :, :])
    carried = scan(powers, totals, None, ends, stride * BLOCK) + totals  # up to the end of every block
    earlier = _decayed(table, carried[:, :, :, :-1])
    if segments is not None:
        earlier = earlier * (segments[..., :-1, -1:] == segments[..., 1:, :])[..., None, None]
    return torch.cat([inside[:, :, :, :1], inside[:, :, :, 1:] + earlier], 3).flatten(3, 4)[:, :, :, :m]


def _dense(table: Tensor, inputs: Tensor, segments: Tensor | None) -> Tensor:
    # The same for a few tokens (..., M, Q, D) as one strictly triangular product; powers 0 to M, segments (..., M).
    m, q = inputs.shape[-3:-1]
    p = table.shape[-1]
    if m == 1:  # every step of an episode comes here, where each operation counts
        return inputs.new_zeros(*inputs.shape[:-2], p, inputs.shape[-1])
    token = torch.arange(m, device=inputs.device)
    distance = token.unsqueeze(-1) - token
    weights = table.to(inputs.dtype)[:, distance.clamp(min=0), :, :q] * (distance > 0)[..., None, None]
    weights = weights.transpose(2, 3).reshape(-1, *[1] * (inputs.dim() - 5), m * p, m * q)
    if segments is not None:
        same = segments.unsqueeze(-1) == segments.unsqueeze(-2)
        weights = weights * same.repeat_interleave(p, -2).repeat_interleave(q, -1)
    return (weights @ inputs.flatten(-3, -2)).unflatten(-2, (m, p))  # type: ignore[no-any-return]


def _decayed(table: Tensor, start: Tensor) -> Tensor:
    """Z^1 to Z^M times a start (B, R, ..., P, D), for powers 0 to M: (B, R, ..., M, P, D) in the start's type."""
    flat = table[:, 1:].to(start.dtype).flatten(1, 2)
    flat = flat.view(len(flat), *[1] * (start.dim() - 4), *flat.shape[1:])
    return (flat @ start).unflatten(-2, (-1, table.shape[-1]))  # type: ignore[no-any-return]


def fold(x: Tensor, dilation: int) -> Tensor:
    """(B, R, N, ...) -> (B, R, d, M, ...): every d-th token in a row of its own; padded with zeros."""
    if extra := -x.shape[2] % dilation:
        x = torch.cat([x, x.new_zeros(*x.shape[:2], extra, *x.shape[3:])], 2)
    return x.unflatten(2, (-1, dilation)).transpose(2, 3)  # type: ignore[no-any-return]


def unfold(x: Tensor, n: int) -> Tensor:
    """The inverse of `fold` for N tokens."""
    return x.transpose(2, 3).flatten(2, 3)[:, :, :n]


def latest(past: Tensor, new: Tensor, count: int, segments: Tensor | None) -> Tensor:
    """The last of past and new tokens (B, R, N, ...), `count` or all; zeros where they are not of the last sequence."""
    n, old = new.shape[2], past.shape[2]
    if segments is not None:
        every = F.pad(segments, (old, 0))
        same = (every == segments[..., -1:]).view(*every.shape, *[1] * (new.dim() - 3))
        past, new = past * same[:, :, :old], new * same[:, :, old:]
    # Copied, and only what is kept: the state keeps no whole sequence's memory alive.
    dropped = max(0, old + n - count)
    return torch.cat([past[:, :, min(dropped, old) :], new[:, :, max(0, dropped - old) :].to(past.dtype)], 2)
