"""Blocks of Decision-Aaren forward and backward as one operation each: how they are trained on a CPU.

What `Block` does in thirty operations, each with its node in the graph and its conversions between float32 and
bfloat16, is here a dozen matrix products and the kernels of the scan, of GELU and of the residual connections. The
residual stream is float32; the products are in autocast's precision. From block to block tokens go in both, and their
gradient comes back in two parts, one for each: they are added where they are next read.
`tests/agents/fast/test_training_blocks.py` holds it against `Block`.

Shape suffixes: B batch, N tokens, C channels, H heads, D = C / H channels a head. Rows are tokens of all sequences,
(B N, C); after the mixer only those that are kept.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .. import kernels
from ..mixers import Aaren
from ..model.block import Block
from ..model.layers import ResidualNorm
from ..scan.state import STATE_DTYPE, ScanState
from .products import product_over_rows, products_dtype

Tensors: TypeAlias = tuple[Tensor, ...]


class _Call(NamedTuple):
    """What is not differentiated.

    Attributes:
        heads: of the mixer.
        dtype: of the matrix products.
        epsilons: of the two layer norms.
        drops: what the two residual connections drop.
        starts: bool (B, 1, N).
        keep: the positions that are kept.
        last: no block follows, which would read the output for its products.
    """

    heads: int
    dtype: torch.dtype
    epsilons: tuple[float, float]
    drops: tuple[Any, Any]
    starts: Tensor
    keep: slice | None
    last: bool


def can_train(blocks: Sequence[Block], x: Tensor, state: object) -> bool:
    """Whether `train_blocks` computes what the blocks do: Aaren, post-norm, GELU, float32, on a CPU with Numba."""
    return (
        torch.is_grad_enabled()
        and state is None
        and x.dtype == torch.float32
        and products_dtype(x) in (torch.float32, torch.bfloat16)
        and kernels.callable_on(x)
        and all(map(_is_known, blocks))
    )


def _is_known(block: Block) -> bool:
    return (
        block.training
        and type(block.mixer) is Aaren
        and block.norm1.weight.dtype == block.mixer.value.weight.dtype == torch.float32
        and isinstance(block.norm1, ResidualNorm)
        and block.norm1.dropout.p < 1
        and isinstance(block.mlp[1], nn.GELU)
        and block.mlp[1].approximate == "none"
    )


def train_blocks(
    blocks: Sequence[Block], x: Tensor, low: Tensor, starts: Tensor | None = None, keep: slice | None = None
) -> tuple[Tensor, list[ScanState]]:
    """The last block's tokens, those that are kept, and every block's state; differentiable once.

    The modules lend their parameters: neither their `forward` nor hooks on them are called.

    Args:
        blocks: one after the other, without states before the tokens.
        x: tokens (B, N, C).
        low: the same in the type of the matrix products.
        starts: bool (B, N), True where a new sequence begins.
        keep: the positions that are read.
    """
    states = []
    for block in blocks:
        last = block is blocks[-1]
        x, low, state = _train_block(block, x, low, starts, keep if last else None, last=last)
        states.append(state)
    return x, states


def _train_block(
    block: Block, x: Tensor, low: Tensor, starts: Tensor | None, keep: slice | None, *, last: bool
) -> tuple[Tensor, Tensor, ScanState]:
    mixer, norm1, norm2 = block.mixer, block.norm1, block.norm2
    assert isinstance(mixer, Aaren) and isinstance(norm1, ResidualNorm) and isinstance(norm2, ResidualNorm)
    draw = kernels.load_kernels("residual_norm").draw_drop
    call = _Call(
        mixer.heads,
        low.dtype,
        (norm1.eps, norm2.eps),
        (draw(norm1.dropout.p), draw(norm2.dropout.p)),
        torch.zeros((), dtype=torch.bool) if starts is None else starts.unsqueeze(1),
        keep,
        last,
    )
    layers = (mixer.query, mixer.key, mixer.value, mixer.output, norm1, block.mlp[0], block.mlp[2], norm2)
    parameters = [parameter for layer in layers for parameter in (layer.weight, layer.bias)]
    outs = _TrainedBlock.apply(x, low, call, mixer.query_token, *parameters)  # type: ignore[no-untyped-call]
    return outs[0], outs[1], ScanState(*outs[2:])


class _TrainedBlock(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch's own context
        x: Tensor,
        low: Tensor,
        call: _Call,
        *parameters: Tensor,
    ) -> Tensors:
        with torch.autocast("cpu", enabled=False):
            middle, low_middle, state, mixed = _mix(x, low, call, *parameters[:11])
            out, low_out, transformed = _transform(middle, low_middle, call, *parameters[11:])
        ctx.call, ctx.mixed = call, len(mixed)
        ctx.save_for_backward(*mixed, *transformed)
        ctx.mark_non_differentiable(state.m)  # it cancels in every ratio
        ctx.set_materialize_grads(False)
        return (*(tokens.view(len(x), -1, x.shape[-1]) for tokens in (out, low_out)), *state)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,  # noqa: ANN401
        d_out: Tensor | None,
        d_low_out: Tensor | None,
        _: Tensor | None,
        d_last_u: Tensor | None,
        d_last_w: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        mixed, transformed = ctx.saved_tensors[: ctx.mixed], ctx.saved_tensors[ctx.mixed :]
        d_middle, d_low_middle, *d_transform = _transform_backward(d_out, d_low_out, ctx.call, *transformed)
        d_x, d_low, *d_mix = _mix_backward(d_middle, d_low_middle, (d_last_u, d_last_w), ctx.call, *mixed)
        return d_x, d_low, None, *d_mix, *d_transform


def _mix(
    x: Tensor, low: Tensor, call: _Call, token: Tensor, *parameters: Tensor
) -> tuple[Tensor, Tensor, ScanState, Tensors]:
    """LN1(x + dropout(mixer(x))) where kept, as rows; the same for the products; the state; for the backward pass."""
    wq, bq, wk, bk, *others, bo, weight, bias = parameters
    wv, bv, wo = (part.to(call.dtype) for part in others)
    kernel = _kernels()
    batch, n, channels = x.shape
    rows, low = (part.reshape(-1, channels) for part in (x, low))
    ws, bs, query = kernel.scoring.project(token, wq, bq, wk, bk, call.heads)
    values = _heads(torch.addmm(bv, low, wv.t()), batch, call.heads)
    scores = (rows @ ws.t()).add_(bs).view(batch, n, -1).transpose(1, 2)
    starts, every = call.starts.expand(scores.shape), torch.ones((), dtype=torch.bool).expand(scores.shape)
    state = ScanState.identity(tuple(scores.shape[:2]), values.shape[-1])
    outputs, weights, *last = kernel.scan.forward(scores, values, *state, every, starts)
    kept, old = _keep(outputs.transpose(1, 2).flatten(2), call.keep).to(call.dtype), _keep(x, call.keep)
    y, norm = kept @ wo.t(), (bo, weight, bias, call.epsilons[0], call.drops[0])
    middle, low_middle, normed, inverse = kernel.residual.forward(old, y, *norm, low=call.dtype)
    scoring, mixing = (token, wq, wk, bk, query, ws), (wv, wo, weight)
    tokens = (low, values, outputs, weights, last[1], kept, normed, inverse)
    return middle, low_middle, ScanState(*last), (*scoring, *mixing, *tokens)


def _mix_backward(
    d_middle: Tensor,
    d_low_middle: Tensor,
    d_last: tuple[Tensor | None, Tensor | None],
    call: _Call,
    token: Tensor,
    wq: Tensor,
    wk: Tensor,
    bk: Tensor,
    query: Tensor,
    ws: Tensor,
    wv: Tensor,
    wo: Tensor,
    weight: Tensor,
    low: Tensor,
    values: Tensor,
    outputs: Tensor,
    weights: Tensor,
    last_u: Tensor,
    kept: Tensor,
    normed: Tensor,
    inverse: Tensor,
) -> Tensors:
    """Gradients of x, twice, and of the mixer's and the first norm's parameters, in the order of `_mix`."""
    kernel = _kernels()
    batch, heads, n, _ = values.shape
    d_x, d_y, *d_norm = kernel.residual.backward(
        d_middle, normed, inverse, weight, call.drops[0], call.dtype, d_low=d_low_middle
    )
    d_wo, d_kept = product_over_rows(d_y, kept), d_y @ wo
    if call.keep is not None:
        d_x, d_kept = (_spread(part, batch, n, call.keep) for part in (d_x, d_kept))
    d_last_u, d_last_w = d_last
    zeros = torch.zeros(batch, heads, values.shape[-1], dtype=STATE_DTYPE)
    g = zeros if d_last_w is None else last_u.unsqueeze(-1) * d_last_w  # `scan/fused.py` derives both
    c = zeros[..., 0] if d_last_u is None else -last_u * d_last_u
    starts = call.starts.expand(weights.shape)
    # Side by side, so that both go back in one product: a few columns more are free, a pass over the tokens is not.
    channels = low.shape[1]
    d_mapped = torch.empty(len(low), channels + heads, dtype=low.dtype)
    d_values, d_scores = d_mapped[:, :channels], d_mapped[:, channels:]
    exact_scores, *_ = kernel.scan.backward(
        weights, values, outputs, _heads(d_kept, batch, heads), g, c, starts, _heads(d_values, batch, heads)
    )
    d_scores.view(batch, n, heads).copy_(exact_scores.transpose(1, 2))
    d_wv, d_ws = product_over_rows(d_mapped, low).split((channels, heads))
    d_scoring = kernel.scoring.gradients(token, wq, wk, bk, query, d_ws, exact_scores.sum((0, 2)))
    d_both = (part.view(batch, n, -1) for part in (d_x, d_mapped @ torch.cat((wv, ws.to(wv.dtype)))))
    return *d_both, *d_scoring, d_wv, d_values.sum(0).float(), d_wo, *d_norm


def _transform(middle: Tensor, low: Tensor, call: _Call, *parameters: Tensor) -> tuple[Tensor, Tensor, Tensors]:
    """LN2(x + dropout(MLP(x))) of rows, which come and go twice, and what the backward pass needs."""
    wu, bu, wd, bd, weight, bias = parameters
    wu, wd = wu.to(call.dtype), wd.to(call.dtype)
    kernel = _kernels()
    active = low @ wu.t()
    slope = kernel.gelu.forward_(active, bu)
    norm, next_dtype = (bd, weight, bias, call.epsilons[1], call.drops[1]), None if call.last else call.dtype
    out, low_out, normed, inverse = kernel.residual.forward(middle, active @ wd.t(), *norm, low=next_dtype)
    return out, low_out, (wu, wd, weight, low, active, slope, normed, inverse)


def _transform_backward(
    d_out: Tensor | None,
    d_low_out: Tensor | None,
    call: _Call,
    wu: Tensor,
    wd: Tensor,
    weight: Tensor,
    low: Tensor,
    active: Tensor,
    slope: Tensor,
    normed: Tensor,
    inverse: Tensor,
) -> Tensors:
    """Gradients of the rows, twice, and of the MLP's and the second norm's parameters, in the order of `_transform`."""
    kernel = _kernels()
    d_out = torch.zeros_like(normed) if d_out is None else d_out.reshape(normed.shape).contiguous()
    d_low_out = None if d_low_out is None else d_low_out.reshape(normed.shape).contiguous()
    d_middle, d_y, *d_norm = kernel.residual.backward(
        d_out, normed, inverse, weight, call.drops[1], call.dtype, d_low=d_low_out
    )
    d_hidden = d_y @ wd
    d_bu = kernel.gelu.backward_(slope, d_hidden)
    d_wu, d_wd = product_over_rows(d_hidden, low), product_over_rows(d_y, active)
    return d_middle, d_hidden @ wu, d_wu, d_bu, d_wd, *d_norm


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
