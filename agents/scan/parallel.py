"""Three parallel prefix scans in plain torch, on any device and differentiable to any order.

Each takes one state a position, (score, 1, value), and gives the state of every prefix.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .rows import each
from .state import ScanState, combine, keep_where

BLOCK = 64  # positions handled densely by the blocked method


def _at(state: ScanState, where: slice | int, dim: int) -> ScanState:
    """Some positions; `dim` is theirs, from the left, and so the same in m, u and w."""
    place = (*[slice(None)] * dim, where)
    return each(lambda parts: parts[0][place], [state])  # type: ignore[no-any-return]


def _cat(dim: int, *states: ScanState) -> ScanState:
    return each(lambda parts: torch.cat(parts, dim), states)  # type: ignore[no-any-return]


def _join(first: ScanState, second: ScanState, same: Tensor | None) -> ScanState:
    """`combine`, but the second state alone where it is not of the `same` sequence."""
    return combine(first if same is None else keep_where(first, same), second)


def _same(segments: Tensor | None, earlier: slice, later: slice) -> Tensor | None:
    return None if segments is None else segments[..., earlier] == segments[..., later]


def hillis_steele(leaves: ScanState, segments: Tensor | None) -> ScanState:
    """Algorithm 1: log2(N) steps, O(N log N) work. Step i has offset 2^i, i from 0; the paper prints i from 1."""
    z, offset, n, dim = leaves, 1, leaves.m.shape[-1], leaves.m.dim() - 1
    while offset < n:
        earlier, later = slice(0, n - offset), slice(offset, n)
        joined = _join(_at(z, earlier, dim), _at(z, later, dim), _same(segments, earlier, later))
        z = _cat(dim, _at(z, slice(0, offset), dim), joined)
        offset *= 2
    return z


def ladner_fischer(leaves: ScanState, segments: Tensor | None) -> ScanState:
    """Ladner and Fischer (1980): 2 log2(N) steps, O(N) work: scan the pairs, then fill in between them."""
    n, dim = leaves.m.shape[-1], leaves.m.dim() - 1
    if n == 1:
        return leaves
    left, right = slice(0, n // 2 * 2, 2), slice(1, n, 2)
    pairs = _join(_at(leaves, left, dim), _at(leaves, right, dim), _same(segments, left, right))
    odd = ladner_fischer(pairs, None if segments is None else segments[..., right])  # prefixes ending at 1, 3, 5, ...
    between = (n - 1) // 2
    same = _same(segments, slice(1, 2 * between, 2), slice(2, n, 2))
    filled = _join(_at(odd, slice(0, between), dim), _at(leaves, slice(2, n, 2), dim), same)
    even = _cat(dim, _at(leaves, slice(0, 1), dim), filled)  # prefixes ending at 0, 2, 4, ...
    beside = [_at(even, slice(0, n // 2), dim), odd]
    both: ScanState = each(lambda parts: torch.stack(parts, dim + 1).flatten(dim, dim + 1), beside)
    return both if n % 2 == 0 else _cat(dim, both, _at(even, slice(n // 2, None), dim))


def blocked(leaves: ScanState, segments: Tensor | None) -> ScanState:
    """Appendix A: dense inside a block, a scan over the blocks' totals between them; O(64 N) work."""
    n, dim = leaves.m.shape[-1], leaves.m.dim() - 1
    if n <= BLOCK:
        return _dense(leaves, segments)
    shape = (-(-n // BLOCK), BLOCK)
    if extra := shape[0] * BLOCK - n:
        channels, m = leaves.w.shape[-1], leaves.m
        padding = ScanState.identity((*m.shape[:-1], extra), channels, dtype=m.dtype, device=m.device)
        leaves = _cat(dim, leaves, padding)
        if segments is not None:
            segments = torch.cat([segments, segments[..., -1:].expand(*segments.shape[:-1], extra)], -1)
    ids = None if segments is None else segments.unflatten(-1, shape)
    inside = _dense(each(lambda parts: parts[0].unflatten(dim, shape), [leaves]), ids)
    carried = blocked(_at(inside, -1, dim + 1), None if ids is None else ids[..., -1])
    before = each(lambda parts: parts[0].unsqueeze(dim + 1), [_at(carried, slice(0, -1), dim)])
    same = None if ids is None else ids[..., :-1, -1:] == ids[..., 1:, :]
    rest = _join(before, _at(inside, slice(1, None), dim), same)
    prefixes = _cat(dim, _at(inside, slice(0, 1), dim), rest)
    return _at(each(lambda parts: parts[0].flatten(dim, dim + 1), [prefixes]), slice(0, n), dim)


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
