"""Attention as a recurrent network: the prefix scan of *Attention as an RNN* (Feng et al. 2024, section 3).

The output at position k is softmax attention of one fixed query over positions 1..k:

    o_k = sum_{i<=k} exp(s_i) v_i / sum_{i<=k} exp(s_i)

It is carried as a state (m, u, w): the running maximum of the scores, the sum of exp(s_i - m), and the sum of
exp(s_i - m) v_i. Two states of neighboring segments join by an associative operator (`combine`), so all prefixes come
from any parallel prefix scan, and one more token costs O(D) time and memory (`scan_step`).

A position may also fade all positions before it by a decay f_k = exp(`log_decay`_k): position i then weighs exp(s_i)
f_{i+1} ... f_k in o_k, and the state before position k enters with m + log f_k. The state keeps its form. These are the
weights of FoX (Lin et al. 2025) with a fixed query, and the recurrence is that of sLSTM's exponential gates without
hidden-to-hidden weights (Beck et al. 2024).

Three choices differ from the paper, each for a numerical reason:

* **The initial state is (finfo.min, 0, 0), not (0, 0, 0).** Both are exact on paper. In floats a maximum that starts at
  0 never falls below 0, so exp(s - m) underflows for scores far below 0: with float32 scores near -102 the result is
  wrong by a percent, near -110 it is 0/0. The leaves (s, 1, v) of a parallel scan do not have this fault, so training
  and rollout would disagree. With -inf instead, a first score of -inf would give -inf - (-inf) = NaN; finfo.min -
  finfo.min is 0 and multiplies u = 0. (finfo.min, 0, 0) is the identity of `combine`; a masked position is the same.
* **m carries no gradient.** It cancels in w / u, so it is detached, and the gradient with respect to a score flows
  through u = exp(s - detach(s)), which is exactly 1.
* **Returned states are float64** for any input type: a float32 sum drifts by 7e-4 over a million steps,
  and stops growing at 2^24 equal terms. Scores and outputs are computed at least in float32.

Shape suffixes: N positions, D channels of a value; `...` are batch dimensions (batch, head).
"""

import torch
from torch import Tensor

from ..kernels import TYPES, choose
from .fused import fused_scan
from .parallel import PARALLEL, Stretches
from .state import STATE_DTYPE, ScanState, Tokens, combine, fade, keep_where, make_leaves, without_gradient_in_m

METHODS = ("auto", "sequential", *PARALLEL, *TYPES)


def prefix_scan(
    scores: Tensor,
    values: Tensor,
    state: ScanState | None = None,
    method: str = "auto",
    log_decay: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    starts: Tensor | None = None,
) -> tuple[Tensor, ScanState]:
    """Attention outputs of every prefix, in parallel: {Attention(q, x_1..k)}, k = 1..N (section 3.2).

    Args:
        scores: q . k_i, shape (..., N). A score of -inf masks its position.
        values: v_i, shape (..., N, D).
        state: state of the positions before the first one, with gradients; None: no such positions.
        method: "sequential" (token by token; O(1) memory beyond the outputs when no gradient is asked for), "blocked"
            (appendix A: dense inside a block of 64, carried between blocks), "hillis_steele" (algorithm 1),
            "ladner_fischer" (O(N) work), "numba" (one pass over memory on the CPU), "triton" (CUDA devices, parallel
            over chunks of 64 positions; scores and values of at most float32), or "auto": the kernel of the device,
            "blocked" if there is none or the call is traced. The kernels are differentiable once.
        log_decay: log f_k, shape (..., N), finite and at most 0: by f_k every position fades those before it, `state`
            included. A masked position has none. To forget everything at a position, use `starts`.
        mask: bool, broadcastable to (..., N); False positions contribute nothing.
        starts: bool, broadcastable to (..., N); True at the first position of a new sequence, which drops
            everything before, even `state`. So one row can pack several sequences.

    Returns:
        The outputs, shape (..., N, D), in the type of the values, and the state after the last position in float64. A
        position after only masked ones gives zeros.

    Raises:
        ValueError: unknown method, no positions, or shapes that do not match.
        ImportError: the package of the kernel is not installed.
    """
    _check(scores, values, state, method, log_decay)
    # Only the last dimension: a copy for every head would waste memory.
    mask = None if mask is None else mask.expand(*mask.shape[:-1], scores.shape[-1])
    starts = None if starts is None else starts.expand(*starts.shape[:-1], scores.shape[-1])
    if log_decay is not None:
        log_decay = _without_effectless(log_decay, scores, mask, starts)
    tokens = Tokens(scores, values, mask, starts, log_decay)
    if method == "auto":
        method = choose(scores, values)
    if method == "sequential":
        return _sequential(tokens, state)
    if method in TYPES:
        return fused_scan(method, tokens, state)
    return _parallel(method, tokens, state)


