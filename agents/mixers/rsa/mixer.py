"""Mixers with recurrence encoding: a gate between attention and REMs over its values (Huang et al. 2023, section 3).

    RSA(X) = {[1 - sigmoid(mu)] softmax(Q K') + sigmoid(mu) P} V      (equation (4), for each head)

P multiplies the values V of its own head, those that the softmax weights multiply too.

Shape suffixes: B batch, N tokens, C channels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from ...scan.rows import Ragged, run_lengths, run_mask
from ...scan.state import ScanState
from ..aaren import Aaren
from ..attention import Attention, AttentionState
from .config import RemConfig, parse_counts
from .encoding import EncodingState, GatedEncoding


class EncodedState(NamedTuple):
    """What a mixer with recurrence encoding carries.

    Attributes:
        inner: the state of the mixer inside.
        encoding: the REMs' recurrences, one state for every dilation.
    """

    inner: ScanState | AttentionState
    encoding: tuple[EncodingState, ...]


class Encoded(nn.Module):
    """A mixer with recurrence encoding; see the subclasses for which.

    Args:
        inner: the mixer inside.
        rems: counts, dilation, mask and gate of the REMs; by default "auto" counts and the paper's rest.
    """

    MAX_POWER: ClassVar[int]

    def __init__(self, inner: Aaren | Attention, rems: RemConfig | None = None) -> None:
        """Raises ValueError if there are more REMs than heads."""
        super().__init__()
        self.inner = inner
        rems = rems or RemConfig(parse_counts("auto", inner.heads))
        self.encoding = GatedEncoding(
            rems if rems.max_power is not None else replace(rems, max_power=self.MAX_POWER), inner.heads
        )

    def forward(
        self,
        x: Tensor,
        state: EncodedState | None = None,
        *,
        starts: Tensor | None = None,
        keep: slice | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, EncodedState]:
        """All tokens of a sequence in parallel.

        Args:
            x: tokens (B, N, C).
            state: of the tokens before.
            starts: bool (B, N), True where a new sequence begins.
            keep: the positions whose outputs are wanted; all by default.
            lengths: integers (B,), see `run_lengths`: tokens of each row, the rest is padding; `keep` counts in them.

        Returns:
            Outputs (B, N or fewer, C) and the state after the last token.
        """
        if lengths is not None or isinstance(state, Ragged):
            return run_lengths(self, x, state, lengths, self.initial_state, starts=starts, keep=keep)
        inner, encoding = (None, None) if state is None else state
        mixed, values, after = self.inner.mix(x, inner, starts=starts, keep=keep)  # type: ignore[arg-type]  # its own
        gated, encoded = self.encoding(mixed, values, encoding, starts=starts, keep=keep)
        return self.inner.project(gated.transpose(1, 2)), EncodedState(after, encoded)

    def step(self, x: Tensor, state: EncodedState, *, mask: Tensor | None = None) -> tuple[Tensor, EncodedState]:
        """One token (B, C) with the state of those before: its output (B, C), the new state; `mask`: `run_mask`."""
        if mask is not None or isinstance(state, Ragged):
            return run_mask(self.step, x, state, mask)
        mixed, value, after = self.inner.mix_step(x, state.inner)  # type: ignore[arg-type]  # its own
        gated, encoded = self.encoding.step(mixed, value, state.encoding)
        return self.inner.project(gated), EncodedState(after, encoded)

    def initial_state(self, batch_size: int) -> EncodedState:
        """The state before any token."""
        inner = self.inner.initial_state(batch_size)
        return EncodedState(inner, self.encoding.initial_state(batch_size, self.inner.head_dim))


class Rsa(Encoded):
    """Causal self-attention with recurrence encoding; powers beyond 200 are masked, as in the paper (appendix D.1)."""

    MAX_POWER = 200

    def __init__(self, width: int, heads: int, dropout: float = 0.0, rems: RemConfig | None = None) -> None:
        """Raises ValueError if `heads` does not divide `width` or there are more REMs than heads."""
        super().__init__(Attention(width, heads, dropout), rems)


class AarenRsa(Encoded):
    """Aaren with recurrence encoding: content weights and exponential memory, in a small state of constant size.

    By default no power is masked: that would take the last 200 values of every head (600 of a dilated one) into the
    state. The paper masks against extreme numbers, which a recurrence with |lambda| < 1 does not meet.
    """

    MAX_POWER = 0

    def __init__(self, width: int, heads: int, *, rems: RemConfig | None = None) -> None:
        """Raises ValueError if `heads` does not divide `width` or there are more REMs than heads."""
        super().__init__(Aaren(width, heads), rems)
