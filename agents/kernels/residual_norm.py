"""LayerNorm(x + dropout(y + shift)) and its gradients as one pass each over the rows, compiled by Numba.

The shift is the bias of the layer that y comes from: added here, it costs no pass of its own.

Whether an element is dropped is a function of the call's key, the row and the channel: the backward pass asks again
instead of keeping masks. A row's generator is SplitMix64 of key and row; a channel's 32 bits are its counter through
the two multiplications of Wellons' "lowbias32", which need half of the vectors that 64-bit ones do.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from numba.extending import intrinsic
from torch import Tensor

from .compiling.bfloat16 import Array, as_array, narrow, widen
from .compiling.decorators import compiled, inlined
from .compiling.openmp import OpenMP, run_in_team
from .compiling.threads import count_parts, share

BITS = 32  # of an element's random number
# The constants below are those of SplitMix64 and lowbias32.
GOLDEN, FIRST, SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
STEP, THIRD, FOURTH = 0x9E3779B9, 0x7FEB352D, 0x846CA68B


class Drop(NamedTuple):
    """Which elements are dropped.

    Attributes:
        key: of this call's random numbers, uint64.
        below: an element is dropped where its 32 bits are below.
        scale: of what is kept.
    """

    key: np.uint64
    below: np.uint32
    scale: np.float32


def draw_drop(p: float) -> Drop:
    """Drops with probability p in [0, 1), to a multiple of 2^-32 below 1; the key is drawn by torch's generator."""
    below = min(round(p * 2**BITS), 2**BITS - 1)
    key = int(torch.empty((), dtype=torch.int64).random_()) if below else 0
    return Drop(np.uint64(key), np.uint32(below), np.float32(2**BITS / (2**BITS - below)))


@inlined
def _row_key(key: Any, row: Any) -> Any:  # noqa: ANN401  Numba's numbers
    z = key + np.uint64(row + 1) * GOLDEN
    z = (z ^ (z >> np.uint64(30))) * FIRST
    z = (z ^ (z >> np.uint64(27))) * SECOND
    return np.uint32(z ^ (z >> np.uint64(31)))


def _hash(_: Any, key: Any, channel: Any) -> Any:  # noqa: ANN401  Numba's types
    """The 32 random bits of a row's key and a channel, all three uint32.

    Put together by hand: Numba takes an operation on 32-bit numbers for one on 64, of which vectors hold half as many.
    """

    def build(context: Any, builder: Any, _: Any, numbers: Any) -> Any:  # noqa: ANN401  of LLVM
        def constant(number: int) -> Any:  # noqa: ANN401
            return context.get_constant(numba.uint32, number)

        key, channel = numbers
        x = builder.add(key, builder.mul(channel, constant(STEP)))
        for shift, factor in ((16, THIRD), (15, FOURTH)):
            x = builder.mul(builder.xor(x, builder.lshr(x, constant(shift))), constant(factor))
        return builder.xor(x, builder.lshr(x, constant(16)))

    return numba.uint32(numba.uint32, numba.uint32), build


_bits: Any = intrinsic(_hash)  # in a kernel, of key and channel


@compiled("contract", "reassoc", "nsz")
def _forward(
    _: int,
    first: int,
    last: int,
    drop: Drop,
    epsilon: float,
    x: Array,
    y: Array,
    shift: Array,
    weight: Array,
    bias: Array,
    outputs: Array,
    low: Array,
    normed: Array,
    inverse: Array,
) -> None:
    channels, zero = len(weight), np.float32(0)
    for row in range(first, last):
        key, old, new, out, hat = _row_key(drop.key, row), x[row], y[row], outputs[row], normed[row]
        total, squares = zero, zero
        for c in range(channels):
            # Read whether kept or not: loads without a condition use vectors.
            change = (widen(new[c]) + shift[c]) * drop.scale
            number = old[c] + (change if _bits(key, np.uint32(c)) >= drop.below else zero)
            hat[c] = number
            total += number
        mean = np.float32(total / channels)
        for c in range(channels):
            number = hat[c] - mean
            hat[c] = number
            squares += number * number
        shrink = np.float32(1 / math.sqrt(squares / channels + epsilon))
        inverse[row] = shrink
        for c in range(channels):
            hat[c] *= shrink
            out[c] = hat[c] * weight[c] + bias[c]
        if len(low):
            half = low[row]
            for c in range(channels):
                half[c] = narrow(out[c], half)


