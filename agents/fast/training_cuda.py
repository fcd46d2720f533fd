"""A decision model forward and backward as one operation: how Decision-Aaren is trained on CUDA devices.

What takes the time of an update there is less the arithmetic than some five hundred launches. Here the passes over the
tokens are Triton's (`kernels/cuda`), the matrix products are torch's, and the rest goes along: scores with the layer
norm before them, conversions with what is written, the sums over all tokens in one at the end.

Shape suffixes: B batch, N tokens, C channels, H heads, D = C / H channels a head. Rows are tokens of all sequences,
(B N, C); after the last mixer only those that are kept.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .. import kernels
from ..mixers import Aaren
from ..model.block import Block, TrunkState
from ..model.decision import ACTED_ON, DecisionModel
from ..model.layers import ResidualNorm
from ..scan.rows import tensors
from ..scan.state import ScanState
from .products import product_over_rows, products_dtype
from .training_blocks import are_known
from .training_tokens import can_embed

Tensors: TypeAlias = tuple[Tensor, ...]
KEEP = ACTED_ON.start, ACTED_ON.step  # of a row's tokens, whose number is a multiple of the step


class Weights(NamedTuple):
    """A block's parameters, or their gradients: weights w, biases b."""

    token: Tensor
    wq: Tensor
    bq: Tensor
    wk: Tensor
    bk: Tensor
    wv: Tensor
    bv: Tensor
    wo: Tensor
    bo: Tensor
    weight1: Tensor  # of the layer norm
    bias1: Tensor
    wu: Tensor  # up to the hidden units
    bu: Tensor
    wd: Tensor
    bd: Tensor
    weight2: Tensor
    bias2: Tensor


LOWERED = "wv", "bv", "wo", "wu", "wd"  # those that are multiplied in the type of the products


class Kept(NamedTuple):
    """What a block's backward pass reads; tokens are rows, in the type of the products where nothing else is said."""

    wv: Tensor  # in the type of the products, as wo, wu and wd
    wo: Tensor
    wu: Tensor
    wd: Tensor
    query: Tensor  # scaled, as `kernels/cuda/scores.py` has it; float32, as its map ws, bs
    ws: Tensor
    bs: Tensor
    low: Tensor  # the block's tokens
    values: Tensor  # (B, H, N, D)
    outputs: Tensor  # of the scan, (B, H, N, D)
    weights: Tensor  # of every position for itself, (B, H, N), float32
    last_u: Tensor  # of the state after the last token, (B, H), float64
    normed1: Tensor  # by the first layer norm, as inverse1; float32
    inverse1: Tensor
    middle: Tensor  # the MLP's input
    active: Tensor  # its hidden units after GELU, rows of 4 C
    slope: Tensor  # of GELU there
    normed2: Tensor
    inverse2: Tensor


class Call(NamedTuple):
    """What is not differentiated.

    Attributes:
        steps: their numbers, times and starts.
        heads: of every mixer.
        dtype: of the matrix products.
        epsilons: of the tokens' layer norm, and of every block's two.
        dropout: of every block's two residual connections.
        states: of every block before the steps; None where there were none.
    """

    steps: Any
    heads: int
    dtype: torch.dtype
    epsilons: tuple[float, ...]
    dropout: float
    states: Sequence[ScanState] | None


def can_train(model: DecisionModel, observations: Tensor, sources: Sequence[Tensor], state: TrunkState | None) -> bool:
    """Whether `train` computes what the model does: Aaren, post-norm, GELU, float32, on a device with Triton.

    A gradient of the state before the steps is not computed.
    """
    blocks = cast("Sequence[Block]", model.trunk.blocks)
    return (
        torch.is_grad_enabled()
        and observations.dtype == torch.float32
        and products_dtype(observations) in (torch.float32, torch.bfloat16)
        and not torch.compiler.is_compiling()
        and kernels.choose(observations) == "triton"
        and are_known(blocks)
        and len({cast("ResidualNorm", norm).dropout.p for b in blocks for norm in (b.norm1, b.norm2)}) == 1
        and can_embed(sources, model.token_layers(), model.norm)
        and type(model.head) is nn.Linear
        and not any(part.requires_grad for part in tensors(state))
    )


def train(
    model: DecisionModel,
    sources: Sequence[Tensor],
    timesteps: Tensor,
    starts: Tensor | None,
    state: TrunkState | None = None,
) -> tuple[Tensor, TrunkState]:
    """As `DecisionModel.forward`, differentiable once; a time step below 0 gives NaN, which nothing waits to see.

    The modules lend their parameters: neither their `forward` nor hooks on them are called.

    Args:
        model: as `can_train` wants it.
        sources: of each token of a step, (B, T, its numbers).
        timesteps: int64 (B, T).
        starts: bool (B, T), True where a new sequence begins.
        state: the trunk's before the steps; no gradient goes into it.
    """
    blocks = [cast("Block", block) for block in model.trunk.blocks]
    mixer, residual = blocks[0].mixer, cast("ResidualNorm", blocks[0].norm1)
    assert isinstance(mixer, Aaren)
    given = _kernels().tokens.Steps(
        tuple(source.contiguous() for source in sources),
        timesteps.contiguous(),
        None if starts is None else starts.contiguous(),
    )
    epsilons = model.norm.eps, *(norm.eps for block in blocks for norm in (block.norm1, block.norm2))
    call = Call(given, mixer.heads, products_dtype(sources[0]), epsilons, residual.dropout.p, cast("Any", state))
    outs = _Trained.apply(call, *_parameters(model, blocks))  # type: ignore[no-untyped-call]
    actions, *states = outs
    return actions, tuple(ScanState(*state) for state in _groups(states, 3))


