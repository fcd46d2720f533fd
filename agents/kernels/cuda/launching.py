"""How Triton kernels are launched, and how their programs share rows of channels."""

from __future__ import annotations

from typing import Any

import triton
from torch import Tensor

PARTS = 256  # programs that share the rows where sums over all rows are wanted: two a processor of a large GPU
TILE = 1024  # numbers of a program at once
MOST_REGISTERS = 255  # of a thread: unasked, ptxas would rather spill some than use more than 32 or 128


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, num_warps: int = 1, **sizes: Any) -> None:  # noqa: ANN401  as Triton takes them
    """Launches a kernel; a product and a sum may be one instruction, and Triton 3.9 warns where that is not said."""
    kernel[grid](*arguments, **sizes, num_warps=num_warps, enable_fp_fusion=True)


def tile(channels: int, numbers: int = TILE) -> dict[str, int]:
    """The rows and channels, powers of two, that a program has at once: about so many numbers."""
    padded = triton.next_power_of_2(channels)
    return {"C": channels, "CHANNELS": padded, "ROWS": max(1, numbers // padded)}


def or_any(x: Tensor | None, other: Tensor) -> Tensor:
    """x or, for what a kernel is told not to read, any tensor."""
    return other if x is None else x
