"""The scan's CUDA kernels, in Triton: one program a row (batch, head) goes over its positions, a tile at a time.

Inside a tile everything is parallel: forward a triangular matrix product, backward a first-order linear scan. Between
tiles the state is carried, in float64 forward. `scan/fused.py` says what is computed. Held against the reference in
Triton's interpreter, and compiled to machine code by scripts/check_gpu_kernels; never run on a GPU.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from .layout import flatten_batch, rows_of_channels

Pointer: TypeAlias = tl.tensor  # Triton evaluates annotations: they must be types that it knows
TILE = 32  # positions
LOW = tl.constexpr(torch.finfo(torch.float32).min)


@triton.jit  # type: ignore[untyped-decorator]
def _forward(
    scores: Pointer,
    values: Pointer,
    mask: Pointer,
    starts: Pointer,
    outputs: Pointer,
    at: Pointer,
    stride_scores: int,
    stride_values: int,
    stride_mask: int,
    stride_starts: int,
    stride_outputs: int,
    weights: Pointer,
    m: Pointer,
    u: Pointer,
    w: Pointer,
    rows: int,
    n: int,
    dim: int,
    TILE: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    i, channel = tl.arange(0, TILE), tl.arange(0, CHANNELS)
    real = channel < dim
    scores += tl.load(at + row)
    values += tl.load(at + rows + row)
    mask += tl.load(at + 2 * rows + row)
    starts += tl.load(at + 3 * rows + row)
    outputs += tl.load(at + 4 * rows + row)
    high, total = tl.load(m + row), tl.load(u + row)
    sums = tl.load(w + row * dim + channel, mask=real, other=0.0)
    for begin in range(0, n, TILE):
        k = begin + i
        inside = k < n
        score = tl.load(scores + k * stride_scores, mask=inside, other=-float("inf"))
        present = inside & (score != -float("inf")) & (tl.load(mask + k * stride_mask, mask=inside, other=0) != 0)
        segment = tl.cumsum(tl.load(starts + k * stride_starts, mask=inside, other=0).to(tl.int32), 0)
        seen = (i[None, :] <= i[:, None]) & present[None, :] & (segment[None, :] == segment[:, None])
        goes_on = segment == 0  # whether the state from before the tile is still seen
        top = tl.max(tl.where(seen, score[None, :], LOW), 1)
        top = tl.where(goes_on, tl.maximum(top, tl.maximum(high, LOW).to(tl.float32)), top)
        p = tl.exp(tl.where(seen, score[None, :] - top[:, None], -float("inf")))
        carried = tl.exp(tl.where(goes_on, high - top.to(tl.float64), -float("inf")))
        value = tl.load(
            values + k[:, None] * stride_values + channel[None, :], mask=present[:, None] & real[None, :], other=0.0
        )
        here = tl.dot(p, value, input_precision="ieee")
        here_total = tl.sum(p, 1)
        whole = here_total + (carried * total).to(tl.float32)
        inverse = tl.where(whole > 0, 1 / tl.where(whole > 0, whole, 1.0), 0.0)
        output = (here + (carried[:, None] * sums[None, :]).to(tl.float32)) * inverse[:, None]
        tl.store(outputs + k[:, None] * stride_outputs + channel[None, :], output, mask=inside[:, None] & real[None, :])
        weight = tl.exp(tl.where(present, score - top, -float("inf"))) * inverse
        tl.store(weights + row * n + k, weight, mask=inside)
        # The state after the tile is that of its last position; `top` is rounded to float32, the state's m is not.
        last = i == TILE - 1
        last_top = tl.sum(tl.where(last, top, 0.0), 0).to(tl.float64)
        stays = tl.sum(tl.where(last & goes_on, 1, 0), 0) > 0
        new = tl.where(stays, tl.maximum(high, last_top), last_top)
        old, fresh = tl.exp(tl.where(stays, high - new, -float("inf"))), tl.exp(last_top - new)
        total = total * old + tl.sum(tl.where(last, here_total, 0.0), 0).to(tl.float64) * fresh
        sums = sums * old + tl.sum(tl.where(last[:, None], here, 0.0), 0).to(tl.float64) * fresh
        high = new
    tl.store(m + row, high)
    tl.store(u + row, total)
    tl.store(w + row * dim + channel, sums, mask=real)


@triton.jit  # type: ignore[untyped-decorator]
def _after(keep_1: tl.tensor, sum_1: tl.tensor, keep_2: tl.tensor, sum_2: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Two neighbouring stretches of x_k = b_k + a_k x_{k+1}, the later one first."""
    return keep_1 * keep_2, keep_2 * sum_1 + sum_2


