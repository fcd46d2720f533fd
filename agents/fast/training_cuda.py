"""A decision model forward and backward as one operation: how Decision-Aaren is trained on CUDA devices.

What takes the time of an update there is less the arithmetic than some five hundred launches. Here the passes over the
tokens are Triton's (`kernels/cuda`), the matrix products are torch's, and the rest goes along: scores with the layer
norm before them, conversions with what is written, the sums over all tokens in one at the end.

Shape suffixes: B batch, T environment steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .. import kernels
from ..mixers import Aaren
from ..model.block import Block, TrunkState
from ..model.decision import DecisionModel
from ..model.layers import ResidualNorm
from ..scan.rows import tensors
from ..scan.state import ScanState
from . import training_cuda_passes as passes
from .products import products_dtype
from .training_blocks import are_known
from .training_cuda_parts import Call, Tensors, gpu_kernels, groups
from .training_tokens import can_embed


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
    given = gpu_kernels().tokens.Steps(
        tuple(source.contiguous() for source in sources),
        timesteps.contiguous(),
        None if starts is None else starts.contiguous(),
    )
    epsilons = model.norm.eps, *(norm.eps for block in blocks for norm in (block.norm1, block.norm2))
    call = Call(given, mixer.heads, products_dtype(sources[0]), epsilons, residual.dropout.p, cast("Any", state))
    outs = _Trained.apply(call, *_parameters(model, blocks))  # type: ignore[no-untyped-call]
    actions, *states = outs
    return actions, tuple(ScanState(*state) for state in groups(states, 3))


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


class _Trained(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, *parameters: Tensor) -> Tensors:  # noqa: ANN401  torch's own context
        with torch.autocast(parameters[0].device.type, enabled=False):
            actions, states, saved, drops = passes.forward(call, parameters)
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
        found = passes.backward(ctx.call, parameters, saved, ctx.drops, d_actions, d_states, wanted)
        return None, *found
