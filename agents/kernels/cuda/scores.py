"""The scores of Aaren as a linear map of a token, and back to its parameters' gradients, in Triton.

As ../aaren_scores.py on a CPU, which has the equations.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import launch
from .residual_norm import Scoring
from .rows import Block, Pointer

BESIDE = 64  # channels of a matrix that are read at once
BELOW = 4  # rows of the matrices of a program of `map_gradients`


@triton.jit  # type: ignore[untyped-decorator]
def map_to_scores(
    token: Pointer, wq: Pointer, bq: Pointer, wk: Pointer, bk: Pointer, ws: Pointer, bs: Pointer, query: Pointer,
    scale: float, C: tl.constexpr, DIM: tl.constexpr, DIM_UP: tl.constexpr, BESIDE: tl.constexpr,
) -> None:  # fmt: skip
    """Some channels of a head's map: W_k^T q; all programs of a head compute its query."""
    head, part = tl.program_id(0), tl.program_id(1)
    d, beside = tl.arange(0, DIM_UP), tl.arange(0, BESIDE)
    i, real = head * DIM + d, d < DIM
    total = tl.zeros((DIM_UP, BESIDE), tl.float32)
    for begin in range(0, C, BESIDE):
        c = begin + beside
        rows = _matrix(wq, i, real, c, C)
        total += rows * tl.load(token + c, mask=c < C, other=0.0)[None, :]
    q = (tl.sum(total, 1) + tl.load(bq + i, mask=real, other=0.0)) * scale
    c = part * BESIDE + beside
    tl.store(ws + head * C + c, tl.sum(q[:, None] * _matrix(wk, i, real, c, C), 0), mask=c < C)
    written = tl.where(part == 0, C, 0)  # what has no such channels, one program of the head writes for all
    tl.store(query + i, q, mask=real & (i < written))
    tl.store(bs + head, tl.sum(q * tl.load(bk + i, mask=real, other=0.0), 0), mask=0 < written)


@triton.jit  # type: ignore[untyped-decorator]
def _matrix(matrix: Pointer, i: Block, real: Block, c: Block, C: tl.constexpr) -> Block:
    """Rows i and columns c of a matrix of C columns."""
    return tl.load(matrix + i[:, None] * C + c[None, :], mask=real[:, None] & (c < C)[None, :], other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def map_gradients(
    token: Pointer, wq: Pointer, wk: Pointer, bk: Pointer, query: Pointer, d_ws: Pointer, d_bs: Pointer,
    d_token: Pointer, d_wq: Pointer, d_bq: Pointer, d_wk: Pointer, d_bk: Pointer, scale: float,
    C: tl.constexpr, CHANNELS: tl.constexpr, DIM: tl.constexpr, BELOW: tl.constexpr,
) -> None:  # fmt: skip
    """BELOW rows of the matrices' gradients, and what those rows add to the token's, (programs, C)."""
    i, c = tl.program_id(0) * BELOW + tl.arange(0, BELOW), tl.arange(0, CHANNELS)
    real, head = i < C, i // DIM
    there = real[:, None] & (c < C)[None, :]
    at = i[:, None] * C + c[None, :]
    up = tl.load(d_ws + head[:, None] * C + c[None, :], mask=there, other=0.0)
    lift = tl.load(d_bs + head, mask=real, other=0.0)
    q = tl.load(query + i, mask=real, other=0.0)
    d_query = tl.sum(tl.load(wk + at, mask=there, other=0.0) * up, 1)
    d_query = (d_query + lift * tl.load(bk + i, mask=real, other=0.0)) * scale
    tl.store(d_wk + at, q[:, None] * up, mask=there)
    tl.store(d_bk + i, q * lift, mask=real)
    tl.store(d_bq + i, d_query, mask=real)
    tl.store(d_wq + at, d_query[:, None] * tl.load(token + c, mask=c < C, other=0.0)[None, :], mask=there)
    down = tl.sum(d_query[:, None] * tl.load(wq + at, mask=there, other=0.0), 0)
    tl.store(d_token + tl.program_id(0) * C + c, down, mask=c < C)


def project(
    token: Tensor, wq: Tensor, bq: Tensor, wk: Tensor, bk: Tensor, heads: int
) -> tuple[Scoring, Tensor]:  # fmt: skip
    """The map to the scores and the scaled query (C,); parameters as in `aaren_scores.project`, contiguous."""
    channels = len(token)
    dim = channels // heads
    scoring, query = Scoring(token.new_empty(heads, channels), token.new_empty(heads)), torch.empty_like(token)
    launch(
        map_to_scores, (heads, triton.cdiv(channels, BESIDE)), token, wq, bq, wk, bk, *scoring, query,
        1 / math.sqrt(dim), C=channels, DIM=dim, DIM_UP=triton.next_power_of_2(dim), BESIDE=BESIDE, num_warps=4,
    )  # fmt: skip
    return scoring, query


def parts(channels: int) -> int:
    """In how many parts `gradients` leaves the query token's."""
    return -(-channels // BELOW)


def gradients(
    token: Tensor, wq: Tensor, wk: Tensor, bk: Tensor, query: Tensor, d_scoring: Scoring, d_token: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of wq, bq, wk and bk, from those of the map; the query token's goes in parts into (parts(C), C)."""
    channels, heads = len(token), len(d_scoring.bias)
    dim = channels // heads
    found = torch.empty_like(wq), torch.empty_like(query), torch.empty_like(wk), torch.empty_like(bk)
    launch(
        map_gradients, (parts(channels),), token, wq, wk, bk, query, *d_scoring, d_token, *found, 1 / math.sqrt(dim),
        C=channels, CHANNELS=triton.next_power_of_2(channels), DIM=dim, BELOW=BELOW, num_warps=4,
    )  # fmt: skip
    return found