def scan_step(
    score: Tensor,
    value: Tensor,
    state: ScanState,
    log_decay: Tensor | None = None,
    *,
    mask: Tensor | None = None,
) -> tuple[Tensor, ScanState]:
    """One token: the RNN cell of section 3.1.

    Args:
        score: q . k of the token, shape (...); -inf masks it.
        value: v of the token, shape (..., D).
        state: state of the tokens before; start from `ScanState.identity`.
        log_decay: log f of the token, shape (...), by which it fades those before it; see `prefix_scan`.
        mask: bool, broadcastable to (...); False leaves the state unchanged.

    Returns:
        The output, shape (..., D), in the type of the value, and the new state in the type of the old one.
    """
    absent = score == -torch.inf if mask is None else (score == -torch.inf) | ~mask
    # masked_fill, not a product with 0: a masked value may be anything, even NaN.
    score, value = score.masked_fill(absent, -torch.inf), value.masked_fill(absent.unsqueeze(-1), 0.0)
    state = add_token(score, value, state, None if log_decay is None else log_decay.masked_fill(absent, 0.0))
    return state.output().to(value.dtype), state


def add_token(score: Tensor, value: Tensor, state: ScanState, log_decay: Tensor | None = None) -> ScanState:
    """The state of `scan_step` after a token that is not masked: fewer operations, each of which an ONNX step pays for.

    Its output is w / u. A score of -inf leaves m, u and w as they are, but fades them.
    """
    earlier = without_gradient_in_m(state)
    if log_decay is not None:
        earlier = fade(earlier, log_decay)
    score, value = score.to(state.u.dtype), value.to(state.u.dtype)
    m = torch.maximum(earlier.m, score.detach())
    a, b = torch.exp(earlier.m - m), torch.exp(score - m)
    return ScanState(m, earlier.u * a + b, earlier.w * a.unsqueeze(-1) + value * b.unsqueeze(-1))


def _check(scores: Tensor, values: Tensor, state: ScanState | None, method: str, log_decay: Tensor | None) -> None:
    if method not in METHODS:
        raise ValueError(f"method {method!r} is not one of {', '.join(METHODS)}")
    if scores.dim() == 0 or scores.shape != values.shape[:-1] or scores.shape[-1] == 0:
        raise ValueError(f"scores {tuple(scores.shape)} and values {tuple(values.shape)} must be (..., N), (..., N, D)")
    if state is not None and state.w.shape != (*scores.shape[:-1], values.shape[-1]):
        raise ValueError(f"the state is of values {tuple(state.w.shape)}, and there are {tuple(values.shape)}")
    if log_decay is not None and log_decay.shape != scores.shape:
        raise ValueError(f"log_decay {tuple(log_decay.shape)} must be of the scores' shape {tuple(scores.shape)}")


def _without_effectless(log_decay: Tensor, scores: Tensor, mask: Tensor | None, starts: Tensor | None) -> Tensor:
    """The decays, 0 where there is no position or nothing before it to fade."""
    without = scores == -torch.inf
    for also in (None if mask is None else ~mask, starts):
        without = without if also is None else without | also
    return log_decay.masked_fill(without, 0.0)


def _parallel(method: str, tokens: Tokens, state: ScanState | None) -> tuple[Tensor, ScanState]:
    """By one of PARALLEL: all prefixes from no state on, and what the state adds to those of its sequence."""
    scores, values, mask, starts, log_decay = tokens
    segments = None if starts is None else starts.cumsum(-1).expand(scores.shape)
    decay = None
    if log_decay is not None:
        # A sum of decays is one of all sequences in a row, so NaN goes to the score, which stays in its own.
        ill = log_decay.isnan()
        scores = scores + torch.where(ill, log_decay, 0.0).to(scores.dtype)
        decay = log_decay.masked_fill(ill, 0.0).to(STATE_DTYPE)  # sums of decays are differences of larger ones
    leaves = make_leaves(scores, values, mask)
    prefixes, *_ = PARALLEL[method](Stretches(leaves, segments, decay))
    # Copies: a view would keep every prefix in memory, and in a saved file.
    last = ScanState(prefixes.m[..., -1].clone(), prefixes.u[..., -1].clone(), prefixes.w[..., -1, :].clone())
    last = last.to(STATE_DTYPE)
    if state is None:
        return prefixes.output().to(values.dtype), last
    earlier = without_gradient_in_m(state)
    before = ScanState(earlier.m.unsqueeze(-1), earlier.u.unsqueeze(-1), earlier.w.unsqueeze(-2))
    if decay is not None:
        faded = decay.cumsum(-1)
        before, earlier = fade(before, faded), fade(earlier, faded[..., -1])
    if segments is not None:
        before = keep_where(before, segments == 0)
        earlier = keep_where(earlier, segments[..., -1] == 0)
    outputs = combine(before.to(leaves.m.dtype), prefixes).output()
    return outputs.to(values.dtype), combine(earlier.to(STATE_DTYPE), last)


def _sequential(tokens: Tokens, state: ScanState | None) -> tuple[Tensor, ScanState]:
    """Token by token with `scan_step`. Only the state takes memory, unless autograd keeps that of every step."""
    scores, values, mask, starts, log_decay = tokens
    if state is None:
        state = ScanState.identity(tuple(scores.shape[:-1]), values.shape[-1], device=values.device)
    state = state.to(STATE_DTYPE)
    outputs = []
    for k in range(scores.shape[-1]):
        if starts is not None:
            state = keep_where(state, ~starts[..., k])
        here, decay = (None if x is None else x[..., k] for x in (mask, log_decay))
        output, state = scan_step(scores[..., k], values[..., k, :], state, decay, mask=here)
        outputs.append(output)
    return torch.stack(outputs, -2), state
