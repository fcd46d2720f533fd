"""Aaren: causal softmax attention with one learned query, a recurrent network in constant memory (Feng et al. 2024).

Shape suffixes: B batch, N tokens, C channels, H heads, D = C / H channels a head.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..scan.prefix import prefix_scan, scan_step
from ..scan.rows import Ragged, run_lengths, run_mask
from ..scan.state import ScanState


class Aaren(nn.Module):
    """Token mixer of section 3.3: y_k = W_o Attention(q, x_1..k), q = W_q of a learned query token.

    Its parameters are those of self-attention plus the C numbers of the query token (section 4.5).

    Args:
        width: C, channels of a token.
        heads: H, must divide C. Scores are scaled by 1 / sqrt(D).
    """

    def __init__(self, width: int, heads: int) -> None:
        """Builds the projections; raises ValueError if `heads` does not divide `width`."""
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of heads {heads}")
        self.heads, self.head_dim = heads, width // heads
        self.query_token = nn.Parameter(torch.randn(width))  # as large as a layer-normalised token
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(
        self,
        x: Tensor,
        state: ScanState | None = None,
        *,
        starts: Tensor | None = None,
        keep: slice | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, ScanState]:
        """All tokens of a sequence in parallel.

        Args:
            x: tokens (B, N, C).
            state: state of the tokens before, m and u of shape (B, H), w of shape (B, H, D).
            starts: bool (B, N), True where a new sequence begins.
            keep: the positions whose outputs are wanted; all by default.
            lengths: integers (B,), see `run_lengths`: tokens of each row, the rest is padding; `keep` counts in them.

        Returns:
            Outputs (B, N or fewer, C) and the state after the last token, in float64.
        """
        if lengths is not None or isinstance(state, Ragged):
            return run_lengths(self, x, state, lengths, self.initial_state, starts=starts, keep=keep)
        mixed, _, state = self.mix(x, state, starts=starts, keep=keep)
        return self.project(mixed.transpose(1, 2)), state

    def step(self, x: Tensor, state: ScanState, *, mask: Tensor | None = None) -> tuple[Tensor, ScanState]:
        """One token (B, C) with the state of those before: its output (B, C), the new state; `mask`: `run_mask`."""
        if mask is not None or isinstance(state, Ragged):
            return run_mask(self.step, x, state, mask)
        mixed, _, state = self.mix_step(x, state)
        return self.project(mixed), state

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

    def project(self, mixed: Tensor) -> Tensor:
        """The heads' outputs (..., H, D) joined, through W_o: (..., C)."""
        out: Tensor = self.output(mixed.flatten(-2))
        return out

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
