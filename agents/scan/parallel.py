"""Three parallel prefix scans in plain torch, on any device and differentiable to any order.

Each takes one state per position, (score, 1, value), and returns the state of every prefix. Every state has the number
of its sequence. Joining it with a later sequence drops it. With decays, joining it with a later stretch fades it by the
decays of that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .rows import each
from .state import ScanState, combine, fade, keep_where

BLOCK = 64  # positions handled densely by the blocked method


class Stretches(NamedTuple):
    """States of neighboring stretches of positions.

    Attributes:
        state: of N stretches, m and u of shape (..., N).
        segments: the sequence numbers of their last positions, (..., N); None: one sequence.
        decay: the sum of the log-decays of their positions, (..., N), float64; None: there are none.
    """

    state: ScanState
    segments: Tensor | None = None
    decay: Tensor | None = None

    @property
    def dim(self) -> int:
        """The dimension of positions, from the left: the same in m, u and w."""
        return self.state.m.dim() - 1

    def map(self, of: Callable[[Tensor, int], Tensor]) -> Stretches:
        """Apply `of` to every tensor and `dim`."""
        return each(lambda parts: of(parts[0], self.dim), [self])  # type: ignore[no-any-return]

    def at(self, *where: slice | int) -> Stretches:
        """Some positions."""
        return self.map(lambda x, dim: x[(*[slice(None)] * (dim + 1 - len(where)), *where)])


def _cat(dim: int, *parts: Stretches) -> Stretches:
    return each(lambda x: torch.cat(x, dim), parts)  # type: ignore[no-any-return]


def _join(first: Stretches, second: Stretches) -> Stretches:
    """`combine` with the first faded, but only the second if a sequence started between them."""
    earlier, decay = first.state, None
    if first.decay is not None and second.decay is not None:
        earlier, decay = fade(earlier, second.decay), first.decay + second.decay
    if first.segments is not None and second.segments is not None:
        earlier = keep_where(earlier, first.segments == second.segments)
    return Stretches(combine(earlier, second.state), second.segments, decay)


def hillis_steele(z: Stretches) -> Stretches:
    """Algorithm 1: log2(N) steps, O(N log N) work. Step i has offset 2^i, i from 0; the paper prints i from 1."""
    offset, n = 1, z.state.m.shape[-1]
    while offset < n:
        z = _cat(z.dim, z.at(slice(0, offset)), _join(z.at(slice(0, n - offset)), z.at(slice(offset, n))))
        offset *= 2
    return z


def ladner_fischer(z: Stretches) -> Stretches:
    """Ladner and Fischer (1980): 2 log2(N) steps, O(N) work: scan the pairs, then fill in between them."""
    n = z.state.m.shape[-1]
    if n == 1:
        return z
    left, right, later = slice(0, n // 2 * 2, 2), slice(1, n, 2), slice(2, n, 2)
    odd = ladner_fischer(_join(z.at(left), z.at(right)))  # prefixes that end at 1, 3, 5, ...
    even = _cat(z.dim, z.at(slice(0, 1)), _join(odd.at(slice(0, (n - 1) // 2)), z.at(later)))  # at 0, 2, 4, ...
    halves = even.at(slice(0, n // 2)), odd
    both: Stretches = each(lambda parts: torch.stack(parts, z.dim + 1).flatten(z.dim, z.dim + 1), halves)
    return both if n % 2 == 0 else _cat(z.dim, both, even.at(slice(n // 2, None)))


def blocked(z: Stretches) -> Stretches:
    """Appendix A: dense inside a block, a scan over the totals of blocks; O(64 N) work."""
    n = z.state.m.shape[-1]
    if n <= BLOCK:
        return _dense(z)
    shape = (-(-n // BLOCK), BLOCK)
    if extra := shape[0] * BLOCK - n:
        m, w = z.state.m, z.state.w
        padding = ScanState.identity((*m.shape[:-1], extra), w.shape[-1], dtype=m.dtype, device=m.device)
        last = None if z.segments is None else z.segments[..., -1:].expand(*m.shape[:-1], extra)
        none = None if z.decay is None else torch.zeros_like(z.decay[..., :1]).expand(*m.shape[:-1], extra)
        z = _cat(z.dim, z, Stretches(padding, last, none))
    inside = _dense(z.map(lambda x, dim: x.unflatten(dim, shape)))
    before = blocked(inside.at(slice(None), -1)).at(slice(0, -1)).map(lambda x, dim: x.unsqueeze(dim + 1))
    first, rest = inside.at(slice(0, 1), slice(None)), inside.at(slice(1, None), slice(None))
    prefixes = _cat(z.dim, first, _join(before, rest))
    return prefixes.map(lambda x, dim: x.flatten(dim - 1, dim)).at(slice(0, n))


def _dense(z: Stretches) -> Stretches:
    """All prefixes of a short segment as one triangular matrix product. Its maxima carry no gradient, as m."""
    (leaves, segments, decay), n = z, z.state.m.shape[-1]
    allowed = torch.ones(n, n, dtype=torch.bool, device=leaves.m.device).tril()
    scores, sums_of_decay = leaves.m.unsqueeze(-2), None
    if segments is not None:
        allowed = allowed & (segments.unsqueeze(-1) == segments.unsqueeze(-2))
    if decay is not None:
        sums_of_decay = decay.cumsum(-1)
        scores = scores + (sums_of_decay.unsqueeze(-1) - sums_of_decay.unsqueeze(-2))
    if segments is None and decay is None:
        m = leaves.m.cummax(-1).values
    else:
        # A maximum per sequence: larger scores of an earlier sequence would make the weights of this one underflow.
        floor = torch.finfo(leaves.m.dtype).min
        m = torch.where(allowed, scores.detach(), floor).amax(-1).to(leaves.m.dtype)
    # Mask before the exponential: above the diagonal the difference may be positive and overflow.
    weights = torch.exp((scores - m.unsqueeze(-1)).masked_fill(~allowed, -torch.inf)).to(leaves.m.dtype)
    summed = torch.cat([leaves.w, leaves.u.unsqueeze(-1)], -1)
    ill = None
    if segments is not None:
        # 0 times NaN is NaN in a product: NaN of one sequence would reach the others, even earlier ones.
        ill = ~summed.isfinite().all(-1)
        summed = summed.masked_fill(ill.unsqueeze(-1), 0.0)
    # Autocast would compute the product, and so round the state, in bfloat16.
    with torch.autocast(weights.device.type, enabled=False):
        sums = weights @ summed
    if ill is not None:
        sums = sums.masked_fill((allowed & ill.unsqueeze(-2)).any(-1, keepdim=True), torch.nan)
    return Stretches(ScanState(m, sums[..., -1], sums[..., :-1]), segments, sums_of_decay)


PARALLEL = {"blocked": blocked, "hillis_steele": hillis_steele, "ladner_fischer": ladner_fischer}
