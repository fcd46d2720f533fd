"""The recurrent baselines: the gated recurrent unit of Cho et al. (2014), which PyTorch has, and minGRU.

minGRU is a gated recurrence whose gates see the token alone (Feng et al. 2024, *Were RNNs All We Needed?*):

    h_t = (1 - z_t) h_{t-1} + z_t h~_t        z_t = sigmoid(W_z x_t + b_z)        h~_t = W_h x_t + b_h

So h_t is a mean of h~_1..t and of the state before them, h_0, with weights that add up to 1: the prefix scan of Aaren
with a head for every channel, the scores log z_t, and decays 1 - z_t. The score of h_0 is 0.

Shape suffixes: B batch, N tokens, C channels, S sequences in the rows of a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from ..scan.prefix import prefix_scan
from ..scan.state import STATE_DTYPE, ScanState
from .base import Mixer


class GRU(Mixer):
    """`torch.nn.GRU` of one layer; the state is its h, (B, C).

    It computes in the type of its weights: under autocast h would be rounded to bfloat16 at every token.

    Args:
        width: C, channels of a token and of h.
    """

    constant_state = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gru = nn.GRU(width, width, batch_first=True)

    def run(self, x: Tensor, state: Tensor | None, starts: Tensor | None, keep: slice | None) -> tuple[Tensor, Tensor]:
        state = self.initial_state(len(x)) if state is None else state
        if starts is not None:
            state = state.masked_fill(starts[:, :1], 0.0)
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(state.dtype)
            if starts is None or x.shape[1] == 1:
                y, last = self.gru(x, state.unsqueeze(0))
                state = last.squeeze(0)
            else:
                y, state = self._packed(x, state, starts)
        return y if keep is None else y[:, keep], state

    def run_one(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        y, state = self.run(x.unsqueeze(1), state, None, None)
        return y.squeeze(1), state

    def initial_state(self, batch_size: int) -> Tensor:
        return next(self.gru.parameters()).new_zeros(batch_size, self.gru.hidden_size)

    def _packed(self, x: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """The rows' sequences (S, any, C) side by side; the first of a row goes on from its state."""
        batch, count, width = x.shape
        begins = starts.clone()
        begins[:, 0] = True
        first = begins.flatten().nonzero().squeeze(1)  # tokens of all rows, end to end
        row_starts = torch.arange(batch + 1, device=x.device) * count
        lengths = torch.diff(first, append=row_starts[-1:]).tolist()
        of_row = torch.searchsorted(first, row_starts)  # its first sequence
        before = state.new_zeros(1, len(first), width).index_copy(1, of_row[:-1], state.unsqueeze(0))
        packed, after = self.gru(pack_sequence(x.flatten(0, 1).split(lengths), enforce_sorted=False), before)
        return torch.cat(unpack_sequence(packed)).view_as(x), after[0, of_row[1:] - 1]


class MinGRU(Mixer):
    """minGRU of section 3.1, of the tokens' own width; the state is h, (B, C), in float64.

    There is no projection of the output: the paper leaves that to the layers that follow.

    Args:
        width: C, channels of a token and of h.
    """

    constant_state, capturable = True, True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.candidate = nn.Linear(width, width), nn.Linear(width, width)

    def run(self, x: Tensor, state: Tensor | None, starts: Tensor | None, keep: slice | None) -> tuple[Tensor, Tensor]:
        state = self.initial_state(len(x)) if state is None else state
        if x.shape[1] == 1:  # as `run_one`, to the last bit
            y, state = self.run_one(x[:, 0], state if starts is None else state.masked_fill(starts, 0.0))
            return y.unsqueeze(1), state
        gate, values = self._gate_and_candidate(x)
        scores, decay = F.logsigmoid(gate), F.logsigmoid(-gate)
        if starts is not None:  # h_0 is 0 there, so h is z h~: a token that has all the weight
            values = torch.where(starts.unsqueeze(-1), gate.sigmoid() * values, values)
            scores = scores.masked_fill(starts.unsqueeze(-1), 0.0)
        before = ScanState(torch.zeros_like(state), torch.ones_like(state), state.unsqueeze(-1))
        of_channels = None if starts is None else starts.unsqueeze(1)
        h, after = prefix_scan(scores.mT, values.mT.unsqueeze(-1), before, log_decay=decay.mT, starts=of_channels)
        h = h.squeeze(-1).mT
        return h if keep is None else h[:, keep], after.output().squeeze(-1)

    def run_one(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        gate, value = self._gate_and_candidate(x)
        h = torch.lerp(state, value.to(STATE_DTYPE), gate.to(STATE_DTYPE).sigmoid())
        return h.to(self.gate.weight.dtype), h

    def initial_state(self, batch_size: int) -> Tensor:
        return self.gate.weight.new_zeros(batch_size, self.gate.out_features, dtype=STATE_DTYPE)

    def _gate_and_candidate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """z before its sigmoid, and h~, of the shape of x, in the weights' type."""
        with torch.autocast(x.device.type, enabled=False):  # a gate's rounding would add up over the tokens
            gate = self.gate(x.to(self.gate.weight.dtype))
        return gate, self.candidate(x).to(gate.dtype)
