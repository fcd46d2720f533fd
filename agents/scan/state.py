"""The state (m, u, w) of a scan and its operations; `prefix.py` explains it.

Shape suffixes: N positions, D channels of a value; `...` are batch dimensions (batch, head).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

STATE_DTYPE = torch.float64


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
        """The attention output w / u, shape (..., D); zeros before any position."""
        seen = self.u > 0
        # The inner where keeps 0/0 out of the backward pass, where it would turn into NaN.
        divisor = torch.where(seen, self.u, torch.ones_like(self.u))
        return torch.where(seen, 1 / divisor, torch.zeros_like(self.u)).unsqueeze(-1) * self.w

    def to(self, dtype: torch.dtype) -> ScanState:
        """The same state in another floating-point type; an identity becomes the identity of that type."""
        m = self.m.to(dtype).clamp(min=torch.finfo(dtype).min)  # the cast rounds float64's minimum to -inf
        return ScanState(m, self.u.to(dtype), self.w.to(dtype))


class Tokens(NamedTuple):
    """The positions of a scan, as `prefix_scan` takes them; masks and starts with N as their last dimension."""

    scores: Tensor
    values: Tensor
    mask: Tensor | None = None
    starts: Tensor | None = None
    log_decay: Tensor | None = None


def combine(first: ScanState, second: ScanState) -> ScanState:
    """Join the states of two neighboring segments: the associative operator of section 3.2 and appendix B.

    Args:
        first: state of the earlier positions, m and u of shape (...), w of shape (..., D).
        second: state of the later positions, of shapes that broadcast with those of the first.
    """
    m = torch.maximum(first.m, second.m)
    a, b = torch.exp(first.m - m), torch.exp(second.m - m)
    return ScanState(m, first.u * a + second.u * b, first.w * a.unsqueeze(-1) + second.w * b.unsqueeze(-1))


def make_leaves(scores: Tensor, values: Tensor, mask: Tensor | None) -> ScanState:
    """One state per position, (s, 1, v), at least in float32; the identity if the position is masked."""
    dtype = torch.promote_types(torch.promote_types(scores.dtype, values.dtype), torch.float32)
    scores, values = scores.to(dtype), values.to(dtype)
    absent = scores == -torch.inf if mask is None else (scores == -torch.inf) | ~mask
    scores = scores.masked_fill(absent, torch.finfo(dtype).min)
    m = scores.detach()
    u = torch.exp(scores - m).masked_fill(absent, 0.0)
    # masked_fill, not a product with u: a masked value may be anything, even NaN.
    return ScanState(m, u, u.unsqueeze(-1) * values.masked_fill(absent.unsqueeze(-1), 0.0))


def without_gradient_in_m(state: ScanState) -> ScanState:
    """Move the gradient of m into u and w."""
    if not state.m.requires_grad:
        return state
    m = state.m.detach()
    shift = torch.exp(state.m - m)
    return ScanState(m, state.u * shift, state.w * shift.unsqueeze(-1))


def fade(state: ScanState, log_decay: Tensor) -> ScanState:
    """The state whose positions weigh exp(log_decay) times as much, log_decay (...): m grows by it.

    Its gradient goes to u and w, since m has none.
    """
    fixed = log_decay.detach()
    m = (state.m + fixed).to(state.m.dtype)
    if not log_decay.requires_grad:
        return state._replace(m=m)
    shift = torch.exp(log_decay - fixed).to(m.dtype)
    return ScanState(m, state.u * shift, state.w * shift.unsqueeze(-1))


def keep_where(state: ScanState, kept: Tensor) -> ScanState:
    """The state where `kept` (...) is True, the identity elsewhere."""
    m, u = torch.where(kept, state.m, torch.finfo(state.m.dtype).min), torch.where(kept, state.u, 0.0)
    return ScanState(m, u, torch.where(kept.unsqueeze(-1), state.w, 0.0))
