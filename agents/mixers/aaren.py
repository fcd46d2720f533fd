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
from .base import HeadMixer


class Aaren(HeadMixer):
    """Token mixer of section 3.3: y_k = W_o Attention(q, x_1..k), q = W_q of a learned query token.

    Its parameters are those of self-attention plus the C numbers of the query token (section 4.5).

    Args:
        width: C, channels of a token.
        heads: H, must divide C. Scores are scaled by 1 / sqrt(D).
        dropout: without effect: every mixer takes the same arguments.
        rems: likewise.
    """

    constant_state, compiled_step, recordable, exported = True, True, True, True

    def __init__(self, width: int, heads: int, dropout: float = 0.0, rems: object = None) -> None:
        query_token = torch.randn(width)  # as large as a layer-normalized token; drawn before the projections
        super().__init__(width, heads)
        self.query_token = nn.Parameter(query_token)

    def mix(
        self, x: Tensor, state: ScanState | None, *, starts: Tensor | None = None, keep: slice | None = None
    ) -> tuple[Tensor, Tensor, ScanState]:
        values, scores = self.split(self.value(x)), self._scores(x).transpose(1, 2)
        mixed, state = prefix_scan(scores, values, state, starts=None if starts is None else starts.unsqueeze(1))
        return mixed if keep is None else mixed[:, :, keep], values, state

    def mix_step(self, x: Tensor, state: ScanState) -> tuple[Tensor, Tensor, ScanState]:
        value = self.value(x).unflatten(-1, (self.heads, self.head_dim))
        mixed, state = scan_step(self._scores(x), value, state)
        return mixed, value, state

    def initial_state(self, batch_size: int) -> ScanState:
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
