"""Numbers that a kernel reads and writes as float32, wherever they are kept: bfloat16 as its bits, in int16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numba
import numpy as np
import numpy.typing as npt
import torch
from numba.extending import overload
from torch import Tensor

Array: TypeAlias = npt.NDArray[Any]
Lowered: TypeAlias = Callable[..., Any]


def as_array(x: Tensor) -> Array:
    """The tensor's memory as kernels take it."""
    numbers = x.detach() if x.requires_grad else x
    return (numbers.view(torch.int16) if x.dtype == torch.bfloat16 else numbers).numpy()


def widen(number: Any) -> Any:  # noqa: ANN401  bits or a float
    """In a kernel: the number itself, or the float32 with these bfloat16 bits."""
    raise NotImplementedError("compiled code only")


def narrow(number: Any, kept: Array) -> Any:  # noqa: ANN401
    """In a kernel: what to write for a float into `kept`: itself, or the bits of the nearest bfloat16."""
    raise NotImplementedError("compiled code only")


@overload(widen, strict=False)
def _widen(number: Any) -> Lowered:  # noqa: ANN401  Numba's types
    if isinstance(number, numba.types.Integer):
        return lambda number: np.uint32(np.uint32(np.uint16(number)) << np.uint32(16)).view(np.float32)
    return lambda number: number


@overload(narrow, strict=False)
def _narrow(number: Any, kept: Any) -> Lowered:  # noqa: ANN401
    if not isinstance(kept.dtype, numba.types.Integer):
        return lambda number, kept: number

    def rounded(number, kept):  # type: ignore[no-untyped-def]  # noqa: ANN001,ANN202
        single = np.float32(number)
        bits = single.view(np.uint32)
        up = np.uint32(bits + np.uint32(0x7FFF) + np.uint32((bits >> np.uint32(16)) & np.uint32(1)))
        return np.int16(np.uint16(up >> np.uint32(16)) if single == single else np.uint16(0x7FC0))

    return rounded
