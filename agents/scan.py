"""Attention as a recurrent network: the prefix scan of *Attention as an RNN* (Feng et al. 2024, section 3).

The output at position k is softmax attention of one fixed query over positions 1..k:

    o_k = sum_{i<=k} exp(s_i) v_i / sum_{i<=k} exp(s_i)

It is carried as a state (m, u, w): the running maximum of the scores, the sum of exp(s_i - m), and the sum of
exp(s_i - m) v_i. Two states of neighbouring stretches join by an associative operator (`combine`), so all prefixes come
from any parallel prefix scan, and one further token costs O(D) time and memory (`scan_step`).

Three choices differ from the paper, each for a numerical reason:

* **The initial state is (finfo.min, 0, 0), not (0, 0, 0).** Both are exact on paper. In floats a maximum that starts at
  0 never falls below 0, so exp(s - m) underflows for scores far below 0: with float32 scores near -102 the result is
  wrong by a percent, near -110 it is 0/0. The leaves (s, 1, v) of a parallel scan do not have this fault, so training
  and rollout would disagree. With -inf instead, a first score of -inf would give -inf - (-inf) = NaN; finfo.min -
  finfo.min is 0 and multiplies u = 0. (finfo.min, 0, 0) is the identity of `combine`; a masked position is the same.
* **m carries no gradient.** It cancels in w / u, so it is detached, and the gradient with respect to a score flows
  through u = exp(s - detach(s)), which is exactly 1.
* **States that are returned are float64** whatever the inputs' type: a float32 sum drifts by 7e-4 over a million steps,
  and stops growing at 2^24 equal terms. Scores and outputs are computed in float32 at least.

Shape suffixes: N positions, D channels of a value; `...` are batch dimensions (batch, head).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

STATE_DTYPE = torch.float64
BLOCK = 64  # positions handled densely by the blocked method


class ScanState(NamedTuple):
    """Softmax attention over the positions seen so far, in constant memory.

    Attributes:
        m: running maximum of the scores, shape (...).
        u: sum of exp(score - m), shape (...).
        w: sum of exp(score - m) * value, shape (..., D).
    """

    m: Tensor
    u: Tensor
    w: Tensor

    @staticmethod
    def identity(
        batch_shape: tuple[int, ...],
        dim: int,
        *,
        dtype: torch.dtype = STATE_DTYPE,
        device: torch.device | str | None = None,
    ) -> ScanState:
        """The state before any position: `combine(identity, x) == x == combine(x, identity)`."""
        m = torch.full(batch_shape, torch.finfo(dtype).min, dtype=dtype, device=device)
        return ScanState(m, torch.zeros_like(m), torch.zeros((*batch_shape, dim), dtype=dtype, device=device))

    def output(self) -> Tensor:
        """The attention output w / u, shape (..., D); zeros where no position has been seen."""
        seen = self.u > 0
        # The inner where keeps 0/0 out of the backward pass, where it would turn into NaN.
        divisor = torch.where(seen, self.u, torch.ones_like(self.u))
        return torch.where(seen, 1 / divisor, torch.zeros_like(self.u)).unsqueeze(-1) * self.w

    def to(self, dtype: torch.dtype) -> ScanState:
        """The same state in another floating-point type; an identity stays the identity of that type."""
        m = self.m.to(dtype).clamp(min=torch.finfo(dtype).min)  # the cast rounds float64's minimum to -inf
        return ScanState(m, self.u.to(dtype), self.w.to(dtype))


def combine(first: ScanState, second: ScanState) -> ScanState:
    """Joins the states of two neighbouring stretches: the associative operator of section 3.2 and appendix B.

    Args:
        first: state of the earlier positions, m and u of shape (...), w of shape (..., D).
        second: state of the later positions, of shapes that broadcast with the first's.
    """
    m = torch.maximum(first.m, second.m)
    a, b = torch.exp(first.m - m), torch.exp(second.m - m)
    return ScanState(m, first.u * a + second.u * b, first.w * a.unsqueeze(-1) + second.w * b.unsqueeze(-1))


def prefix_scan(
    scores: Tensor,
    values: Tensor,
    state: ScanState | None = None,
    method: str = "auto",
    *,
    mask: Tensor | None = None,
    starts: Tensor | None = None,
) -> tuple[Tensor, ScanState]:
    """Attention outputs of every prefix, in parallel: {Attention(q, x_1..k)}, k = 1..N (section 3.2).

    Args:
        scores: q . k_i, shape (..., N). A score of -inf masks its position.
        values: v_i, shape (..., N, D).
        state: state of the positions before the first one, with gradients; None where there are none.
        method: "sequential" (token by token; O(1) memory beyond the outputs when no gradient is asked for), "blocked"
            (appendix A: dense inside a block of 64, carried between blocks), "hillis_steele" (algorithm 1),
            "ladner_fischer" (O(N) work), or "auto", which is "blocked".
        mask: bool, broadcastable to (..., N); False positions contribute nothing.
        starts: bool, broadcastable to (..., N); True where a new sequence begins and everything before is forgotten,
            `state` included. Several sequences can so be packed into one row.

    Returns:
        The outputs, shape (..., N, D), in the values' type, and the state after the last position in float64. A
        position that has seen only masked ones gives zeros.

    Raises:
        ValueError: unknown method, no positions, or shapes that do not fit.
    """
    if method not in METHODS:
        raise ValueError(f"method {method!r} is not one of {', '.join(METHODS)}")
    if scores.dim() == 0 or scores.shape != values.shape[:-1] or scores.shape[-1] == 0:
        raise ValueError(f"scores {tuple(scores.shape)} and values {tuple(values.shape)} must be (..., N), (..., N, D)")
    # Only the last dimension: a copy for every head would waste memory.
    mask = None if mask is None else mask.expand(*mask.shape[:-1], scores.shape[-1])
    starts = None if starts is None else starts.expand(*starts.shape[:-1], scores.shape[-1])
    if method == "sequential":
        return _sequential(scores, values, state, mask, starts)
    leaves = _leaves(scores, values, mask)
    segments = None if starts is None else starts.cumsum(-1)
    prefixes = _PARALLEL["blocked" if method == "auto" else method](leaves, segments)
    last = ScanState(prefixes.m[..., -1], prefixes.u[..., -1], prefixes.w[..., -1, :]).to(STATE_DTYPE)
    if state is None:
        return prefixes.output().to(values.dtype), last
    earlier = _without_gradient_in_m(state)
    before = ScanState(earlier.m.unsqueeze(-1), earlier.u.unsqueeze(-1), earlier.w.unsqueeze(-2))
    if segments is not None:
        before = _keep(before, segments == 0)
        earlier = _keep(earlier, segments[..., -1] == 0)
    outputs = combine(before.to(leaves.m.dtype), prefixes).output()
    return outputs.to(values.dtype), combine(earlier.to(STATE_DTYPE), last)


def scan_step(
    score: Tensor, value: Tensor, state: ScanState, *, mask: Tensor | None = None
) -> tuple[Tensor, ScanState]:
    """One token: the RNN cell of section 3.1.

    Args:
        score: q . k of the token, shape (...); -inf masks it.
        value: v of the token, shape (..., D).
        state: state of the tokens before; start from `ScanState.identity`.
        mask: bool, broadcastable to (...); where False the state stays as it is.

    Returns:
        The output, shape (..., D), in the value's type, and the new state in the old one's type.
    """
    leaf = _leaves(score.unsqueeze(-1), value.unsqueeze(-2), None if mask is None else mask.unsqueeze(-1))
    token = ScanState(leaf.m[..., 0], leaf.u[..., 0], leaf.w[..., 0, :])
    state = combine(_without_gradient_in_m(state), token.to(state.u.dtype))
    return state.output().to(value.dtype), state


def _leaves(scores: Tensor, values: Tensor, mask: Tensor | None) -> ScanState:
    """One state a position, (s, 1, v), in float32 at least; the identity where the position is masked."""
    dtype = torch.promote_types(torch.promote_types(scores.dtype, values.dtype), torch.float32)
    scores, values = scores.to(dtype), values.to(dtype)
    absent = scores == -torch.inf if mask is None else (scores == -torch.inf) | ~mask
    scores = scores.masked_fill(absent, torch.finfo(dtype).min)
    m = scores.detach()
    u = torch.exp(scores - m).masked_fill(absent, 0.0)
    # masked_fill, not a product with u: a masked value may be anything, NaN included.
    return ScanState(m, u, u.unsqueeze(-1) * values.masked_fill(absent.unsqueeze(-1), 0.0))


def _without_gradient_in_m(state: ScanState) -> ScanState:
    """Moves a gradient of m into u and w, which then carry the whole of it."""
    if not state.m.requires_grad:
        return state
    m = state.m.detach()
    shift = torch.exp(state.m - m)
    return ScanState(m, state.u * shift, state.w * shift.unsqueeze(-1))


def _keep(state: ScanState, kept: Tensor) -> ScanState:
    """The state where `kept` (...) is True, the identity elsewhere."""
    m, u = torch.where(kept, state.m, torch.finfo(state.m.dtype).min), torch.where(kept, state.u, 0.0)
    return ScanState(m, u, torch.where(kept.unsqueeze(-1), state.w, 0.0))


def _combine_segments(
    first: ScanState, second: ScanState, first_segments: Tensor | None, second_segments: Tensor | None
) -> ScanState:
    """`combine`, but the second state alone where a new sequence has begun in it."""
    if first_segments is not None and second_segments is not None:
        first = _keep(first, first_segments == second_segments)
    return combine(first, second)


def _slice(state: ScanState, where: slice) -> ScanState:
    return ScanState(state.m[..., where], state.u[..., where], state.w[..., where, :])


def _cat(*states: ScanState) -> ScanState:
    return ScanState(
        torch.cat([s.m for s in states], -1), torch.cat([s.u for s in states], -1), torch.cat([s.w for s in states], -2)
    )


def _sequential(
    scores: Tensor, values: Tensor, state: ScanState | None, mask: Tensor | None, starts: Tensor | None
) -> tuple[Tensor, ScanState]:
    """Token by token with `scan_step`: the state is all the memory, unless autograd keeps every step's."""
    if state is None:
        state = ScanState.identity(tuple(scores.shape[:-1]), values.shape[-1], device=values.device)
    state = state.to(STATE_DTYPE)
    outputs = []
    for k in range(scores.shape[-1]):
        if starts is not None:
            state = _keep(state, ~starts[..., k])
        here = None if mask is None else mask[..., k]
        output, state = scan_step(scores[..., k], values[..., k, :], state, mask=here)
        outputs.append(output)
    return torch.stack(outputs, -2), state


