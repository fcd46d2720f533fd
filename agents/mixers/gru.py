"""The gated recurrent unit of Cho et al. (2014) as a token mixer: the recurrent baseline that PyTorch has.

Shape suffixes: B batch, N tokens, C channels, S sequences in the rows of a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

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