@triton.jit  # type: ignore[untyped-decorator]
def _backward(
    weights: Pointer,
    values: Pointer,
    outputs: Pointer,
    d_outputs: Pointer,
    starts: Pointer,
    d_values: Pointer,
    at: Pointer,
    stride_values: int,
    stride_outputs: int,
    stride_d_outputs: int,
    stride_starts: int,
    stride_d_values: int,
    d_scores: Pointer,
    g: Pointer,
    c: Pointer,
    rows: int,
    n: int,
    dim: int,
    TILE: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    i, channel = tl.arange(0, TILE), tl.arange(0, CHANNELS)
    real = channel < dim
    values += tl.load(at + row)
    outputs += tl.load(at + rows + row)
    d_outputs += tl.load(at + 2 * rows + row)
    starts += tl.load(at + 3 * rows + row)
    d_values += tl.load(at + 4 * rows + row)
    weights += row * n
    sums = tl.load(g + row * dim + channel, mask=real, other=0.0).to(tl.float32)
    product = tl.load(c + row).to(tl.float32)
    tiles = (n + TILE - 1) // TILE
    for tile in range(0, tiles):
        k = (tiles - 1 - tile) * TILE + i
        inside, follows = k < n, k + 1 < n
        where = inside[:, None] & real[None, :]
        weight = tl.load(weights + k, mask=inside, other=0.0)
        begins = tl.load(starts + (k + 1) * stride_starts, mask=follows, other=0) != 0
        keep = tl.where(begins, 0.0, 1.0 - tl.load(weights + k + 1, mask=follows, other=0.0))
        up = tl.load(d_outputs + k[:, None] * stride_d_outputs + channel[None, :], mask=where, other=0.0)
        output = tl.load(outputs + k[:, None] * stride_outputs + channel[None, :], mask=where, other=0.0)
        # A masked value may be anything, NaN included.
        counts = where & (weight > 0)[:, None]
        value = tl.load(values + k[:, None] * stride_values + channel[None, :], mask=counts, other=0.0)
        spread = keep[:, None] + tl.zeros((TILE, CHANNELS), dtype=tl.float32)
        kept, local = tl.associative_scan((spread, up), 0, _after, reverse=True)
        down = local + kept * sums[None, :]
        kept_row, local_row = tl.associative_scan((keep, tl.sum(output * up, 1)), 0, _after, reverse=True)
        products = local_row + kept_row * product
        tl.store(d_values + k[:, None] * stride_d_values + channel[None, :], weight[:, None] * down, mask=where)
        tl.store(d_scores + row * n + k, weight * (tl.sum(value * down, 1) - products), mask=inside)
        sums = tl.sum(tl.where((i == 0)[:, None], down, 0.0), 0)
        product = tl.sum(tl.where(i == 0, products, 0.0), 0)
    first = tl.where(tl.load(starts) != 0, 0.0, 1.0 - tl.load(weights))
    tl.store(g + row * dim + channel, (sums * first).to(tl.float64), mask=real)
    tl.store(c + row, (product * first).to(tl.float64))


def forward(
    scores: Tensor, values: Tensor, m: Tensor, u: Tensor, w: Tensor, mask: Tensor, starts: Tensor
) -> tuple[Tensor, ...]:
    """As `scan_numba.forward`, of float32 scores and values; the weights are float32.

    Raises:
        ValueError: the tensors are not float32 (half types are converted before), or not on a CUDA device.
    """
    _check(values)
    values = rows_of_channels(values)
    outputs = torch.empty_like(values)
    weights = torch.empty(scores.shape, dtype=torch.float32, device=values.device)
    m, u, w = (part.clone(memory_format=torch.contiguous_format) for part in (m, u, w))
    tensors = (scores, values, mask.view(torch.uint8), starts.view(torch.uint8), outputs)
    _forward[(m.numel(),)](*tensors, *flatten_batch(tensors), weights, m, u, w, m.numel(), **_sizes(values))
    return outputs, weights, m, u, w


def backward(
    weights: Tensor, values: Tensor, outputs: Tensor, d_outputs: Tensor, g: Tensor, c: Tensor, starts: Tensor
) -> tuple[Tensor, ...]:
    """As `scan_numba.backward`."""
    values, d_outputs = rows_of_channels(values), rows_of_channels(d_outputs)
    d_scores, d_values = torch.empty_like(weights), torch.empty_like(values)
    g, c = (part.clone(memory_format=torch.contiguous_format) for part in (g, c))
    tensors = (values, outputs, d_outputs, starts.view(torch.uint8), d_values)
    _backward[(c.numel(),)](weights, *tensors, *flatten_batch(tensors), d_scores, g, c, c.numel(), **_sizes(values))
    return d_scores, d_values, g, c


def _sizes(values: Tensor) -> dict[str, int | bool]:
    n, dim = values.shape[-2:]
    # Products and sums may be one instruction; Triton 3.9 warns where that is not said.
    return {
        "n": n, "dim": dim, "TILE": TILE, "CHANNELS": max(16, triton.next_power_of_2(dim)), "enable_fp_fusion": True
    }  # fmt: skip


def _check(values: Tensor) -> None:
    if values.dtype != torch.float32:
        raise ValueError(f"method 'triton' computes in float32, not {values.dtype}; use method='blocked'")
    if not values.is_cuda and not isinstance(_forward, InterpretedFunction):
        raise ValueError(f"method 'triton' needs a CUDA device, not {values.device}; use method='auto'")
