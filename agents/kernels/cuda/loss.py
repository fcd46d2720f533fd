"""The squared error over real positions and its gradient, in Triton: a few thousand numbers, one program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import TILE, launch
from .rows import Pointer


@triton.jit  # type: ignore[untyped-decorator]
def squared_error(
    predicted: Pointer, target: Pointer, mask: Pointer, count: Pointer, error: Pointer, share: Pointer, rows: int,
    A: tl.constexpr, A_UP: tl.constexpr, ROWS: tl.constexpr, COUNTED: tl.constexpr,
) -> None:  # fmt: skip
    """The whole error, and 2 / (A count), by which the gradient is scaled. COUNTED: the count is not the mask's own."""
    a = tl.arange(0, A_UP)
    total, real = tl.zeros((ROWS, A_UP), tl.float32), tl.zeros((ROWS,), tl.int32)
    for begin in range(0, rows, ROWS):
        row = begin + tl.arange(0, ROWS)
        here = tl.load(mask + row, mask=row < rows, other=0) != 0
        there, at = here[:, None] & (a < A)[None, :], row[:, None] * A + a[None, :]
        off = tl.load(predicted + at, mask=there, other=0.0).to(tl.float32) - tl.load(
            target + at, mask=there, other=0.0
        )
        total += off * off
        real += here.to(tl.int32)
    steps = tl.load(count).to(tl.float32) if COUNTED else tl.sum(real, 0).to(tl.float32)
    tl.store(error, tl.sum(tl.sum(total, 1), 0) / (A * steps))
    tl.store(share, 2 / (A * steps))


@triton.jit  # type: ignore[untyped-decorator]
def squared_error_gradient(
    predicted: Pointer, target: Pointer, mask: Pointer, share: Pointer, up: Pointer, gradient: Pointer, numbers: int,
    A: tl.constexpr, TILE: tl.constexpr,
) -> None:  # fmt: skip
    """Some of the predictions' gradient."""
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    here = tl.load(mask + at // A, mask=at < numbers, other=0) != 0
    off = tl.load(predicted + at, mask=here, other=0.0).to(tl.float32) - tl.load(target + at, mask=here, other=0.0)
    down = tl.where(here, off * tl.load(share) * tl.load(up), 0.0)
    tl.store(gradient + at, down.to(gradient.dtype.element_ty), mask=at < numbers)


def forward(predicted: Tensor, target: Tensor, mask: Tensor, count: Tensor | None) -> tuple[Tensor, Tensor]:
    """The error and the gradient's scale, float32 scalars; see `fast/squared_error.py`.

    Args:
        predicted: float32 or bfloat16 (B, T, A), contiguous, as all are.
        target: float32 (B, T, A).
        mask: bool (B, T).
        count: of the real positions, if not those of the mask.
    """
    error, share = (target.new_empty(()) for _ in range(2))
    size = target.shape[-1]
    padded = triton.next_power_of_2(size)
    flags = mask.view(torch.uint8)
    launch(
        squared_error, (1,), predicted, target, flags, flags if count is None else count, error, share, mask.numel(),
        A=size, A_UP=padded, ROWS=max(1, 4 * TILE // padded), COUNTED=count is not None, num_warps=16,
    )  # fmt: skip
    return error, share


def backward(predicted: Tensor, target: Tensor, mask: Tensor, share: Tensor, up: Tensor) -> Tensor:
    """The predictions' gradient, in their type; `up` is the error's."""
    gradient = torch.empty_like(predicted)
    grid = (triton.cdiv(predicted.numel(), TILE),)
    launch(
        squared_error_gradient, grid, predicted, target, mask.view(torch.uint8), share, up, gradient,
        predicted.numel(), A=target.shape[-1], TILE=TILE, num_warps=4,
    )  # fmt: skip
    return gradient
