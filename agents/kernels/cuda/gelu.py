"""GELU of x + bias with its slope, and back with the bias's gradient, in Triton, as ../gelu.py on a CPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import launching
from .launching import launch
from .rows import Pointer, store_sum

ROWS, COLUMNS = 4, 256  # of a tile
ROOT_HALF, DENSITY = tl.constexpr(0.7071067811865476), tl.constexpr(0.3989422804014327)  # 1 / sqrt(2), 1 / sqrt(2 pi)


@triton.jit  # type: ignore[untyped-decorator]
def activate(
    hidden: Pointer, slope: Pointer, bias: Pointer, rows: int, C: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """A tile of GELU(x + bias) in x's place, and its slope."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real = (row < rows)[:, None] & (column < C)[None, :]
    at = row[:, None].to(tl.int64) * C + column[None, :]
    h = tl.load(hidden + at, mask=real, other=0.0).to(tl.float32)
    h += tl.load(bias + column, mask=column < C, other=0.0)[None, :]
    below = 0.5 + 0.5 * tl.erf(h * ROOT_HALF)
    bell = tl.exp(-0.5 * h * h)
    tl.store(hidden + at, (h * below).to(hidden.dtype.element_ty), mask=real)
    # An infinite h times a bell of 0 is NaN; the bell is what there is to see.
    steep = tl.where(bell == 0, 0.0, h * bell * DENSITY)
    tl.store(slope + at, (below + steep).to(slope.dtype.element_ty), mask=real)


@triton.jit  # type: ignore[untyped-decorator]
def activate_gradient(
    slope: Pointer, gradient: Pointer, sums: Pointer, stride_sums: int, rows: int,
    C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """Some columns of every PARTS-th tile: the gradient times the slope in its place, and the sum over rows."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = begin + tl.arange(0, ROWS)
        real = (row < rows)[:, None] & (column < C)[None, :]
        at = row[:, None].to(tl.int64) * C + column[None, :]
        down = tl.load(gradient + at, mask=real, other=0.0).to(tl.float32)
        down *= tl.load(slope + at, mask=real, other=0.0).to(tl.float32)
        total += down
        tl.store(gradient + at, down.to(gradient.dtype.element_ty), mask=real)
    store_sum(sums + tl.program_id(0).to(tl.int64) * stride_sums, total, column, C)


def forward_(hidden: Tensor, bias: Tensor) -> Tensor:
    """Replaces float32 or bfloat16 x (rows, C), contiguous, by GELU(x + bias); its slope, in the same type."""
    rows, channels = hidden.shape
    slope = torch.empty_like(hidden)
    grid = triton.cdiv(rows, ROWS), triton.cdiv(channels, COLUMNS)
    launch(activate, grid, hidden, slope, bias, rows, C=channels, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4)
    return slope


def backward_(slope: Tensor, gradient: Tensor, sums: Tensor) -> None:
    """Multiplies the gradient (rows, C) of `forward_`'s result by the slope in place.

    The sum over rows is left in PARTS parts in `sums` (PARTS, C), whose rows may be parts of longer ones.
    """
    rows, channels = slope.shape
    sizes = {"C": channels, "ROWS": ROWS, "COLUMNS": COLUMNS}
    grid = launching.PARTS, triton.cdiv(channels, COLUMNS)
    launch(activate_gradient, grid, slope, gradient, sums, sums.stride(0), rows, **sizes, num_warps=4)