@compiled()
def _forward_in_team(openmp: OpenMP, parts: int, rows: int, arguments: tuple[Any, ...]) -> None:
    run_in_team(_forward, openmp, parts, rows, arguments)


@compiled("contract", "reassoc", "nsz")
def _backward(
    part: int,
    first: int,
    last: int,
    drop: Drop,
    d_outputs: Array,
    d_low: Array,
    normed: Array,
    inverse: Array,
    weight: Array,
    d_x: Array,
    d_y: Array,
    sums: Array,
) -> None:
    channels, zero = len(weight), np.float32(0)
    totals = np.zeros((3, channels))  # of thousands of rows, float64 at little cost
    d_shift, d_weight, d_bias = totals[0], totals[1], totals[2]
    for row in range(first, last):
        key, up, hat, down, new = _row_key(drop.key, row), d_outputs[row], normed[row], d_x[row], d_y[row]
        for c in range(channels):
            down[c] = up[c]
        if len(d_low):
            half = d_low[row]
            for c in range(channels):
                down[c] += widen(half[c])
        mean, along = zero, zero
        for c in range(channels):
            d_hat = down[c] * weight[c]
            mean += d_hat
            along += d_hat * hat[c]
            d_weight[c] += down[c] * hat[c]
            d_bias[c] += down[c]
        mean, along = np.float32(mean / channels), np.float32(along / channels)
        for c in range(channels):
            number = inverse[row] * (down[c] * weight[c] - mean - hat[c] * along)
            down[c] = number
            change = number * drop.scale if _bits(key, np.uint32(c)) >= drop.below else zero
            d_shift[c] += change
            new[c] = narrow(change, new)
    for c in range(channels):
        sums[part, 0, c], sums[part, 1, c], sums[part, 2, c] = d_shift[c], d_weight[c], d_bias[c]


@compiled()
def _backward_in_team(openmp: OpenMP, parts: int, rows: int, arguments: tuple[Any, ...]) -> None:
    run_in_team(_backward, openmp, parts, rows, arguments)


def forward(
    x: Tensor,
    y: Tensor,
    shift: Tensor,
    weight: Tensor,
    bias: Tensor,
    epsilon: float,
    drop: Drop,
    *,
    low: torch.dtype | None = None,
) -> tuple[Tensor, ...]:
    """LayerNorm(x + dropout(y + shift)), the same in the type `low`, and what `backward` needs of it.

    Args:
        x: float32 (rows, C), contiguous, as is y.
        y: float32 or bfloat16 (rows, C).
        shift: float32 (C,), as are weight and bias.
        weight: (C,).
        bias: (C,).
        epsilon: added to the variance.
        drop: which elements of y are dropped.
        low: float32 or bfloat16; None: the second result is empty.

    Returns:
        Two of the kind (rows, C), the normalised rows before weight and bias, and 1 / their standard deviations.
    """
    outputs, normed, inverse = torch.empty_like(x), torch.empty_like(x), x.new_empty(len(x))
    lowered = x.new_empty(0, x.shape[1]) if low is None else torch.empty_like(x, dtype=low)
    arrays = [as_array(tensor) for tensor in (x, y, shift, weight, bias, outputs, lowered, normed, inverse)]
    share(_forward, _forward_in_team, count_parts(len(x), x.numel()), len(x), drop, epsilon, *arrays)
    return outputs, lowered, normed, inverse


def backward(
    d_outputs: Tensor,
    normed: Tensor,
    inverse: Tensor,
    weight: Tensor,
    drop: Drop,
    dtype: torch.dtype,
    *,
    d_low: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Gradients of x (rows, C), of y in its `dtype`, shift (C,), weight (C,) and bias (C,), given the outputs' two."""
    d_x, d_y = torch.empty_like(normed), torch.empty_like(normed, dtype=dtype)
    d_low = normed.new_empty(0, normed.shape[1]) if d_low is None else d_low
    parts = count_parts(len(normed), normed.numel())
    sums = weight.new_empty(parts, 3, len(weight))
    arrays = [as_array(tensor) for tensor in (d_outputs, d_low, normed, inverse, weight, d_x, d_y, sums)]
    share(_backward, _backward_in_team, parts, len(normed), drop, *arrays)
    return d_x, d_y, *(sums[0] if parts == 1 else sums.sum(0))
