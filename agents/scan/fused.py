"""The scan as one differentiable operation, from the two kernels of a back end.

With L_k = log(exp(L_{k-1} + d_k) + exp(s_k)), d_k the log-decay, the weight that position k gives to itself is a_k =
exp(s_k - L_k), and the others shrink by exp(L_{k-1} + d_k - L_k) = 1 - a_k. Forward: o_k = (1 - a_k) o_{k-1} + a_k v_k.
Decays enter in the weights a_k alone. Backward, from the last position on,

    g_k = do_k + (1 - a_{k+1}) g_{k+1}            c_k = o_k . do_k + (1 - a_{k+1}) c_{k+1}
    dv_k = a_k g_k                                ds_k = a_k (v_k . g_k - c_k)
                                                  dd_k = (1 - a_k) (o_{k-1} . g_k - c_k)

with (1 - a_{k+1}) replaced by 0 where a sequence starts at k + 1. Every exponent has a known
sign, so nothing overflows, and nothing of size N x N is allocated. The state after the last
position, (m, u, w), is one more output, which adds u dw to g and -u du to c before the last position; the state before
the first is one more position, whose value is w / u.

Shape suffixes: N positions, D channels of a value; `...` are batch dimensions (batch, head).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..kernels import TYPES, load
from .state import STATE_DTYPE, ScanState, Tokens


def fused_scan(backend: str, tokens: Tokens, state: ScanState | None) -> tuple[Tensor, ScanState]:
    """`prefix_scan` by a back end of `kernels`; differentiable once.

    Raises:
        ImportError: the back end's package is not installed.
    """
    scores, values, mask, starts, log_decay = tokens
    batch, dim = scores.shape[:-1], values.shape[-1]
    if state is None:
        state = ScanState.identity(tuple(batch), dim, device=values.device)
    m, u, w = state.m.expand(batch), state.u.expand(batch), state.w.expand(*batch, dim)
    m, u, w = m.to(STATE_DTYPE), u.to(STATE_DTYPE), w.to(STATE_DTYPE)
    mask = torch.ones((), dtype=torch.bool, device=scores.device) if mask is None else mask
    starts = torch.zeros((), dtype=torch.bool, device=scores.device) if starts is None else starts
    outputs, *last = _FusedScan.apply(  # type: ignore[no-untyped-call]
        backend, log_decay, scores, values, mask.expand(scores.shape), starts.expand(scores.shape), m, u, w
    )
    return outputs, ScanState(*last)


def _held(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x (..., N, D) as input of back ends: of a type, with contiguous channels; copied only if needed.

    More than two batch dimensions may not be viewable as two, which the Triton kernels need.
    """
    x = x.to(dtype)
    return x if x.dim() <= 4 and (x.stride(-1) == 1 or x.shape[-1] == 1) else x.contiguous()


class _FusedScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, backend: str, log_decay: Tensor | None, *given: Tensor) -> tuple[Tensor, ...]:
        scores, values, mask, starts, *state = given
        dtype = torch.promote_types(torch.promote_types(scores.dtype, values.dtype), torch.float32)
        held = _held(values, values.dtype if values.dtype in TYPES[backend] else dtype)
        decay = None if log_decay is None else log_decay.to(dtype)
        outputs, weights, *last = load(f"scan_{backend}").forward(state, scores.to(dtype), held, mask, starts, decay)
        ctx.decay_dtype = None if log_decay is None else log_decay.dtype
        ctx.backend, ctx.scores_dtype, ctx.held_dtype = backend, scores.dtype, held.dtype
        ctx.save_for_backward(values, weights, outputs, *state[1:], last[1], starts)
        ctx.mark_non_differentiable(last[0])  # m cancels in every ratio
        ctx.set_materialize_grads(False)
        return outputs.to(values.dtype), *last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        d_outputs, _, d_last_u, d_last_w = gradients
        values, weights, outputs, u, w, last_u, starts = ctx.saved_tensors
        held = _held(values, ctx.held_dtype)
        d_outputs = _held(torch.zeros_like(held) if d_outputs is None else d_outputs, held.dtype)
        g = torch.zeros_like(w) if d_last_w is None else last_u.unsqueeze(-1) * d_last_w
        c = torch.zeros_like(u) if d_last_u is None else -last_u * d_last_u
        decays = ctx.needs_input_grad[1]
        kept = held, outputs, weights
        d_scores, d_values, g, c, d_decays = load(f"scan_{ctx.backend}").backward(kept, starts, d_outputs, g, c, decays)
        d_m = d_u = d_w = None
        if decays or any(ctx.needs_input_grad[6:]):
            inverse = torch.where(u > 0, 1 / torch.where(u > 0, u, 1.0), 0.0)
            d_u, d_w = -c * inverse, g * inverse.unsqueeze(-1)
            d_m = u * d_u + (w * d_w).sum(-1)
            if decays:  # the first one's: what it fades is the state before, whose m it adds to
                d_decays[..., 0] = d_m
        d_decay = d_decays.to(ctx.decay_dtype) if decays else None
        return None, d_decay, d_scores.to(ctx.scores_dtype), d_values.to(values.dtype), None, None, d_m, d_u, d_w
