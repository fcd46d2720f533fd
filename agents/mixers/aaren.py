"""Aaren: causal softmax attention with one learned query, a recurrent network in constant memory (Feng et al. 2024).

Its state only adds: a token's share of the average shrinks as others come, and is never taken back. With a forget gate
every token x_j fades what was before it, per head, by f_j = sigmoid(w . x_j + b): see `prefix_scan`.

Shape suffixes: B batch, N tokens, C channels, H heads, D = C / H channels a head.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..scan.prefix import add_token, prefix_scan
from ..scan.state import ScanState
from .base import HeadMixer, Mixed, StepWeights

# Steps after which a head keeps 1 / e before training: of all heads but the last on a logarithmic scale.
SHORTEST, LONGEST = 2.0, 200.0
ENDLESS = 1e7  # of the last head, which keeps what it sees through a million steps, as without a gate
GATE_SCALE = 0.1  # of the gates' weights: at first the biases decide


class Aaren(HeadMixer):
    """Token mixer of section 3.3: y_k = W_o Attention(q, x_1..k), q = W_q of a learned query token.

    Its parameters are those of self-attention plus the C numbers of the query token (section 4.5), plus H (C + 1) of
    the forget gate.

    Args:
        width: C, channels of a token.
        heads: H, must divide C. Scores are scaled by 1 / sqrt(D).
        forget_gate: whether tokens fade those before them.
    """

    constant_state, compiled_step, capturable = True, True, True

    def __init__(self, width: int, heads: int, forget_gate: bool = False) -> None:
        query_token = torch.randn(width)  # as large as a layer-normalized token; drawn before the projections
        super().__init__(width, heads)
        self.query_token = nn.Parameter(query_token)
        self.forget = nn.Linear(width, heads) if forget_gate else None
        if self.forget is not None:
            with torch.no_grad():
                self.forget.weight.mul_(GATE_SCALE)
                self.forget.bias.copy_(initial_gates(heads))

    def mix(self, x: Tensor, state: ScanState | None, starts: Tensor | None = None, keep: slice | None = None) -> Mixed:
        values, (scores, decay) = self.split(self.value(x)), self._scores_and_decays(x)
        scores, decay = scores.transpose(1, 2), None if decay is None else decay.transpose(1, 2)
        starts = None if starts is None else starts.unsqueeze(1)
        mixed, state = prefix_scan(scores, values, state, log_decay=decay, starts=starts)
        return mixed if keep is None else mixed[:, :, keep], values, state

    def mix_step(self, x: Tensor, state: ScanState) -> Mixed:
        value = self.value(x).unflatten(-1, (self.heads, self.head_dim))
        score, decay = self._scores_and_decays(x)
        state = add_token(score, value, state, decay)
        return (state.w / state.u.unsqueeze(-1)).to(value.dtype), value, state

    def initial_state(self, batch_size: int) -> ScanState:
        return ScanState.identity((batch_size, self.heads), self.head_dim, device=self.query_token.device)

    def step_weights(self) -> StepWeights:
        parts = [(self.value.weight, self.value.bias), self.projection()]
        weight, bias = (torch.cat(part) for part in zip(*parts, strict=True))
        return StepWeights(weight, bias, self.output, self.heads)

    def _scores_and_decays(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """q . k and log f of every token, (..., C) -> (..., H), in float32 at least."""
        with torch.autocast(x.device.type, enabled=False):
            weight, bias = self.projection()
            found = F.linear(x.to(weight.dtype), weight, bias)
            if self.forget is None:
                return found, None
            scores, gates = found.split(self.heads, -1)
            return scores, F.logsigmoid(gates)

    def projection(self) -> tuple[Tensor, Tensor]:
        """Scores, and gates before their sigmoid, as one linear map of a token: (H or 2 H, C), and bias (H or 2 H,).

        The query is the same for every token, so q . (W_k x) = (W_k^T q) . x: a C x H product instead of C x C.
        """
        dtype, shape = torch.promote_types(self.key.weight.dtype, torch.float32), (self.heads, self.head_dim)
        query = F.linear(self.query_token.to(dtype), self.query.weight.to(dtype), self.query.bias.to(dtype))
        query = query.unflatten(-1, shape) / math.sqrt(self.head_dim)
        weight = torch.einsum("hd,hdc->hc", query, self.key.weight.to(dtype).unflatten(-2, shape))
        bias = torch.einsum("hd,hd->h", query, self.key.bias.to(dtype).unflatten(-1, shape))
        if self.forget is None:
            return weight, bias
        gates = self.forget.weight.to(dtype), self.forget.bias.to(dtype)
        return torch.cat([weight, gates[0]], -2), torch.cat([bias, gates[1]], -1)


def initial_gates(heads: int) -> Tensor:
    """The biases of the forget gates before training, (H,): log(f / (1 - f)) with f = 1 - 1 / steps."""
    ends = math.log10(SHORTEST), math.log10(LONGEST)
    # On a CPU: for the device "meta", which saved models are made on, torch imports its compiler, which takes a second.
    steps = torch.cat([torch.logspace(*ends, heads - 1, device="cpu"), torch.tensor([ENDLESS], device="cpu")])
    return torch.log(steps.double() - 1).float()
