"""Attention of given queries over a stream: the many-to-one RNN of *Attention as an RNN* (Feng et al. 2024).

The state (m, u, w) of section 3.1 summarizes all tokens so far, so attention over a stream of any length takes constant
memory. `attend` takes the tokens all at once, one at a time, or block by block (appendix A), with the same result.

Shape suffixes: B batch, H heads, Q queries, N tokens, D channels of a key, V channels of a value, C channels of a
token.
"""

import math

import torch
from torch import Tensor, nn

from ..scan.rows import check_rows, row_lengths
from ..scan.state import STATE_DTYPE, ScanState, combine
from .base import HeadMixer


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    state: ScanState | None = None,
    *,
    mask: Tensor | None = None,
    block: int | None = None,
) -> tuple[Tensor, ScanState]:
    """Softmax attention of queries over the tokens in `state` and those given (section 3.1, appendix A):

        o = sum_i exp(s_i) v_i / sum_i exp(s_i),    s_i = q . k_i / sqrt(D)

    The positions of cuts in a stream only change the rounding.

    Args:
        query: (..., Q, D); the same for every part of a stream.
        keys: (..., N, D); N may be 0.
        values: (..., N, V).
        state: of the tokens before, m and u of shape (..., Q), w of shape (..., Q, V).
        mask: bool, broadcastable to (..., Q, N); False: this query does not see this token.
        block: b of appendix A, tokens taken at once, for O(b) memory without a gradient; 1: token by token;
            None: all in parallel.

    Returns:
        The outputs (..., Q, V) in the type of the values, zeros for a query without tokens; and the state in float64.

    Raises:
        ValueError: shapes do not match, or a block is below 1.
    """
    if query.dim() < 2 or keys.dim() < 2 or query.shape[-1] != keys.shape[-1] or keys.shape[:-1] != values.shape[:-1]:
        raise ValueError(
            f"query {tuple(query.shape)}, keys {tuple(keys.shape)} and values {tuple(values.shape)} must be "
            "(..., Q, D), (..., N, D), (..., N, V)"
        )
    if block is not None and block < 1:
        raise ValueError(f"block must be at least 1, not {block}")
    count = keys.shape[-2]
    batch = torch.broadcast_shapes(query.shape[:-2], keys.shape[:-2])
    if state is None:
        state = ScanState.identity((*batch, query.shape[-2]), values.shape[-1], device=values.device)
    elif state.w.shape != (size := (*batch, query.shape[-2], values.shape[-1])):
        raise ValueError(f"the state has w of shape {tuple(state.w.shape)}, and these tokens {size}")
    state = state.to(STATE_DTYPE)
    if mask is not None:
        mask = mask.expand(torch.broadcast_shapes(mask.shape, (1, count)))
    scaled = query / math.sqrt(query.shape[-1])
    for first in range(0, count, block or max(count, 1)):
        here = slice(first, first + (block or count))
        seen = None if mask is None else mask[..., here]
        state = combine(state, _stretch(scaled, keys[..., here, :], values[..., here, :], seen))
    return state.output().to(values.dtype), state


def _stretch(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> ScanState:
    """The state of one segment, at least in float32; the identity for a query that sees none of it."""
    dtype = torch.promote_types(torch.promote_types(query.dtype, values.dtype), torch.float32)
    query, keys, values = query.to(dtype), keys.to(dtype), values.to(dtype)
    with torch.autocast(query.device.type, enabled=False):
        if mask is not None:
            # A masked token may be anything, even NaN, and 0 times NaN is NaN.
            keys = keys.masked_fill(~mask.any(-2).unsqueeze(-1), 0.0)
            ill = ~values.isfinite().all(-1)
            values = values.masked_fill(ill.unsqueeze(-1), 0.0)
        scores = query @ keys.transpose(-2, -1)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        m = scores.detach().amax(-1).clamp(min=torch.finfo(dtype).min)  # it cancels in w / u
        weights = torch.exp(scores - m.unsqueeze(-1))
        w = weights @ values
        if mask is not None:
            w = w.masked_fill((mask & ill.unsqueeze(-2)).any(-1, keepdim=True), torch.nan)
        return ScanState(m, weights.sum(-1), w).to(STATE_DTYPE)


class CrossAttention(HeadMixer):
    """Learned queries that read a stream, a recurrent network with a state of constant size (figure 1c).

    It shares the projections of a mixer's heads but is not a mixer: an output belongs to a latent, not to a token.

    Args:
        width: C, channels of a token, of a latent and of an output.
        latents: Q, the number of queries.
        heads: H, must divide C. Scores are scaled by 1 / sqrt(C / H).
    """

    def __init__(self, width: int, latents: int, heads: int = 1) -> None:
        """Builds the projections; raises ValueError if `heads` does not divide `width` or there are no latents."""
        if latents < 1:
            raise ValueError(f"latents must be at least 1, not {latents}")
        drawn = torch.randn(latents, width)  # before the projections
        super().__init__(width, heads)
        self.latents = nn.Parameter(drawn)

    def forward(  # type: ignore[override]  # other keywords: its outputs are the latents', not the tokens'
        self,
        x: Tensor,
        state: ScanState | None = None,
        *,
        mask: Tensor | None = None,
        block: int | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, ScanState]:
        """Reads tokens.

        Args:
            x: tokens (B, N, C); N may be 0.
            state: of the tokens before.
            mask: bool (B, N), False for padding.
            block: tokens taken at once, see `attend`.
            lengths: integers (B,), tokens of each row, the rest is padding; no `mask` beside it.

        Returns:
            One output per latent, (B, Q, C), over all tokens so far, and the state, m and u of shape (B, H, Q).
        """
        if lengths is not None:
            if mask is not None:
                raise ValueError("give lengths or mask, not both: both define padding")
            counts = torch.tensor(row_lengths(lengths, x), device=x.device)
            mask = torch.arange(x.shape[1], device=x.device) < counts.unsqueeze(1)
        check_rows(x, state, 3)
        if mask is not None:  # its gradient is zero times the token, and so NaN where that is NaN
            x = x.masked_fill(~mask.unsqueeze(-1), 0.0)
        keys, values = self.split(self.key(x)), self.split(self.value(x))
        seen = None if mask is None else mask[:, None, None, :]
        mixed, state = attend(self.split(self.query(self.latents)), keys, values, state, mask=seen, block=block)
        return self.project(mixed.transpose(1, 2)), state

    def run_one(self, x: Tensor, state: ScanState) -> tuple[Tensor, ScanState]:
        return self.forward(x.unsqueeze(1), state)

    def initial_state(self, batch_size: int) -> ScanState:
        """The state before any token, in float64."""
        shape = (batch_size, self.heads, len(self.latents))
        return ScanState.identity(shape, self.head_dim, device=self.latents.device)
