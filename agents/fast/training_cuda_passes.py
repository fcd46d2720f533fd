"""The passes of `training_cuda.py` over all tokens, forward and backward: Triton's kernels, torch's products between.

Shape suffixes as in `training_cuda_parts.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..model.decision import ACTED_ON
from ..scan.state import ScanState
from .products import product_over_rows
from .training_cuda_parts import (
    TOKENS,
    Call,
    Kept,
    Sums,
    Tensors,
    Weights,
    block_weights,
    by_heads,
    by_rows,
    gpu_kernels,
    lowered,
    token_layers,
)

KEEP = ACTED_ON.start, ACTED_ON.step  # of a row's tokens, whose number is a multiple of the step


def forward(call: Call, parameters: Tensors) -> tuple[Tensor, list[ScanState], list[Tensor], list[Any]]:
    """Actions, states, what the backward pass reads, and what was dropped."""
    kernel, dtype, blocks = gpu_kernels(), call.dtype, block_weights(parameters)
    *lows, head, head_bias = lowered(blocks, parameters[-2:], dtype)
    maps = [kernel.scores.project(*weights[:5], call.heads) for weights in blocks]
    drops = kernel.residual.draw_drops(call.dropout, 2 * len(blocks), parameters[0])
    batch, steps = call.steps.times.shape
    embedded = kernel.tokens.forward(call.steps, token_layers(parameters), maps[0][0], call.epsilons[0], dtype)
    x, low, normed, inverse, scores, starts = embedded
    n, channels = steps * kernel.tokens.KINDS, x.shape[1]
    begun, every = _flags(starts, batch, n, x)
    nothing = ScanState.identity((batch, call.heads), channels // call.heads, device=x.device)
    saved, states = [normed, inverse], []
    for i, (weights, (wv, bv, wo, wu, wd), (scoring, query)) in enumerate(zip(blocks, lows, maps, strict=True)):
        last = i == len(blocks) - 1
        norms, keep = call.epsilons[1 + 2 * i :], KEEP if last else (0, 1)
        values = by_heads(torch.addmm(bv, low, wv.t()), batch, call.heads)
        flags = (part.expand(batch, call.heads, n) for part in (every, begun))
        before = nothing if call.states is None else call.states[i]
        seen = scores.view(batch, n, -1).transpose(1, 2), values, *before, *flags
        outputs, own, *state = kernel.scan.forward(*seen, dtype=dtype)
        y = by_rows(outputs)[slice(keep[0], None, keep[1])] @ wo.t()
        norm = weights.bo, weights.weight1, weights.bias1
        middle = kernel.residual.forward(x, y, norm, norms[0], drops[2 * i], dtype, keep=keep)
        active = middle[1] @ wu.t()
        slope = kernel.gelu.forward_(active, weights.bu)
        norm, following = (weights.bd, weights.weight2, weights.bias2), None if last else maps[i + 1][0]
        given = middle[0], active @ wd.t(), norm, norms[1], drops[2 * i + 1], dtype
        out = kernel.residual.forward(*given, scoring=following, wide=not last)
        lasting = low, values, outputs, own, state[1], *middle[2:4], middle[1], active, slope, *out[2:4]
        saved += Kept._make((wv, wo, wu, wd, query, *scoring, *lasting))
        states.append(ScanState(*state))
        x, low, scores = out[0], out[1], out[4]
    actions = torch.addmm(head_bias, low, head.t()).tanh_().view(batch, steps, -1)
    return actions, states, [*saved, low, head, begun, *nothing[1:], actions], drops


def backward(
    call: Call,
    parameters: Tensors,
    saved: Tensors,
    drops: Sequence[Any],
    d_actions: Tensor | None,
    d_states: Sequence[Tensor | None],
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """The parameters' gradients, where they are wanted."""
    kernel, blocks, dtype = gpu_kernels(), block_weights(parameters), call.dtype
    size = len(Kept._fields)
    kept = [Kept(*saved[2 + size * i :][:size]) for i in range(len(blocks))]
    low, head, begun, no_u, no_w, actions = saved[2 + size * len(blocks) :]
    batch, heads, n, dim = kept[0].values.shape
    channels = heads * dim
    d_z = torch.zeros_like(actions) if d_actions is None else torch.ops.aten.tanh_backward(d_actions, actions)
    d_z = d_z.flatten(0, 1)
    d_head, d_head_bias = product_over_rows(d_z, low), d_z.sum(0, dtype=torch.float32)
    sums = Sums(channels, heads, len(blocks), low)
    d_values = torch.empty(len(blocks), batch * n, channels, dtype=dtype, device=low.device)
    d_x: Tensor | None = None
    d_scores: Tensor | None = None
    d_low, found = d_z @ head, list[dict[str, Tensor]]()
    for i in reversed(range(len(blocks))):
        weights, here, last = blocks[i], kept[i], i == len(blocks) - 1
        after = None if last else (kernel.scoring(kept[i + 1].ws, kept[i + 1].bs), d_scores)
        norm, drop = (weights.weight2, weights.bias2), drops[2 * i + 1]
        saved_norm = here.normed2, here.inverse2
        given = d_x, d_low, saved_norm, norm, drop, dtype, sums.part(f"norm2 {i}")
        d_middle, d_y = kernel.residual.backward(*given, scoring=after)
        d_hidden = d_y @ here.wd
        kernel.gelu.backward_(here.slope, d_hidden, sums.part(f"hidden {i}"))
        d_wd, d_wu = product_over_rows(d_y, here.active), product_over_rows(d_hidden, here.middle)
        keep = KEEP if last else (0, 1)
        # Where not all rows are kept, the others' gradients are zeros, among which those of the kept ones are written.
        make = torch.zeros if last else torch.empty
        d_x, d_mixed = (make(batch * n, channels, dtype=t, device=low.device) for t in (torch.float32, dtype))
        norm, saved_norm = (weights.weight1, weights.bias1), (here.normed1, here.inverse1)
        given = d_middle, d_hidden @ here.wu, saved_norm, norm, drops[2 * i], dtype, sums.part(f"norm1 {i}")
        _, d_y = kernel.residual.backward(*given, d_x=d_x, keep=keep)
        d_wo = product_over_rows(d_y, by_rows(here.outputs)[slice(keep[0], None, keep[1])])
        torch.mm(d_y, here.wo, out=d_mixed[slice(keep[0], None, keep[1])])
        _, d_last_u, d_last_w = d_states[3 * i : 3 * i + 3]
        g = no_w if d_last_w is None else here.last_u.unsqueeze(-1) * d_last_w  # `scan/fused.py` derives both
        c = no_u if d_last_u is None else -here.last_u * d_last_u
        starts = begun.expand(batch, heads, n)
        scanned = here.weights, here.values, here.outputs, by_heads(d_mixed, batch, heads), g, c, starts
        d_scores, *_ = kernel.scan.backward(*scanned, by_heads(d_values[i], batch, heads))
        d_wv, d_low = product_over_rows(d_values[i], here.low), d_values[i] @ here.wv
        found.insert(0, {"wv": d_wv, "wo": d_wo, "wu": d_wu, "wd": d_wd})
    layers, first = token_layers(parameters), (kernel.scoring(kept[0].ws, kept[0].bs), d_scores)
    d_tokens = kernel.tokens.backward(d_x, d_low, saved[:2], layers, sums.part("tokens"), first)
    totals, d_bv = sums.totals(), d_values.sum(1, dtype=torch.float32)
    return [
        *_token_gradients(call, d_tokens, totals["tokens"], layers, wanted),
        *_block_gradients(call, blocks, kept, found, totals, d_bv),
        d_head,
        d_head_bias,
    ]


