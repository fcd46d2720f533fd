"""The embedding of a step's tokens with its layer norm as one operation: how it is trained on a CPU.

`DecisionModel` makes its tokens from them in PyTorch's operations; tests hold one against the other. The maps are
float32 here, whatever autocast says: they are too small to gain by less.

Shape suffixes: B batch, T steps, J tokens a step, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .. import kernels


class _Call(NamedTuple):
    """What is not differentiated.

    Attributes:
        begins: int64 (J + 1,), where each token's numbers begin, and their count.
        numbers: (B T, K), all tokens' numbers side by side.
        times: int64 (B T,).
        epsilon: of the layer norm.
        low: the type of the second result.
        shape: of a result.
    """

    begins: Tensor
    numbers: Tensor
    times: Tensor
    epsilon: float
    low: torch.dtype
    shape: tuple[int, ...]


def can_embed(sources: Sequence[Tensor], layers: Sequence[nn.Module], norm: nn.Module) -> bool:
    """Whether `embed` computes what the layers do: plain, in float32, and nobody asks for the sources' gradients."""
    return (
        all(source.dtype == torch.float32 and not source.requires_grad for source in sources)
        and all(type(layer) is nn.Linear and layer.weight.dtype == torch.float32 for layer in layers)
        and type(norm) is nn.LayerNorm
        and norm.weight.dtype == torch.float32
    )


def embed(
    sources: Sequence[Tensor],
    layers: Sequence[nn.Linear],
    times: Tensor,
    table: Tensor,
    norm: nn.LayerNorm,
    low: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Every step's tokens LayerNorm(layer(source) + time), (B, J T, C), and again in the type `low`.

    Args:
        sources: of each token of a step, (B, T, its numbers).
        layers: of each token.
        times: int64 (B, T), rows of the table.
        table: of the embedding of time, (rows, C).
        norm: the layer norm of all tokens.
        low: float32 or bfloat16.

    Raises:
        IndexError: a time is no row of the table.
    """
    batch, steps = times.shape
    least, most = times.aminmax()
    if least < 0 or most >= len(table):  # compiled code would read what lies beside it
        raise IndexError(f"time steps from {int(least)} to {int(most)} for an embedding of {len(table)}")
    begins = torch.tensor([0, *(source.shape[-1] for source in sources)]).cumsum(0)
    numbers = torch.cat(tuple(sources), -1).view(batch * steps, -1)
    shape = batch, steps * len(layers), len(norm.weight)
    call = _Call(begins, numbers, times.reshape(-1), norm.eps, low, shape)
    parameters = [parameter for layer in layers for parameter in (layer.weight, layer.bias)]
    found: tuple[Tensor, Tensor] = _Embed.apply(  # type: ignore[no-untyped-call]
        call, table, norm.weight, norm.bias, *parameters
    )
    return found


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch's own context
        call: _Call,
        table: Tensor,
        weight: Tensor,
        bias: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        maps, shifts = torch.cat(parameters[::2], 1).t().contiguous(), torch.stack(parameters[1::2])
        given = call.begins, call.numbers, call.times, maps, shifts, table, weight, bias, call.epsilon, call.low
        *tokens, normed, inverse = kernels.load_kernels("token_embedding").forward(*given)
        ctx.call, ctx.table = call, table.shape
        ctx.save_for_backward(normed, inverse, weight)
        return tuple(part.view(call.shape) for part in tokens)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_tokens: Tensor, d_low: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        call, (normed, inverse, weight) = ctx.call, ctx.saved_tensors
        d_both = (part.reshape(normed.shape).contiguous() for part in (d_tokens, d_low))
        given = call.begins, call.numbers, *d_both, normed, inverse, weight
        d_maps, d_shifts, d_weight, d_bias, d_times = kernels.load_kernels("token_embedding").backward(*given)
        d_table = weight.new_zeros(ctx.table).index_add_(0, call.times, d_times)
        matrices = (part.t() for part in d_maps.split(call.begins.diff().tolist()))
        return None, d_table, d_weight, d_bias, *(x for pair in zip(matrices, d_shifts, strict=True) for x in pair)
