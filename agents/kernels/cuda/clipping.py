"""The norm of all gradients and by how much they are to shrink, from each one's norm, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launching import launch
from .rows import Pointer

LEAST = tl.constexpr(1e-6)  # added to the norm, as torch.nn.utils.clip_grad_norm_ does


@triton.jit  # type: ignore[untyped-decorator]
def join_norms(
    norms: Pointer, total: Pointer, factor: Pointer, count: int, most: float, COUNT_UP: tl.constexpr
) -> None:
    """All in one program."""
    i = tl.arange(0, COUNT_UP)
    norm = tl.load(norms + i, mask=i < count, other=0.0)
    whole = tl.sqrt(tl.sum(norm * norm, 0))
    shrink = most / (whole + LEAST)
    tl.store(total, whole)
    tl.store(factor, tl.where(shrink > 1, 1.0, shrink))  # NaN stays NaN


def join(norms: Tensor, most: float) -> tuple[Tensor, Tensor]:
    """The whole gradient's norm, and the factor by which it gets at most `most`; norms (parameters,), float32."""
    total, factor = norms.new_empty(()), norms.new_empty(())
    size = triton.next_power_of_2(len(norms))
    launch(join_norms, (1,), norms, total, factor, len(norms), most, COUNT_UP=size, num_warps=1)
    return total, factor
