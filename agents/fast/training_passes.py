"""The passes of one block of Decision-Aaren forward and backward, in matrix products and the CPU's kernels.

The residual stream is float32; the products are in autocast's precision. From block to block tokens go in both, and
their gradient comes back in two parts, one for each: they are added where they are next read.

Shape suffixes: B batch, N tokens, C channels, H heads, D = C / H channels a head. Rows are tokens of all sequences,
(B N, C); after the mixer only those that are kept.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import kernels
from ..scan.state import STATE_DTYPE, ScanState
from .products import product_over_rows


class Call(NamedTuple):
    """What is not differentiated.

    Attributes:
        heads: of the mixer.
        dtype: of the matrix products.
        epsilons: of the two layer norms.
        drops: what the two residual connections drop.
        starts: bool (B, 1, N).
        keep: the positions that are kept.
        last: no block follows, which would read the output for its products.
        state: of the mixer before the tokens; no gradient goes into it.
    """

    heads: int
    dtype: torch.dtype
    epsilons: tuple[float, float]
    drops: tuple[Any, Any]
    starts: Tensor
    keep: slice | None
    last: bool
    state: ScanState | None


class Mixer(NamedTuple):
    """The parameters of the mixer and its residual connection, or their gradients: weights w, biases b."""

    token: Tensor
    wq: Tensor
    bq: Tensor
    wk: Tensor
    bk: Tensor
    wv: Tensor
    bv: Tensor
    wo: Tensor
    bo: Tensor
    weight: Tensor
    bias: Tensor


class Mlp(NamedTuple):
    """Those of the MLP, up and down, and its residual connection."""

    wu: Tensor
    bu: Tensor
    wd: Tensor
    bd: Tensor
    weight: Tensor
    bias: Tensor


class Mixed(NamedTuple):
    """What `mix_backward` reads; rows are in the type of the products."""

    token: Tensor  # a parameter, as wq, wk, bk and weight
    wq: Tensor
    wk: Tensor
    bk: Tensor
    query: Tensor  # from `aaren_scores.project`
    ws: Tensor  # the scores as a linear map of a token, (H, C), likewise
    wv: Tensor  # in the type of the products, as wo
    wo: Tensor
    weight: Tensor
    low: Tensor  # the block's tokens, rows
    values: Tensor  # (B, H, N, D)
    outputs: Tensor  # of the scan, (B, H, N, D)
    weights: Tensor  # of every position for itself, (B, H, N)
    last_u: Tensor  # of the state after the last token, (B, H)
    kept: Tensor  # the heads' outputs where kept, rows
    normed: Tensor  # by the layer norm, as inverse
    inverse: Tensor


class Transformed(NamedTuple):
    """What `transform_backward` reads; rows are in the type of the products."""

    wu: Tensor  # in the type of the products, as wd
    wd: Tensor
    weight: Tensor  # a parameter
    low: Tensor  # the MLP's input, rows
    active: Tensor  # its hidden units after GELU, rows of 4 C
    slope: Tensor  # of GELU there
    normed: Tensor  # by the layer norm, as inverse
    inverse: Tensor


def mix(x: Tensor, low: Tensor, call: Call, given: Mixer) -> tuple[Tensor, Tensor, ScanState, Mixed]:
    """LN1(x + dropout(mixer(x))) where kept, as rows; the same for the products; the state; for the backward pass."""
    token, wq, bq, wk, bk, *_, bo, weight, bias = given
    wv, bv, wo = (part.to(call.dtype) for part in (given.wv, given.bv, given.wo))
    kernel = _kernels()
    batch, n, channels = x.shape
    rows, low = (part.reshape(-1, channels) for part in (x, low))
    ws, bs, query = kernel.scoring.project(token, wq, bq, wk, bk, call.heads)
    values = _heads(torch.addmm(bv, low, wv.t()), batch, call.heads)
    scores = (rows @ ws.t()).add_(bs).view(batch, n, -1).transpose(1, 2)
    starts, every = call.starts.expand(scores.shape), torch.ones((), dtype=torch.bool).expand(scores.shape)
    state = ScanState.identity(tuple(scores.shape[:2]), values.shape[-1]) if call.state is None else call.state
    outputs, weights, *last = kernel.scan.forward(scores, values, *state, every, starts)
    kept, old = _keep(outputs.transpose(1, 2).flatten(2), call.keep).to(call.dtype), _keep(x, call.keep)
    y, norm = kept @ wo.t(), (bo, weight, bias, call.epsilons[0], call.drops[0])
    middle, low_middle, normed, inverse = kernel.residual.forward(old, y, *norm, low=call.dtype)
    scoring, tokens = (token, wq, wk, bk, query, ws), (low, values, outputs, weights, last[1], kept, normed, inverse)
    return middle, low_middle, ScanState(*last), Mixed(*scoring, wv, wo, weight, *tokens)


def mix_backward(
    d_middle: Tensor, d_low_middle: Tensor, d_last: tuple[Tensor | None, Tensor | None], call: Call, mixed: Mixed
) -> tuple[Tensor, Tensor, Mixer]:
    """Gradients of x, twice, and of the parameters; those of the last state's u and w are None where nobody has any."""
    kernel, values, low, last_u = _kernels(), mixed.values, mixed.low, mixed.last_u
    batch, heads, n, _ = values.shape
    norm = mixed.normed, mixed.inverse, mixed.weight, call.drops[0], call.dtype
    d_x, d_y, *d_norm = kernel.residual.backward(d_middle, *norm, d_low=d_low_middle)
    d_wo, d_kept = product_over_rows(d_y, mixed.kept), d_y @ mixed.wo
    if call.keep is not None:
        d_x, d_kept = (_spread(part, batch, n, call.keep) for part in (d_x, d_kept))
    d_last_u, d_last_w = d_last
    zeros = torch.zeros(batch, heads, values.shape[-1], dtype=STATE_DTYPE)
    g = zeros if d_last_w is None else last_u.unsqueeze(-1) * d_last_w  # `scan/fused.py` derives both
    c = zeros[..., 0] if d_last_u is None else -last_u * d_last_u
    # Side by side, so that both go back in one product: a few columns more are free, a pass over the tokens is not.
    channels = low.shape[1]
    d_mapped = torch.empty(len(low), channels + heads, dtype=low.dtype)
    d_values, d_scores = d_mapped[:, :channels], d_mapped[:, channels:]
    scanned = mixed.weights, values, mixed.outputs, _heads(d_kept, batch, heads), g, c
    starts = call.starts.expand(mixed.weights.shape)
    exact_scores, *_ = kernel.scan.backward(*scanned, starts, _heads(d_values, batch, heads))
    d_scores.view(batch, n, heads).copy_(exact_scores.transpose(1, 2))
    d_wv, d_ws = product_over_rows(d_mapped, low).split((channels, heads))
    scoring = mixed.token, mixed.wq, mixed.wk, mixed.bk, mixed.query
    d_scoring = kernel.scoring.gradients(*scoring, d_ws, exact_scores.sum((0, 2)))
    maps = torch.cat((mixed.wv, mixed.ws.to(mixed.wv.dtype)))
    d_x, d_low = (part.view(batch, n, -1) for part in (d_x, d_mapped @ maps))
    return d_x, d_low, Mixer._make((*d_scoring, d_wv, d_values.sum(0).float(), d_wo, *d_norm))


