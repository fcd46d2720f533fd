"""A block's layers: dropout, and a residual connection with it and a layer norm in one operation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .. import kernels

RANDOM_BITS = 16  # an element; probabilities are rounded to multiples of 2^-16
WORD_BITS = 64


class ResidualNorm(nn.LayerNorm):
    """LayerNorm(x + dropout(y)); trained on the CPU in a third of the time of the three operations.

    Args:
        width: C.
        dropout: probability, of the elements of y.
    """

    def __init__(self, width: int, dropout: float = 0.0) -> None:
        """With weight one and bias zero."""
        super().__init__(width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]  # a layer norm of a sum of two
        """x and y (..., C) -> (..., C); in float32 where x is."""
        if not self._compiled(x, y):
            return super().forward(x + self.dropout(y))
        out: Tensor = _ResidualNorm.apply(  # type: ignore[no-untyped-call]
            x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]), self.weight, self.bias, self.eps, self.dropout.p
        )
        return out.view(x.shape)

    def _compiled(self, x: Tensor, y: Tensor) -> bool:
        return (
            self.training
            and torch.is_grad_enabled()
            and {part.dtype for part in (x, self.weight, self.bias)} == {torch.float32}
            and y.dtype in (torch.float32, torch.bfloat16)
            and x.shape == y.shape
            and self.dropout.p < 1
            and kernels.callable_on(x)
        )


class _ResidualNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch's own context
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        bias: Tensor,
        epsilon: float,
        p: float,
    ) -> Tensor:
        kernel = kernels.load_kernels("residual_norm")
        ctx.drop, ctx.y_dtype = kernel.draw_drop(p), y.dtype
        rows, shift = (x.contiguous(), y.contiguous()), torch.zeros_like(bias)
        outputs, _, normed, inverse = kernel.forward(*rows, shift, weight, bias, epsilon, ctx.drop)
        ctx.save_for_backward(normed, inverse, weight)
        out: Tensor = outputs
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_outputs: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        kernel = kernels.load_kernels("residual_norm")
        d_x, d_y, _, *d_norm = kernel.backward(d_outputs.contiguous(), *ctx.saved_tensors, ctx.drop, ctx.y_dtype)
        return d_x, d_y, *d_norm, None, None


class Dropout(nn.Dropout):
    """`nn.Dropout`; on the CPU it takes less than half the time.

    torch draws a Bernoulli number an element there, one after the other: a tenth of a small model's update. Here every
    64-bit random number serves four elements. The probability is rounded to a multiple of 2^-16, and what is kept is
    scaled by the rounded one, so that the mean stays exact.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Each element of x (any shape) is zero with probability p, else divided by 1 - p; x itself in evaluation."""
        dropped = round(self.p * 2**RANDOM_BITS)
        by_words = x.device.type == "cpu" and not torch.compiler.is_compiling()
        if not (self.training and by_words and 0 < dropped < 2**RANDOM_BITS):
            return super().forward(x)
        words = torch.empty(-(-x.numel() * RANDOM_BITS // WORD_BITS), dtype=torch.int64)
        words.random_(torch.iinfo(torch.int64).min, None)
        bits = words.view(torch.int16)[: x.numel()].view(x.shape)
        kept = bits >= dropped + torch.iinfo(torch.int16).min
        y: Tensor = x * kept.to(x.dtype).mul_(2**RANDOM_BITS / (2**RANDOM_BITS - dropped))
        return y