def _parameters(model: DecisionModel, blocks: Sequence[Block]) -> Iterator[Tensor]:
    """Those of the tokens, of every block as `Weights` has them, and of the head."""
    for layer in model.token_layers():
        yield from (layer.weight, layer.bias)
    yield from (model.embed_timestep.weight, model.norm.weight, model.norm.bias)
    for block in blocks:
        mixer = cast("Aaren", block.mixer)
        projections = mixer.query, mixer.key, mixer.value, mixer.output
        layers = (*projections, block.norm1, block.mlp[0], block.mlp[2], block.norm2)
        yield mixer.query_token
        yield from (part for layer in layers for part in (cast("Tensor", layer.weight), cast("Tensor", layer.bias)))
    yield from (model.head.weight, model.head.bias)


TOKENS = 9  # parameters before the blocks'


class _Trained(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, *parameters: Tensor) -> Tensors:  # noqa: ANN401  torch's own context
        with torch.autocast(parameters[0].device.type, enabled=False):
            actions, states, saved, drops = _forward(call, parameters)
        ctx.call, ctx.drops = call, drops
        ctx.save_for_backward(*parameters, *saved)
        ctx.mark_non_differentiable(*(state.m for state in states))  # it cancels in every ratio
        ctx.set_materialize_grads(False)
        return actions, *itertools.chain.from_iterable(states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_actions: Tensor | None, *d_states: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        count = len(ctx.needs_input_grad) - 1
        parameters, saved = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        wanted = ctx.needs_input_grad[1:]
        found = _backward(ctx.call, parameters, saved, ctx.drops, d_actions, d_states, wanted)
        return None, *found


def _forward(call: Call, parameters: Tensors) -> tuple[Tensor, list[ScanState], list[Tensor], list[Any]]:
    """Actions, states, what the backward pass reads, and what was dropped."""
    kernel, dtype, blocks = _kernels(), call.dtype, _blocks(parameters)
    *lows, head, head_bias = _lowered(blocks, parameters[-2:], dtype)
    maps = [kernel.scores.project(*weights[:5], call.heads) for weights in blocks]
    drops = kernel.residual.draw_drops(call.dropout, 2 * len(blocks), parameters[0])
    batch, steps = call.steps.times.shape
    embedded = kernel.tokens.forward(call.steps, _layers(parameters), maps[0][0], call.epsilons[0], dtype)
    x, low, normed, inverse, scores, starts = embedded
    n, channels = steps * kernel.tokens.KINDS, x.shape[1]
    begun, every = _flags(starts, batch, n, x)
    nothing = ScanState.identity((batch, call.heads), channels // call.heads, device=x.device)
    saved, states = [normed, inverse], []
    for i, (weights, (wv, bv, wo, wu, wd), (scoring, query)) in enumerate(zip(blocks, lows, maps, strict=True)):
        last = i == len(blocks) - 1
        norms, keep = call.epsilons[1 + 2 * i :], KEEP if last else (0, 1)
        values = _heads(torch.addmm(bv, low, wv.t()), batch, call.heads)
        flags = (part.expand(batch, call.heads, n) for part in (every, begun))
        before = nothing if call.states is None else call.states[i]
        seen = scores.view(batch, n, -1).transpose(1, 2), values, *before, *flags
        outputs, own, *state = kernel.scan.forward(*seen, dtype=dtype)
        y = _rows(outputs)[slice(keep[0], None, keep[1])] @ wo.t()
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


def _backward(
    call: Call,
    parameters: Tensors,
    saved: Tensors,
    drops: Sequence[Any],
    d_actions: Tensor | None,
    d_states: Sequence[Tensor | None],
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """The parameters' gradients, where they are wanted."""
    kernel, blocks, dtype = _kernels(), _blocks(parameters), call.dtype
    size = len(Kept._fields)
    kept = [Kept(*saved[2 + size * i :][:size]) for i in range(len(blocks))]
    low, head, begun, no_u, no_w, actions = saved[2 + size * len(blocks) :]
    batch, heads, n, dim = kept[0].values.shape
    channels = heads * dim
    d_z = torch.zeros_like(actions) if d_actions is None else torch.ops.aten.tanh_backward(d_actions, actions)
    d_z = d_z.flatten(0, 1)
    d_head, d_head_bias = product_over_rows(d_z, low), d_z.sum(0, dtype=torch.float32)
    sums = _Sums(channels, heads, len(blocks), low)
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
        d_wo = product_over_rows(d_y, _rows(here.outputs)[slice(keep[0], None, keep[1])])
        torch.mm(d_y, here.wo, out=d_mixed[slice(keep[0], None, keep[1])])
        _, d_last_u, d_last_w = d_states[3 * i : 3 * i + 3]
        g = no_w if d_last_w is None else here.last_u.unsqueeze(-1) * d_last_w  # `scan/fused.py` derives both
        c = no_u if d_last_u is None else -here.last_u * d_last_u
        starts = begun.expand(batch, heads, n)
        scanned = here.weights, here.values, here.outputs, _heads(d_mixed, batch, heads), g, c, starts
        d_scores, *_ = kernel.scan.backward(*scanned, _heads(d_values[i], batch, heads))
        d_wv, d_low = product_over_rows(d_values[i], here.low), d_values[i] @ here.wv
        found.insert(0, {"wv": d_wv, "wo": d_wo, "wu": d_wu, "wd": d_wd})
    layers, first = _layers(parameters), (kernel.scoring(kept[0].ws, kept[0].bs), d_scores)
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
    table = _kernels().tokens.table_gradient
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
    kernel, channels = _kernels(), len(blocks[0].token)
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


class _Sums:
    """Sums over all rows, in parts side by side, so that they are added up in one operation.

    Args:
        channels: C.
        heads: H.
        layers: the number of blocks.
        like: on whose device they are.
    """

    def __init__(self, channels: int, heads: int, layers: int, like: Tensor) -> None:
        """Every part is to be filled."""
        kernel = _kernels()
        sizes = {"tokens": kernel.tokens.columns(channels, heads)}
        for i in range(layers):
            following = 0 if i == layers - 1 else heads
            sizes[f"norm1 {i}"] = kernel.residual.columns(channels, 0)
            sizes[f"norm2 {i}"] = kernel.residual.columns(channels, following)
            sizes[f"hidden {i}"] = 4 * channels
        ends = [0, *itertools.accumulate(sizes.values())]
        self._places = {name: slice(*ends[i : i + 2]) for i, name in enumerate(sizes)}
        self._parts = torch.empty(kernel.launching.PARTS, ends[-1], device=like.device)

    def part(self, name: str) -> Tensor:
        """Where a kernel leaves its sums."""
        return self._parts[:, self._places[name]]

    def totals(self) -> dict[str, Tensor]:
        """Each kernel's sums."""
        total = self._parts.sum(0)
        return {name: total[place] for name, place in self._places.items()}


class _Kernels(NamedTuple):
    tokens: ModuleType
    residual: ModuleType
    gelu: ModuleType
    scores: ModuleType
    scan: ModuleType
    launching: ModuleType

    @property
    def scoring(self) -> Any:  # noqa: ANN401  a class of the kernels'
        return self.residual.Scoring


@functools.cache
def _kernels() -> _Kernels:
    names = "cuda.tokens", "cuda.residual_norm", "cuda.gelu", "cuda.scores", "scan_triton", "cuda.launching"
    return _Kernels(*map(kernels.load_kernels, names))


def _blocks(parameters: Tensors) -> list[Weights]:
    return [Weights(*some) for some in _groups(parameters[TOKENS:-2], len(Weights._fields))]


def _layers(parameters: Tensors) -> Any:  # noqa: ANN401  of the kernels
    maps = tuple(_groups(parameters[: TOKENS - 3], 2))
    return _kernels().tokens.Layers(maps, *parameters[TOKENS - 3 : TOKENS])


def _lowered(blocks: Sequence[Weights], head: Tensors, dtype: torch.dtype) -> list[Any]:
    """The weights of the products in their type, five of every block and the head's two, all in one operation."""
    whole = [getattr(weights, name) for weights in blocks for name in LOWERED] + list(head)
    if dtype == torch.float32:
        lows = whole
    else:
        lows = [torch.empty_like(part, dtype=dtype) for part in whole]
        torch._foreach_copy_(lows, whole)
    return [*_groups(lows[: -len(head)], len(LOWERED)), *lows[-len(head) :]]


def _flags(starts: Tensor | None, batch: int, n: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Where sequences start, bool (B, 1, N), and that every token counts, (1, 1, 1)."""
    every = torch.ones(1, 1, 1, dtype=torch.bool, device=like.device)
    return (torch.zeros_like(every) if starts is None else starts.view(batch, 1, n)), every


def _groups(tensors: Sequence[Tensor], size: int) -> list[Tensors]:
    return [tuple(tensors[at : at + size]) for at in range(0, len(tensors), size)]


def _heads(rows: Tensor, batch: int, heads: int) -> Tensor:
    """(B N, C) -> (B, H, N, D)."""
    return rows.view(batch, -1, heads, rows.shape[-1] // heads).transpose(1, 2)


def _rows(values: Tensor) -> Tensor:
    """The inverse of `_heads`."""
    return values.transpose(1, 2).flatten(2).flatten(0, 1)
