"""Blocks of Decision-Aaren forward and backward as one operation each: how they are trained on a CPU.

What `Block` does in thirty operations, each with its node in the graph and its conversions between float32 and
bfloat16, is here a dozen matrix products and the kernels of the scan, of GELU and of the residual connections.
`tests/agents/fast/test_training_blocks.py` holds it against `Block`.

Shape suffixes: B batch, N tokens, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .. import kernels
from ..mixers import Aaren
from ..model.block import Block, TrunkState
from ..model.layers import ResidualNorm
from ..scan.rows import tensors
from ..scan.state import ScanState
from .products import products_dtype
from .training_passes import Call, Mixed, Mixer, Mlp, Transformed, mix, mix_backward, transform, transform_backward

Tensors: TypeAlias = tuple[Tensor, ...]


def can_train(blocks: Sequence[Block], x: Tensor, state: TrunkState | None) -> bool:
    """Whether `train_blocks` computes what the blocks do: Aaren, post-norm, GELU, float32, on a CPU with Numba.

    A gradient of the state before the tokens is not computed.
    """
    return (
        torch.is_grad_enabled()
        and x.dtype == torch.float32
        and products_dtype(x) in (torch.float32, torch.bfloat16)
        and kernels.callable_on(x)
        and are_known(blocks)
        and not any(part.requires_grad for part in tensors(state))
    )


def are_known(blocks: Sequence[Block]) -> bool:
    """Whether the blocks are such as are written out here: Aaren, post-norm, GELU, float32, in training."""
    return all(map(_is_known, blocks))


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
    blocks: Sequence[Block],
    x: Tensor,
    low: Tensor,
    starts: Tensor | None = None,
    keep: slice | None = None,
    state: Sequence[ScanState] | None = None,
) -> tuple[Tensor, list[ScanState]]:
    """The last block's tokens, those that are kept, and every block's state; differentiable once.

    The modules lend their parameters: neither their `forward` nor hooks on them are called.

    Args:
        blocks: one after the other.
        x: tokens (B, N, C).
        low: the same in the type of the matrix products.
        starts: bool (B, N), True where a new sequence begins.
        keep: the positions that are read.
        state: every block's before the tokens; no gradient goes into it.
    """
    states = []
    for block, before in zip(blocks, [None] * len(blocks) if state is None else state, strict=True):
        last = block is blocks[-1]
        x, low, after = _train_block(block, x, low, starts, keep if last else None, before, last=last)
        states.append(after)
    return x, states


def _train_block(
    block: Block,
    x: Tensor,
    low: Tensor,
    starts: Tensor | None,
    keep: slice | None,
    before: ScanState | None,
    *,
    last: bool,
) -> tuple[Tensor, Tensor, ScanState]:
    mixer, norm1, norm2 = block.mixer, block.norm1, block.norm2
    assert isinstance(mixer, Aaren) and isinstance(norm1, ResidualNorm) and isinstance(norm2, ResidualNorm)
    draw = kernels.load_kernels("residual_norm").draw_drop
    call = Call(
        mixer.heads,
        low.dtype,
        (norm1.eps, norm2.eps),
        (draw(norm1.dropout.p), draw(norm2.dropout.p)),
        torch.zeros((), dtype=torch.bool) if starts is None else starts.unsqueeze(1),
        keep,
        last,
        before,
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
        call: Call,
        *parameters: Tensor,
    ) -> Tensors:
        with torch.autocast("cpu", enabled=False):
            cut = len(Mixer._fields)
            middle, low_middle, state, mixed = mix(x, low, call, Mixer(*parameters[:cut]))
            out, low_out, transformed = transform(middle, low_middle, call, Mlp(*parameters[cut:]))
        ctx.call = call
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
        cut = len(Mixed._fields)
        mixed, transformed = Mixed(*ctx.saved_tensors[:cut]), Transformed(*ctx.saved_tensors[cut:])
        d_middle, d_low_middle, d_mlp = transform_backward(d_out, d_low_out, ctx.call, transformed)
        d_x, d_low, d_mixer = mix_backward(d_middle, d_low_middle, (d_last_u, d_last_w), ctx.call, mixed)
        return d_x, d_low, None, *d_mixer, *d_mlp
