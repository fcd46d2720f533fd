"""Three parallel prefix scans in plain torch, on any device and differentiable to any order.

Each takes one state a position, (score, 1, value), and gives the state of every prefix.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .state import ScanState, combine, keep_where

BLOCK = 64  # positions handled densely by the blocked method


def _combine_segments(
    first: ScanState, second: ScanState, first_segments: Tensor | None, second_segments: Tensor | None
) -> ScanState:
    """`combine`, but the second state alone where a new sequence has begun in it."""
    if first_segments is not None and second_segments is not None:
        first = keep_where(first, first_segments == second_segments)
    return combine(first, second)


def _slice(state: ScanState, where: slice) -> ScanState:
    return ScanState(state.m[..., where], state.u[..., where], state.w[..., where, :])


def _cat(*states: ScanState) -> ScanState:
    return ScanState(
        torch.cat([s.m for s in states], -1), torch.cat([s.u for s in states], -1), torch.cat([s.w for s in states], -2)
    )


def hillis_steele(leaves: ScanState, segments: Tensor | None) -> ScanState:
    """Algorithm 1: log2(N) steps, O(N log N) work. Step i has offset 2^i, i from 0; the paper prints i from 1."""
    z, offset, n = leaves, 1, leaves.m.shape[-1]
    while offset < n:
        earlier, later = slice(0, n - offset), slice(offset, n)
        parts = (None, None) if segments is None else (segments[..., earlier], segments[..., later])
        z = _cat(_slice(z, slice(0, offset)), _combine_segments(_slice(z, earlier), _slice(z, later), *parts))
        offset *= 2
    return z


def ladner_fischer(leaves: ScanState, segments: Tensor | None) -> ScanState:
    """Ladner and Fischer (1980): 2 log2(N) steps, O(N) work: scan the pairs, then fill in between them."""
    n = leaves.m.shape[-1]
    if n == 1:
        return leaves
    half = n // 2
    left, right = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    sides = (None, None) if segments is None else (segments[..., left], segments[..., right])
    pairs = _combine_segments(_slice(leaves, left), _slice(leaves, right), *sides)
    odd = ladner_fischer(pairs, None if segments is None else segments[..., right])  # prefixes ending at 1, 3, 5, ...
    after, upto = slice(2, n, 2), slice(0, (n - 1) // 2)
    sides = (None, None) if segments is None else (segments[..., right][..., upto], segments[..., after])
    even = _combine_segments(_slice(odd, upto), _slice(leaves, after), *sides)  # prefixes ending at 2, 4, ...
    return _interleave(_cat(_slice(leaves, slice(0, 1)), even), odd)


def _interleave(even: ScanState, odd: ScanState) -> ScanState:
    """Positions 0, 2, 4, ... and 1, 3, 5, ... in their order; `even` may be one longer."""
    n = odd.m.shape[-1]
    both = ScanState(
        torch.stack([even.m[..., :n], odd.m], -1).flatten(-2),
        torch.stack([even.u[..., :n], odd.u], -1).flatten(-2),
        torch.stack([even.w[..., :n, :], odd.w], -2).flatten(-3, -2),
    )
    return both if even.m.shape[-1] == n else _cat(both, _slice(even, slice(n, n + 1)))


def blocked(leaves: ScanState, segments: Tensor | None) -> ScanState:
    """Appendix A: dense inside a block, a scan over the blocks' totals between them; O(64 N) work."""
    n, dim = leaves.m.shape[-1], leaves.w.shape[-1]
    if n <= BLOCK:
        return _dense(leaves, segments)
    blocks = -(-n // BLOCK)
    batch = leaves.m.shape[:-1]
    if extra := blocks * BLOCK - n:
        padding = ScanState.identity((*batch, extra), dim, dtype=leaves.m.dtype, device=leaves.m.device)
        leaves = _cat(leaves, padding)
        if segments is not None:
            segments = torch.cat([segments, segments[..., -1:].expand(*segments.shape[:-1], extra)], -1)
    grid = ScanState(
        leaves.m.view(*batch, blocks, BLOCK),
        leaves.u.view(*batch, blocks, BLOCK),
        leaves.w.view(*batch, blocks, BLOCK, dim),
    )
    ids = None if segments is None else segments.view(*segments.shape[:-1], blocks, BLOCK)
    inside = _dense(grid, ids)
    totals = ScanState(inside.m[..., -1], inside.u[..., -1], inside.w[..., -1, :])
    carried = _slice(blocked(totals, None if ids is None else ids[..., -1]), slice(0, blocks - 1))
    before = ScanState(carried.m.unsqueeze(-1), carried.u.unsqueeze(-1), carried.w.unsqueeze(-2))
    sides = (None, None) if ids is None else (ids[..., :-1, -1:], ids[..., 1:, :])
    later = ScanState(inside.m[..., 1:, :], inside.u[..., 1:, :], inside.w[..., 1:, :, :])
    rest = _combine_segments(before, later, *sides)
    prefixes = ScanState(
        torch.cat([inside.m[..., :1, :], rest.m], -2).flatten(-2),
        torch.cat([inside.u[..., :1, :], rest.u], -2).flatten(-2),
        torch.cat([inside.w[..., :1, :, :], rest.w], -3).flatten(-3, -2),
    )
    return prefixes if not extra else _slice(prefixes, slice(0, n))


def _dense(leaves: ScanState, segments: Tensor | None) -> ScanState:
    """All prefixes of a short stretch as one triangular matrix product; its weights carry no gradient, as m."""
    n = leaves.m.shape[-1]
    allowed = torch.ones(n, n, dtype=torch.bool, device=leaves.m.device).tril()
    if segments is None:
        m = leaves.m.cummax(-1).values
    else:
        allowed = allowed & (segments.unsqueeze(-1) == segments.unsqueeze(-2))
        # A maximum per sequence: an earlier sequence's larger scores would make this one's weights underflow.
        floor = torch.finfo(leaves.m.dtype).min
        m = torch.where(allowed, leaves.m.unsqueeze(-2), floor).amax(-1)
    # Masked before the exponential: above the diagonal the difference may be positive and overflow.
    weights = torch.exp((leaves.m.unsqueeze(-2) - m.unsqueeze(-1)).masked_fill(~allowed, -torch.inf))
    summed = torch.cat([leaves.w, leaves.u.unsqueeze(-1)], -1)
    ill = None
    if segments is not None:
        # In a product 0 times NaN is NaN: one sequence's would reach the others, earlier ones too.
        ill = ~summed.isfinite().all(-1)
        summed = summed.masked_fill(ill.unsqueeze(-1), 0.0)
    # Autocast would do the product, and so round the state, in bfloat16.
    with torch.autocast(weights.device.type, enabled=False):
        sums = weights @ summed
    if ill is not None:
        sums = sums.masked_fill((allowed & ill.unsqueeze(-2)).any(-1, keepdim=True), torch.nan)
    return ScanState(m, sums[..., -1], sums[..., :-1])


PARALLEL: dict[str, Callable[[ScanState, Tensor | None], ScanState]] = {
    "blocked": blocked,
    "hillis_steele": hillis_steele,
    "ladner_fischer": ladner_fischer,
}
