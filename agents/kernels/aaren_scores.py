"""The scores of Aaren as a linear map of a token, and back to its parameters' gradients, compiled by Numba.

The query is the same for every token: q = W_q t + b_q of the query token t, scaled by 1 / sqrt(D). So a head's score is
q . (W_k x + b_k) = (W_k^T q) . x + q . b_k: a C x H product instead of C x C. A few thousand numbers are read for it,
which is done before PyTorch has launched half of the operations that it would take.

Shape suffixes: C channels, H heads, D = C / H channels a head.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from .compiling.bfloat16 import Array, as_array
from .compiling.decorators import compiled


@compiled("contract", "reassoc", "nsz")
def _project(
    scale: np.float32, token: Array, wq: Array, bq: Array, wk: Array, bk: Array, query: Array, ws: Array, bs: Array
) -> None:
    channels, heads = len(token), len(bs)
    dim = channels // heads
    for i in range(channels):
        total, row = bq[i], wq[i]
        for c in range(channels):
            total += row[c] * token[c]
        query[i] = total * scale
    for h in range(heads):
        weight = ws[h]
        for i in range(h * dim, (h + 1) * dim):
            q, row = query[i], wk[i]
            bs[h] += q * bk[i]
            for c in range(channels):
                weight[c] += q * row[c]


@compiled("contract", "reassoc", "nsz")
def _gradients(
    scale: np.float32,
    token: Array,
    wq: Array,
    wk: Array,
    bk: Array,
    query: Array,
    d_ws: Array,
    d_bs: Array,
    d_token: Array,
    d_wq: Array,
    d_bq: Array,
    d_wk: Array,
    d_bk: Array,
) -> None:
    channels, heads = len(token), len(d_bs)
    dim = channels // heads
    for i in range(channels):
        q, row, up, down, out = query[i], wk[i], d_ws[i // dim], d_wk[i], d_wq[i]
        total = d_bs[i // dim] * bk[i]
        for c in range(channels):
            total += row[c] * up[c]
            down[c] = q * up[c]
        d_bk[i] = q * d_bs[i // dim]
        d_query = np.float32(total * scale)
        d_bq[i] = d_query
        row = wq[i]
        for c in range(channels):
            out[c] = d_query * token[c]
            d_token[c] += d_query * row[c]


def project(token: Tensor, wq: Tensor, bq: Tensor, wk: Tensor, bk: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weight (H, C) and bias (H,) of the scores, and the scaled query (C,).

    Args:
        token: the query token (C,), float32 as all are.
        wq: (C, C), of the layer that makes the query, as is bq.
        bq: (C,).
        wk: (C, C), of the layer that makes the keys, as is bk.
        bk: (C,).
        heads: H, divides C.
    """
    query, ws, bs = torch.empty_like(token), token.new_zeros(heads, len(token)), token.new_zeros(heads)
    _project(_scale(token, heads), *map(as_array, (token, wq, bq, wk, bk, query, ws, bs)))
    return ws, bs, query


def gradients(
    token: Tensor, wq: Tensor, wk: Tensor, bk: Tensor, query: Tensor, d_ws: Tensor, d_bs: Tensor
) -> tuple[Tensor, ...]:
    """Gradients of the query token, wq, bq, wk and bk, from those of `project`'s weight (H, C) and bias (H,)."""
    found = torch.zeros_like(token), *(torch.empty_like(x) for x in (wq, query, wk, bk))
    _gradients(_scale(token, len(d_bs)), *map(as_array, (token, wq, wk, bk, query, d_ws, d_bs, *found)))
    return found


def _scale(token: Tensor, heads: int) -> np.float32:
    return np.float32(1 / math.sqrt(len(token) // heads))
