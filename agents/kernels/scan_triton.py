"""The scan on CUDA devices: its Triton kernels, launched. `scan/fused.py` says what is computed.

Tested on an H100 and in the Triton interpreter, and compiled to machine code by scripts/check_gpu_kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from .scan_triton_backward import carry_gradients, scan_gradients, sum_gradients
from .scan_triton_forward import carry_states, scan_outputs, sum_chunks

CHUNK = 64  # positions of a program
TURN = 16  # positions whose channels a warp has in its registers, at most
CARRIED = 32  # channels of a program that carries something from chunk to chunk
MOST_REGISTERS = 255  # of a thread: without this, ptxas would rather spill some than use more than 32 or 128


def forward(
    scores: Tensor,
    values: Tensor,
    m: Tensor,
    u: Tensor,
    w: Tensor,
    mask: Tensor,
    starts: Tensor,
    log_decay: Tensor | None,
) -> tuple[Tensor, ...]:
    """As `scan_numba.forward`, of float32 scores and float32 or bfloat16 values; the weights are float32.

    Raises:
        ValueError: scores or values of another type (float16 is converted before), or not on a CUDA device.
    """
    _check(scores, values)
    decays = log_decay is not None
    outputs = torch.empty_like(values, dtype=torch.float32)
    weights = torch.empty(scores.shape, dtype=torch.float32, device=values.device)
    before = [part.contiguous() for part in (m, u, w)]
    after = [torch.empty_like(part) for part in before]
    given = (scores, values, mask.view(torch.uint8), starts.view(torch.uint8), outputs)
    tensors, strides = _rows((*given, scores if log_decay is None else log_decay), values.dim() - 2)
    of_decays = tensors.pop(), *strides[15:]
    sizes = _sizes(tensors[1])
    chunks, rows, dim = sizes["chunks"], m.numel(), sizes["DIM"]
    own = [values.new_empty(rows, chunks, *more, dtype=torch.float32) for more in ((), (), (dim,))]
    begun = values.new_empty(rows, chunks, dtype=torch.int8)
    faded = torch.empty_like(own[0])
    launch(
        sum_chunks, (rows * chunks,), *tensors[:4], of_decays[0], *strides[:12], *of_decays[1:], *own, begun, faded,
        **sizes, DECAYS=decays, num_warps=4,
    )  # fmt: skip
    carried = [torch.empty_like(part) for part in own]
    _carry(carry_states, (*own, begun, faded, *before, *carried, *after), rows, chunks=chunks, dim=dim, DECAYS=decays)
    launch(
        scan_outputs, (rows * chunks,), *tensors, *of_decays[:1], *strides, weights, *carried, **sizes,
        TURN=_turn(sizes, 128), DECAYS=decays, maxnreg=MOST_REGISTERS,
    )  # fmt: skip
    return outputs, weights, *after


def backward(
    weights: Tensor,
    values: Tensor,
    outputs: Tensor,
    d_outputs: Tensor,
    g: Tensor,
    c: Tensor,
    starts: Tensor,
    decays: bool,
) -> tuple[Tensor, ...]:
    """As `scan_numba.backward`."""
    weights, d_scores = weights.contiguous(), torch.empty_like(weights)
    d_decays = torch.empty_like(weights) if decays else weights.new_empty(0)
    d_values = torch.empty_like(values)
    after = [part.contiguous() for part in (g, c)]
    before = [torch.empty_like(part) for part in after]
    given = (values, outputs, d_outputs, starts.view(torch.uint8), d_values)
    tensors, strides = _rows(given, values.dim() - 2)
    sizes = _sizes(tensors[0])
    chunks, rows, dim = sizes["chunks"], c.numel(), sizes["DIM"]
    factors, products, carried_products = (values.new_empty(rows, chunks, dtype=torch.float32) for _ in range(3))
    sums, carried = (values.new_empty(rows, chunks, dim, dtype=torch.float32) for _ in range(2))
    own = (factors, sums, products)
    launch(sum_gradients, (rows * chunks,), weights, *tensors[1:4], *strides[3:12], *own, **sizes, num_warps=8)
    arguments = (weights, tensors[3], *strides[9:11], *own, *after, carried, carried_products, *before)
    _carry(carry_gradients, arguments, rows, heads=sizes["heads"], n=sizes["n"], chunks=chunks, dim=dim)
    launch(
        scan_gradients, (rows * chunks,), weights, *tensors, *strides, d_scores, d_decays, carried, carried_products,
        **sizes, TURN=_turn(sizes, 64), DECAYS=decays, maxnreg=MOST_REGISTERS,
    )  # fmt: skip
    return d_scores, d_values, *before, d_decays


def _rows(tensors: Sequence[Tensor], batch: int) -> tuple[list[Tensor], list[int]]:
    """The tensors as (B, H, ...), in the same memory, and of each the strides over batch, heads and positions."""
    tensors = [x[(None,) * (2 - batch)] if batch < 2 else x.flatten(0, batch - 2) for x in tensors]
    return tensors, [stride for x in tensors for stride in x.stride()[:3]]


def _sizes(values: Tensor) -> dict[str, int]:
    """The sizes of values (B, H, N, D), as kernel arguments."""
    _, heads, n, dim = values.shape
    channels = triton.next_power_of_2(dim)
    chunks = triton.cdiv(n, CHUNK)
    return {"heads": heads, "n": n, "chunks": chunks, "DIM": dim, "CHANNELS": channels, "CHUNK": CHUNK}


def _turn(sizes: dict[str, int], channels: int) -> int:
    """Positions a turn, fewer of more than `channels` channels: what does not fit into registers goes to memory."""
    return max(2, min(TURN, TURN * channels // sizes["CHANNELS"]))


def _carry(kernel: Any, arguments: Sequence[Any], rows: int, *, dim: int, **sizes: int) -> None:  # noqa: ANN401
    channels = min(CARRIED, triton.next_power_of_2(dim))
    grid = (rows, triton.cdiv(dim, channels))
    launch(kernel, grid, *arguments, **sizes, DIM=dim, CHANNELS=channels, CHUNK=CHUNK, TURN=TURN)


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, num_warps: int = 1, **sizes: Any) -> None:  # noqa: ANN401  as Triton takes them
    """Launches a kernel; a product and a sum may be one instruction, and Triton 3.9 warns where that is not said."""
    kernel[grid](*arguments, **sizes, num_warps=num_warps, enable_fp_fusion=True)


def _check(scores: Tensor, values: Tensor) -> None:
    if scores.dtype != torch.float32 or values.dtype not in (torch.float32, torch.bfloat16):
        other = values.dtype if scores.dtype == torch.float32 else scores.dtype
        raise ValueError(f"method 'triton' computes in float32, not {other}; use method='blocked'")
    if not values.is_cuda and not isinstance(scan_outputs, InterpretedFunction):
        raise ValueError(f"method 'triton' needs a CUDA device, not {values.device}; use method='auto'")
