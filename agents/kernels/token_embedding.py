"""A step's tokens from its numbers, layer-normalised, and the gradients, as one pass each, compiled by Numba.

Token j of a step is LayerNorm(W_j x_j + b_j + e_t), of the step's numbers x_j and the embedding e_t of its time. A
dozen numbers go into 128 channels: as matrix products these maps take less time than what is to be done around them.

Shape suffixes: S steps, J tokens a step, C channels, K numbers a step, those of all its tokens side by side.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .compiling.bfloat16 import Array, as_array, narrow, widen
from .compiling.decorators import compiled
from .compiling.openmp import OpenMP, run_in_team
from .compiling.threads import count_parts, share


@compiled("contract", "reassoc", "nsz")
def _forward(
    _: int,
    first: int,
    last: int,
    begins: Array,
    epsilon: float,
    numbers: Array,
    times: Array,
    maps: Array,
    shifts: Array,
    table: Array,
    weight: Array,
    bias: Array,
    outputs: Array,
    low: Array,
    normed: Array,
    inverse: Array,
) -> None:
    channels, tokens, zero = len(weight), len(shifts), np.float32(0)
    for step in range(first, last):
        time = table[times[step]]
        for token in range(tokens):
            row, shift, total, squares = step * tokens + token, shifts[token], zero, zero
            hat, out, half = normed[row], outputs[row], low[row]
            for c in range(channels):
                hat[c] = shift[c] + time[c]
            for k in range(begins[token], begins[token + 1]):
                number, column = numbers[step, k], maps[k]
                for c in range(channels):
                    hat[c] += number * column[c]
            for c in range(channels):
                total += hat[c]
            mean = np.float32(total / channels)
            for c in range(channels):
                off = hat[c] - mean
                hat[c] = off
                squares += off * off
            shrink = np.float32(1 / math.sqrt(squares / channels + epsilon))
            inverse[row] = shrink
            for c in range(channels):
                hat[c] *= shrink
                out[c] = hat[c] * weight[c] + bias[c]
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
    begins: Array,
    numbers: Array,
    d_outputs: Array,
    d_low: Array,
    normed: Array,
    inverse: Array,
    weight: Array,
    d_times: Array,
    sums: Array,
) -> None:
    channels, tokens, zero = len(weight), len(begins) - 1, np.float32(0)
    # Of thousands of rows, float64 at little cost.
    totals, down = np.zeros(sums.shape[1:]), np.empty(channels, np.float32)
    d_weight, d_bias = totals[-2], totals[-1]
    for step in range(first, last):
        d_time = d_times[step]
        d_time[:] = 0
        for token in range(tokens):
            row, d_shift, mean, along = step * tokens + token, totals[begins[tokens] + token], zero, zero
            up, half, hat = d_outputs[row], d_low[row], normed[row]
            for c in range(channels):
                number = up[c] + widen(half[c])
                d_weight[c] += number * hat[c]
                d_bias[c] += number
                number *= weight[c]
                down[c] = number
                mean += number
                along += number * hat[c]
            mean, along = np.float32(mean / channels), np.float32(along / channels)
            for c in range(channels):
                number = inverse[row] * (down[c] - mean - hat[c] * along)
                down[c] = number
                d_shift[c] += number
                d_time[c] += number
            for k in range(begins[token], begins[token + 1]):
                number, d_column = numbers[step, k], totals[k]
                for c in range(channels):
                    d_column[c] += number * down[c]
    for k in range(len(totals)):
        for c in range(channels):
            sums[part, k, c] = totals[k, c]


@compiled()
def _backward_in_team(openmp: OpenMP, parts: int, rows: int, arguments: tuple[Any, ...]) -> None:
    run_in_team(_backward, openmp, parts, rows, arguments)


def forward(
    begins: Tensor,
    numbers: Tensor,
    times: Tensor,
    maps: Tensor,
    shifts: Tensor,
    table: Tensor,
    weight: Tensor,
    bias: Tensor,
    epsilon: float,
    low: torch.dtype,
) -> tuple[Tensor, ...]:
    """The tokens, the same in the type `low`, and what `backward` needs of them.

    Args:
        begins: int64 (J + 1,), where each token's numbers begin, and K.
        numbers: float32 (S, K), as all that follow are float32.
        times: int64 (S,), rows of the table.
        maps: (K, C), the transposed matrices W_j one under the other.
        shifts: (J, C), the vectors b_j.
        table: of times, (rows, C).
        weight: of the layer norm, (C,), as is its bias.
        bias: (C,).
        epsilon: added to the variance.
        low: float32 or bfloat16.

    Returns:
        Two of the kind (S J, C), the normalised rows before weight and bias, and 1 / their standard deviations.
    """
    rows, channels = len(numbers) * len(shifts), len(weight)
    outputs, normed, inverse = (
        weight.new_empty(rows, channels),
        weight.new_empty(rows, channels),
        weight.new_empty(rows),
    )
    lowered = torch.empty(rows, channels, dtype=low)
    inputs = [as_array(x) for x in (numbers, times, maps, shifts, table, weight, bias)]
    results = [as_array(x) for x in (outputs, lowered, normed, inverse)]
    parts = count_parts(len(numbers), outputs.numel())
    share(_forward, _forward_in_team, parts, len(numbers), begins.numpy(), epsilon, *inputs, *results)
    return outputs, lowered, normed, inverse


def backward(
    begins: Tensor,
    numbers: Tensor,
    d_outputs: Tensor,
    d_low: Tensor,
    normed: Tensor,
    inverse: Tensor,
    weight: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients of maps (K, C), shifts (J, C), weight (C,), bias (C,) and of every step's embedding of time (S, C)."""
    (steps, k), channels = numbers.shape, len(weight)
    parts = count_parts(steps, normed.numel())
    d_times, sums = weight.new_empty(steps, channels), weight.new_empty(parts, k + len(begins) + 1, channels)
    arrays = [as_array(x) for x in (numbers, d_outputs, d_low, normed, inverse, weight, d_times, sums)]
    share(_backward, _backward_in_team, parts, steps, begins.numpy(), *arrays)
    found = sums[0] if parts == 1 else sums.sum(0)
    return found[:k], found[k:-2], found[-2], found[-1], d_times
