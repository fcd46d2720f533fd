"""The scan's kernels as operators that torch.compile puts into its graphs as they are.

They are those of the back ends, but for what operators are not allowed: no result shares its memory with another.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from . import load
from .layout import dense_batches, rows_of_channels

Results: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
Gradients: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]
WEIGHTS = {"numba": torch.float64, "triton": torch.float32}  # what a back end keeps every position's weight in


@torch.library.custom_op("aaren_rl::scan_forward", mutates_args=())
def forward(
    backend: str, scores: Tensor, values: Tensor, m: Tensor, u: Tensor, w: Tensor, mask: Tensor, starts: Tensor
) -> Results:
    """As `scan_numba.forward`."""
    results: Results = load(backend).forward(scores, values, m, u, w, mask, starts)
    return results


@torch.library.custom_op("aaren_rl::scan_backward", mutates_args=())
def backward(
    backend: str,
    weights: Tensor,
    values: Tensor,
    outputs: Tensor,
    d_outputs: Tensor,
    g: Tensor,
    c: Tensor,
    starts: Tensor,
) -> Gradients:
    """As `scan_numba.backward`."""
    results: Gradients = load(backend).backward(weights, values, outputs, d_outputs, g, c, starts)
    return results


@forward.register_fake
def _forward_shapes(
    backend: str, scores: Tensor, values: Tensor, m: Tensor, u: Tensor, w: Tensor, mask: Tensor, starts: Tensor
) -> Results:
    outputs = torch.empty_like(_held(backend, values), dtype=torch.promote_types(values.dtype, torch.float32))
    weights = torch.empty(scores.shape, dtype=WEIGHTS[backend], device=values.device)
    return outputs, weights, _like(m), _like(u), _like(w)


@backward.register_fake
def _backward_shapes(
    backend: str,
    weights: Tensor,
    values: Tensor,
    outputs: Tensor,
    d_outputs: Tensor,
    g: Tensor,
    c: Tensor,
    starts: Tensor,
) -> Gradients:
    d_scores = torch.empty(weights.shape, dtype=outputs.dtype, device=values.device)
    return d_scores, torch.empty_like(_held(backend, values)), _like(g), _like(c)


def _held(backend: str, values: Tensor) -> Tensor:
    """The values as the back end has them, in whose order outputs and gradients are."""
    values = rows_of_channels(values)
    return dense_batches(values) if backend == "triton" else values


def _like(part: Tensor) -> Tensor:
    return torch.empty_like(part, memory_format=torch.contiguous_format)