def _hillis_steele(leaves: ScanState, segments: Tensor | None) -> ScanState:
    """Algorithm 1: log2(N) steps, O(N log N) work. Step i has offset 2^i, i from 0; the paper prints i from 1."""
    z, offset, n = leaves, 1, leaves.m.shape[-1]
    while offset < n:
        earlier, later = slice(0, n - offset), slice(offset, n)
        parts = (None, None) if segments is None else (segments[..., earlier], segments[..., later])
        z = _cat(_slice(z, slice(0, offset)), _combine_segments(_slice(z, earlier), _slice(z, later), *parts))
        offset *= 2
    return z


def _ladner_fischer(leaves: ScanState, segments: Tensor | None) -> ScanState:
    """Ladner and Fischer (1980): 2 log2(N) steps, O(N) work: scan the pairs, then fill in between them."""
    n = leaves.m.shape[-1]
    if n == 1:
        return leaves
    half = n // 2
    left, right = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    sides = (None, None) if segments is None else (segments[..., left], segments[..., right])
    pairs = _combine_segments(_slice(leaves, left), _slice(leaves, right), *sides)
    odd = _ladner_fischer(pairs, None if segments is None else segments[..., right])  # prefixes ending at 1, 3, 5, ...
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


def _blocked(leaves: ScanState, segments: Tensor | None) -> ScanState:
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
    carried = _slice(_blocked(totals, None if ids is None else ids[..., -1]), slice(0, blocks - 1))
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
    # Autocast would do the product, and so round the state, in bfloat16.
    with torch.autocast(weights.device.type, enabled=False):
        sums = weights @ torch.cat([leaves.w, leaves.u.unsqueeze(-1)], -1)
    return ScanState(m, sums[..., -1], sums[..., :-1])


_PARALLEL: dict[str, Callable[[ScanState, Tensor | None], ScanState]] = {
    "blocked": _blocked,
    "hillis_steele": _hillis_steele,
    "ladner_fischer": _ladner_fischer,
}

METHODS = ("auto", "sequential", *_PARALLEL)
