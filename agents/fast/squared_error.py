"""The squared error over real positions as one operation: how it is taken on CUDA devices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import kernels


def squared_error(predicted: Tensor, target: Tensor, mask: Tensor, count: Tensor | None) -> Tensor | None:
    """As the trainer's `masked_mse`; None where Triton's kernels cannot take it."""
    if torch.compiler.is_compiling() or kernels.choose(predicted) != "triton":
        return None
    given = predicted.contiguous(), target.contiguous(), mask.contiguous()
    error: Tensor = _SquaredError.apply(*given, count)  # type: ignore[no-untyped-call]
    return error


class _SquaredError(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch's own context
        predicted: Tensor,
        target: Tensor,
        mask: Tensor,
        count: Tensor | None,
    ) -> Tensor:
        error: Tensor
        error, share = kernels.load_kernels("cuda.loss").forward(predicted, target, mask, count)
        ctx.save_for_backward(predicted, target, mask, share)
        return error

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_error: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        return kernels.load_kernels("cuda.loss").backward(*ctx.saved_tensors, d_error), None, None, None
