"""Aaren for the rollout: a few tokens after a state, weights read once, one product for values and scores.

Shape suffixes: B batch, N tokens, C channels, H heads, D = C / H channels a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..mixers import Aaren
from ..scan.state import STATE_DTYPE, ScanState

FEW = 8  # tokens a call; an environment step has at most three


class FusedAaren(nn.Module):
    """What `Aaren.forward` computes after a state, without gradients, dropout or packed sequences.

    A token's row (v, 1, s) is one product with the token: the 1 comes from the bias, the score s from the effective
    query (W_k^T q). The state (w, u, m) is a row of the same kind, so that all N outputs are one triangular product
    of N + 1 rows (section 3.2 and appendix A of the paper), in float64 as the state.

    Args:
        aaren: the mixer; its weights are copied.
    """

    weight: Tensor
    bias: Tensor
    future: Tensor
    nothing: Tensor

    def __init__(self, aaren: Aaren) -> None:
        """Copies the weights."""
        super().__init__()
        self.heads, self.head_dim = aaren.heads, aaren.head_dim
        score_weight, score_bias = aaren.score_projection()
        shape = (self.heads, self.head_dim)
        weight = aaren.value.weight.to(score_weight.dtype).unflatten(0, shape)  # (H, D, C)
        bias = aaren.value.bias.to(score_bias.dtype).unflatten(0, shape)
        one = torch.zeros_like(score_weight).unsqueeze(1)
        weight = torch.cat([weight, one, score_weight.unsqueeze(1)], 1)
        bias = torch.cat([bias, torch.ones_like(score_bias).unsqueeze(1), score_bias.unsqueeze(1)], 1)
        self.register_buffer("weight", weight.detach().flatten(0, 1).clone(), persistent=False)
        self.register_buffer("bias", bias.detach().flatten().clone(), persistent=False)
        future = torch.full((FEW, FEW + 1), -torch.inf, dtype=STATE_DTYPE, device=weight.device).triu(2)
        self.register_buffer("future", future, persistent=False)
        nothing = torch.zeros(self.head_dim + 2, dtype=STATE_DTYPE, device=weight.device)
        nothing[-1] = torch.finfo(STATE_DTYPE).min  # the row of the state before any token
        self.register_buffer("nothing", nothing, persistent=False)
        self.output = aaren.output

    @torch.no_grad()
    def forward(
        self, x: Tensor, state: ScanState | None = None, *, starts: Tensor | None = None, keep: slice | None = None
    ) -> tuple[Tensor, ScanState]:
        """Tokens x (B, N, C), N <= 8, after `state` (None: after none): outputs at `keep`, (B, N or fewer, C), state.

        Where `starts` begins a new sequence, only the outputs of a row's last one are to be read.

        Raises:
            ValueError: more tokens.
        """
        n = x.shape[1]
        if n > FEW:
            raise ValueError(f"the rollout's form takes the next {FEW} tokens at most, not {n}")
        if state is None:
            state = self.initial_state(len(x))
        tokens = (
            F.linear(x.to(self.weight.dtype), self.weight, self.bias)
            .unflatten(-1, (self.heads, self.head_dim + 2))
            .transpose(1, 2)
        )
        before = torch.cat([state.w, state.u.unsqueeze(-1), state.m.unsqueeze(-1)], -1).unsqueeze(2)
        rows = torch.cat([before, tokens.to(STATE_DTYPE)], 2)
        if starts is not None:
            rows = torch.where(_last_sequence(starts), rows, self.nothing)
        scores = rows[..., -1]
        m = scores.cummax(-1).values[..., 1:]
        # Before the exponential: a later token's score may be larger, and overflow.
        weights = torch.exp(scores.unsqueeze(-2) - m.unsqueeze(-1) + self.future[:n, : n + 1])
        # All columns: the scores' sums are not read, but without them the rows would be copied first (4 times as long).
        sums = weights @ rows
        wanted = sums if keep is None else sums[:, :, keep]
        mixed = (wanted[..., :-2] / wanted[..., -2:-1]).to(x.dtype)
        last = torch.cat([sums[:, :, -1, :-1], m[..., -1:]], -1)  # a copy: a view would keep all rows alive
        state = ScanState(last[..., -1], last[..., -2], last[..., :-2])
        return self.output(mixed.transpose(1, 2).flatten(-2)), state

    def initial_state(self, batch_size: int) -> ScanState:
        """The state before any token, in float64."""
        return ScanState.identity((batch_size, self.heads), self.head_dim, device=self.weight.device)


def _last_sequence(starts: Tensor) -> Tensor:
    """Whether the state and each token belong to a row's last sequence, (B, 1, 1 + N, 1)."""
    sequence = F.pad(starts.cumsum(1), (1, 0))
    return (sequence == sequence[:, -1:])[:, None, :, None]