def transform(middle: Tensor, low: Tensor, call: Call, given: Mlp) -> tuple[Tensor, Tensor, Transformed]:
    """LN2(x + dropout(MLP(x))) of rows, which come and go twice, and what the backward pass needs."""
    wu, wd = given.wu.to(call.dtype), given.wd.to(call.dtype)
    kernel = _kernels()
    active = low @ wu.t()
    slope = kernel.gelu.forward_(active, given.bu)
    norm = given.bd, given.weight, given.bias, call.epsilons[1], call.drops[1]
    next_dtype = None if call.last else call.dtype
    out, low_out, normed, inverse = kernel.residual.forward(middle, active @ wd.t(), *norm, low=next_dtype)
    return out, low_out, Transformed(wu, wd, given.weight, low, active, slope, normed, inverse)


def transform_backward(
    d_out: Tensor | None, d_low_out: Tensor | None, call: Call, transformed: Transformed
) -> tuple[Tensor, Tensor, Mlp]:
    """Gradients of the rows, twice, and of the parameters."""
    wu, wd, weight, low, active, slope, normed, inverse = transformed
    kernel = _kernels()
    d_out = torch.zeros_like(normed) if d_out is None else d_out.reshape(normed.shape).contiguous()
    d_low_out = None if d_low_out is None else d_low_out.reshape(normed.shape).contiguous()
    d_middle, d_y, *d_norm = kernel.residual.backward(
        d_out, normed, inverse, weight, call.drops[1], call.dtype, d_low=d_low_out
    )
    d_hidden = d_y @ wd
    d_bu = kernel.gelu.backward_(slope, d_hidden)
    d_wu, d_wd = product_over_rows(d_hidden, low), product_over_rows(d_y, active)
    return d_middle, d_hidden @ wu, Mlp(d_wu, d_bu, d_wd, *d_norm)


class _Kernels(NamedTuple):
    residual: ModuleType
    scan: ModuleType
    scoring: ModuleType
    gelu: ModuleType


@functools.cache
def _kernels() -> _Kernels:
    return _Kernels(*map(kernels.load_kernels, ("residual_norm", "scan_numba", "aaren_scores", "gelu")))


def _heads(rows: Tensor, batch: int, heads: int) -> Tensor:
    """(B N, C) -> (B, H, N, D)."""
    return rows.view(batch, -1, heads, rows.shape[-1] // heads).transpose(1, 2)


def _keep(tokens: Tensor, keep: slice | None) -> Tensor:
    """The kept tokens of (B, N, C) as rows."""
    return (tokens if keep is None else tokens[:, keep]).reshape(-1, tokens.shape[-1])


def _spread(rows: Tensor, batch: int, n: int, keep: slice) -> Tensor:
    """Kept rows among zeros, (B N, C)."""
    every = rows.new_zeros(batch, n, rows.shape[-1])
    every[:, keep] = rows.view(batch, -1, rows.shape[-1])
    return every.view(-1, rows.shape[-1])
