"""Modules of one shape as one, for several seeds at once: every product and kernel is launched once for all.

The weights are stacked, (S, ...), and the batch holds the modules' batches one after another, (S B, ...), so that
everything without weights, such as a scan, sees a larger batch. Outputs and gradients are those of each module alone:
to the bit in float64 on a CPU with one thread.

Shape suffixes: S modules, B batch, M rows of a module (B times further dimensions), I inputs, O outputs, C channels.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

M = TypeVar("M", bound=nn.Module)


def affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b with weights (O, I), or (S, O, I) of which each takes its part of the batch (S B, ..., I)."""
    if weight.dim() == 2:
        return F.linear(x, weight, bias)
    device = x.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    rows = x.reshape(len(weight), -1, x.shape[-1])
    # As F.linear, which adds the bias to a rounded product where x has gaps.
    late = None if x.is_contiguous() else bias
    found: Tensor = _Affine.apply(rows, weight, bias if late is None else None)  # type: ignore[no-untyped-call]
    found = found if late is None else found + late.unsqueeze(1)
    return found.view(*x.shape[:-1], weight.shape[1])


class _Affine(torch.autograd.Function):
    """The products of a single layer. Autograd of a stack transposes the gradient, and so rounds otherwise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        return x.bmm(weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight.mT)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        d_x = g.bmm(weight) if of_x else None
        d_weight = g.mT.bmm(x) if of_weight else None
        return d_x, d_weight, g.sum(1) if of_bias else None


def sums_apart(device: torch.device) -> bool:
    """Whether the gradients of a layer norm's weights are summed for one module after another.

    On a CPU sums of a stack would round otherwise. On a GPU three more launches per module take longer than the sums.
    """
    return device.type == "cpu"


class _Normalize(torch.autograd.Function):
    """Layer norm of every module."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:  # noqa: ANN401
        x = x.contiguous()
        normalized, mean, inverse = torch.native_layer_norm(x, x.shape[-1:], None, None, eps)
        ctx.apart = sums_apart(x.device)
        ctx.save_for_backward(x, mean, inverse, weight, bias if ctx.apart else normalized)
        return torch.addcmul(bias.unsqueeze(1), normalized, weight.unsqueeze(1))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        backward, g = torch.ops.aten.native_layer_norm_backward, g.contiguous()
        if not ctx.apart:
            x, mean, inverse, weight, normalized = ctx.saved_tensors
            of_x = g * weight.unsqueeze(1), x, x.shape[-1:], mean, inverse, None, None, [True, False, False]
            return backward(*of_x)[0], (g * normalized).sum(1), g.sum(1), None
        of_each = zip(g, *ctx.saved_tensors, strict=True)
        parts = [
            backward(g, x, x.shape[-1:], mean, inverse, weight, bias, [True] * 3)
            for g, x, mean, inverse, weight, bias in of_each
        ]
        return *(torch.stack(part) for part in zip(*parts, strict=True)), None


class StackedLinear(nn.Module):
    """`nn.Linear` of S modules."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.in_features, self.out_features = layers[0].in_features, layers[0].out_features

    def forward(self, x: Tensor) -> Tensor:
        """(S B, ..., I) -> (S B, ..., O)."""
        return affine(x, self.weight, self.bias)  # type: ignore[arg-type]


class StackedLayerNorm(nn.Module):
    """`nn.LayerNorm` of S modules."""

    def __init__(self, layers: Sequence[nn.LayerNorm]) -> None:
        super().__init__()
        self.eps = layers[0].eps

    def forward(self, x: Tensor) -> Tensor:
        """(S B, ..., C) -> the same shape."""
        rows = x.reshape(len(self.weight), -1, x.shape[-1])  # type: ignore[arg-type]
        return _Normalize.apply(rows, self.weight, self.bias, self.eps).view(x.shape)  # type: ignore[no-any-return,no-untyped-call]


class StackedEmbedding(nn.Module):
    """`nn.Embedding` of S modules."""

    def __init__(self, layers: Sequence[nn.Embedding]) -> None:
        super().__init__()
        self.rows = layers[0].num_embeddings

    def forward(self, index: Tensor) -> Tensor:
        """Integers (S B, ...) -> (S B, ..., C)."""
        weight: Tensor = self.weight  # type: ignore[assignment]
        first = torch.arange(len(weight), device=index.device) * self.rows
        place = index.reshape(len(weight), -1) + first.unsqueeze(1)
        return F.embedding(place.view(index.shape), weight.flatten(0, 1))


STACKED: dict[type[nn.Module], Any] = {
    nn.Linear: StackedLinear,
    nn.LayerNorm: StackedLayerNorm,
    nn.Embedding: StackedEmbedding,
}


def stack(modules: Sequence[M]) -> M:
    """One module with the weights of all, of one shape, whose own become views of it: what trains it trains them.

    Its parameters have the names of theirs. A module with parameters of its own, besides those of STACKED, must take
    them stacked: see `Mixer.stackable`. Buffers are those of the first.
    """
    whole = copy.deepcopy(modules[0])
    return _stacked(whole, modules)  # type: ignore[return-value]


def _stacked(whole: nn.Module, modules: Sequence[nn.Module]) -> nn.Module:
    if made := STACKED.get(type(whole)):
        whole = made(modules)
    for name, _ in modules[0].named_children():
        setattr(whole, name, _stacked(getattr(whole, name), [getattr(module, name) for module in modules]))
    for name, own in modules[0]._parameters.items():
        if own is None:
            whole.register_parameter(name, None)
            continue
        every = [getattr(module, name) for module in modules]
        stacked = nn.Parameter(torch.stack([one.data for one in every]), requires_grad=own.requires_grad)
        whole.register_parameter(name, stacked)
        for one, part in zip(every, stacked.data, strict=True):
            one.data = part
    return whole
