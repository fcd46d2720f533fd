"""Aaren: causal softmax attention with one learned query, a recurrent network in constant memory (Feng et al. 2024).

Shape suffixes: B batch, N tokens, C channels, H heads, D = C / H channels a head.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..scan.prefix import prefix_scan, scan_step
from ..scan.state import ScanState
from .base import CONSTANT, HeadMixer


class Aaren(HeadMixer):
    """Token mixer of section 3.3: y_k = W_o Attention(q, x_1..k), q = W_q of a learned query token.

    Its parameters are those of self-attention plus the C numbers of the query token (section 4.5).

    Args:
        width: C, channels of a token.
        heads: H, must divide C. Scores are scaled by 1 / sqrt(D).
        dropout: of no effect: every mixer is built alike.
        rems: likewise.
    """

    state_size, compiled_step, recordable = CONSTANT, True, True

    def __init__(self, width: int, heads: int, dropout: float = 0.0, rems: object = None) -> None:
        """Builds the projections; raises ValueError if `heads` does not divide `width`."""
        super().__init__(width, heads)
        self.query_token = nn.Parameter(torch.randn(width))  # as large as a layer-normalised token
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def mix(
        self, x: Tensor, state: ScanState | None, *, starts: Tensor | None = None, keep: slice | None = None
    ) -> tuple[Tensor, Tensor, ScanState]:
        """`forward` up to the heads' outputs where kept (B, H, N', D); also all values (B, H, N, D) and the state."""
        values = self.value(x).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
        scores = self._scores(x).transpose(1, 2)
        mixed, state = prefix_scan(scores, values, state, starts=None if starts is None else starts.unsqueeze(1))
        return mixed if keep is None else mixed[:, :, keep], values, state

    def mix_step(self, x: Tensor, state: ScanState) -> tuple[Tensor, Tensor, ScanState]:
        """`step` up to the heads' outputs (B, H, D); the value (B, H, D); the new state."""
        value = self.value(x).unflatten(-1, (self.heads, self.head_dim))
        mixed, state = scan_step(self._scores(x), value, state)
        return mixed, value, state

    def initial_state(self, batch_size: int) -> ScanState:
        """The state before any token, in float64."""
        return ScanState.identity((batch_size, self.heads), self.head_dim, device=self.query_token.device)

    def _scores(self, x: Tensor) -> Tensor:
        """q . k of every token, (..., C) -> (..., H), in float32 at least.

        The query is the same for every token, so q . (W_k x) = (W_k^T q) . x: a C x H product instead of C x C.
        """
        with torch.autocast(x.device.type, enabled=False):
            weight, bias = self.score_projection()
            return F.linear(x.to(weight.dtype), weight, bias)

    def score_projection(self) -> tuple[Tensor, Tensor]:
        """The scores as a linear map of a token: weight W_k^T q of every head, (H, C), and bias (H,)."""
        dtype, shape = torch.promote_types(self.key.weight.dtype, torch.float32), (self.heads, self.head_dim)
        query = F.linear(self.query_token.to(dtype), self.query.weight.to(dtype), self.query.bias.to(dtype))
        query = query.unflatten(-1, shape) / math.sqrt(self.head_dim)
        weight = torch.einsum("hd,hdc->hc", query, self.key.weight.to(dtype).unflatten(0, shape))
        return weight, torch.einsum("hd,hd->h", query, self.key.bias.to(dtype).unflatten(0, shape))
