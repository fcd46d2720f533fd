"""GELU of x + bias with its slope in one pass, and the backward pass with the bias's gradient, compiled by Numba.

GELU(h) = h Phi(h), and its slope is Phi(h) + h phi(h), with phi and Phi the normal density and distribution. Both need
exp(-h^2 / 2), which is taken once: kept instead of h, the slope leaves the backward pass a product. The exponential is
a polynomial here, because a call of the library's goes through one number at a time. Of bfloat16, whose numbers are
few, both are looked up.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .compiling.bfloat16 import Array, as_array, narrow, widen
from .compiling.decorators import compiled, inlined
from .compiling.openmp import OpenMP, run_in_team
from .compiling.threads import count_parts, share

ONE, HALF, LEAST = np.float32(1), np.float32(0.5), np.float32(-87)  # below, float32's exponential is denormal
LOG2_E, LOG_2 = np.float32(1 / math.log(2)), np.float32(math.log(2))
DENSITY = np.float32(1 / math.sqrt(2 * math.pi))
FEW = 32  # rows that are added up in float32, before the sums are added up in float64
# Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: erf to 1.5e-7.
P = np.float32(0.3275911 / math.sqrt(2))
A1, A2, A3, A4, A5 = (np.float32(a) for a in (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429))
# exp(x) on [-log(2) / 2, log(2) / 2]: the series, whose seventh term is 1e-7 there.
E2, E3, E4, E5, E6 = (np.float32(1 / math.factorial(k)) for k in range(2, 7))


@inlined
def _exp(x: Any) -> Any:  # noqa: ANN401  Numba's numbers
    """exp(x) for x <= 0."""
    x = max(x, LEAST)
    whole = np.int32(x * LOG2_E - HALF)  # rounded: a conversion cuts off towards 0
    x = x - np.float32(whole) * LOG_2
    series = ONE + x * (ONE + x * (E2 + x * (E3 + x * (E4 + x * (E5 + x * E6)))))
    return series * np.int32((whole + np.int32(127)) << np.int32(23)).view(np.float32)


@compiled("contract", "reassoc", "nsz")
def _forward(_: int, first: int, last: int, bias: Array, hidden: Array, slope: Array) -> None:
    for row in range(first, last):
        here, down = hidden[row], slope[row]
        for c in range(here.shape[0]):
            h = here[c] + bias[c]
            bell = _exp(-HALF * h * h)
            t = ONE / (ONE + P * abs(h))
            tail = HALF * bell * (t * (A1 + t * (A2 + t * (A3 + t * (A4 + t * A5)))))
            below = tail if h < 0 else ONE - tail
            here[c] = h * below
            down[c] = below + h * bell * DENSITY


@compiled()
def _forward_in_team(openmp: OpenMP, parts: int, rows: int, arguments: tuple[Any, ...]) -> None:
    run_in_team(_forward, openmp, parts, rows, arguments)


@compiled("contract", "reassoc", "nsz")
def _look_up(_: int, first: int, last: int, bias: Array, hidden: Array, slope: Array, table: Array) -> None:
    entries = np.empty(hidden.shape[1], np.int32)
    for row in range(first, last):
        here, down = hidden[row], slope[row]
        for c in range(here.shape[0]):
            here[c] = narrow(widen(here[c]) + bias[c], here)
        for c in range(here.shape[0]):  # this one cannot use vectors: no more in it than a store
            entries[c] = table[np.uint16(here[c])]
        for c in range(here.shape[0]):
            here[c] = np.int16(entries[c])
            down[c] = np.int16(entries[c] >> np.int32(16))


@compiled()
def _look_up_in_team(openmp: OpenMP, parts: int, rows: int, arguments: tuple[Any, ...]) -> None:
    run_in_team(_look_up, openmp, parts, rows, arguments)


@functools.cache
def _table() -> Array:
    """The slope's bits above those of GELU, for every bfloat16."""
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.bfloat16).double()
    active = torch.nn.functional.gelu(every)
    slope = torch.ops.aten.gelu_backward(torch.ones_like(every), every)
    low, high = (part.bfloat16().view(torch.int16).int() for part in (active, slope))
    table = (high << 16) | (low & 0xFFFF)
    return torch.cat([table[1 << 15 :], table[: 1 << 15]]).numpy()  # bits as an index have no sign


@compiled("contract", "reassoc", "nsz")
def _backward(part: int, first: int, last: int, slope: Array, gradient: Array, sums: Array) -> None:
    total, few = np.zeros(slope.shape[1]), np.empty(slope.shape[1], np.float32)
    for begin in range(first, last, FEW):
        few[:] = 0
        for row in range(begin, min(begin + FEW, last)):
            factor, g = slope[row], gradient[row]
            for c in range(g.shape[0]):
                down = widen(g[c]) * widen(factor[c])
                few[c] += down
                g[c] = narrow(down, g)
        for c in range(few.shape[0]):
            total[c] += few[c]
    for c in range(total.shape[0]):
        sums[part, c] = total[c]


@compiled()
def _backward_in_team(openmp: OpenMP, parts: int, rows: int, arguments: tuple[Any, ...]) -> None:
    run_in_team(_backward, openmp, parts, rows, arguments)


def forward_(hidden: Tensor, bias: Tensor) -> Tensor:
    """Replaces float32 or bfloat16 x (rows, C), contiguous, by GELU(x + bias); its slope, in the same type.

    Of bfloat16 both are looked up: there are 65,536 numbers, and a training meets some thousands of them.
    """
    slope = torch.empty_like(hidden)
    arrays = [as_array(tensor) for tensor in (bias, hidden, slope)]
    parts = count_parts(len(hidden), hidden.numel())
    if hidden.dtype == torch.bfloat16:
        share(_look_up, _look_up_in_team, parts, len(hidden), *arrays, _table())
    else:
        share(_forward, _forward_in_team, parts, len(hidden), *arrays)
    return slope


def backward_(slope: Tensor, gradient: Tensor) -> Tensor:
    """Multiplies the gradient (rows, C) of `forward_`'s result by the slope in place; the sum over rows, in float32."""
    parts = count_parts(len(slope), slope.numel())
    sums = torch.empty(parts, slope.shape[1])
    share(_backward, _backward_in_team, parts, len(slope), *map(as_array, (slope, gradient, sums)))
    return sums[0] if parts == 1 else sums.sum(0)