def _token_gradients(
    call: Call,
    d_tokens: Tensor,
    totals: Tensor,
    layers: Any,  # noqa: ANN401  of the kernels
    wanted: Sequence[bool],
) -> Iterator[Tensor | None]:
    """Of the parameters before the blocks'."""
    d_weight, d_bias, *d_shifts = totals.split(len(layers.weight))[: 2 + len(d_tokens)]
    for kind, (down, source, shift) in enumerate(zip(d_tokens, call.steps.sources, d_shifts, strict=True)):
        yield down.t() @ source.flatten(0, 1) if wanted[2 * kind] else None
        yield shift
    table = gpu_kernels().tokens.table_gradient
    yield table(d_tokens, call.steps.times, layers.table) if wanted[TOKENS - 3] else None
    yield from (d_weight, d_bias)


def _block_gradients(
    call: Call,
    blocks: Sequence[Weights],
    kept: Sequence[Kept],
    found: Sequence[dict[str, Tensor]],
    totals: dict[str, Tensor],
    d_bv: Tensor,
) -> Iterator[Tensor]:
    """Of the blocks' parameters, from the products' and the sums over rows."""
    kernel, channels = gpu_kernels(), len(blocks[0].token)
    d_token = d_bv.new_empty(len(blocks), kernel.scores.parts(channels), channels)
    rest = []
    for i, (weights, here) in enumerate(zip(blocks, kept, strict=True)):
        mapped = totals["tokens" if i == 0 else f"norm2 {i - 1}"][-call.heads * (channels + 1) :]
        d_scoring = kernel.scoring(mapped[: -call.heads].view(call.heads, channels), mapped[-call.heads :])
        given = weights.token, weights.wq, weights.wk, weights.bk, here.query, d_scoring, d_token[i]
        rest.append(kernel.scores.gradients(*given))
    for i, (token, (d_wq, d_bq, d_wk, d_bk), more) in enumerate(zip(d_token.sum(1), rest, found, strict=True)):
        d_bo, d_weight1, d_bias1 = totals[f"norm1 {i}"].split(channels)
        d_bd, d_weight2, d_bias2 = totals[f"norm2 {i}"].split(channels)[:3]
        yield from Weights(
            token, d_wq, d_bq, d_wk, d_bk, more["wv"], d_bv[i], more["wo"], d_bo, d_weight1, d_bias1,
            more["wu"], totals[f"hidden {i}"], more["wd"], d_bd, d_weight2, d_bias2,
        )  # fmt: skip


def _flags(starts: Tensor | None, batch: int, n: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Where sequences start, bool (B, 1, N), and that every token counts, (1, 1, 1)."""
    every = torch.ones(1, 1, 1, dtype=torch.bool, device=like.device)
    return (torch.zeros_like(every) if starts is None else starts.view(batch, 1, n)), every
