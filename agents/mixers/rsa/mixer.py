"""Mixers with recurrence encoding: a gate between attention and REMs over its values (Huang et al. 2023, section 3).

    RSA(X) = {[1 - sigmoid(mu)] softmax(Q K') + sigmoid(mu) P} V      (equation (4), for each head)

P multiplies the values V of its own head, those that the softmax weights multiply too.

Shape suffixes: B batch, N tokens, C channels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, NamedTuple

from torch import Tensor

from ...scan.state import ScanState
from ..aaren import Aaren
from ..attention import Attention, AttentionState
from ..base import HeadMixer, Mixer, StepWeights
from .encoding import EncodingState, GatedEncoding, RemConfig, parse_counts


class EncodedState(NamedTuple):
    """The state of the mixer inside, and those of the REMs' groups."""

    inner: ScanState | AttentionState
    encoding: tuple[EncodingState, ...]


class Encoded(Mixer):
    """A mixer with recurrence encoding, by default "auto" counts and the paper's rest.

    Raises ValueError if there are more REMs than heads.
    """

    MAX_POWER: ClassVar[int]

    def __init__(self, inner: HeadMixer, rems: RemConfig | None = None) -> None:
        super().__init__()
        self.inner = inner
        rems = rems or RemConfig(parse_counts("auto", inner.heads))
        rems = rems if rems.max_power is not None else replace(rems, max_power=self.MAX_POWER)
        self.encoding = GatedEncoding(rems, inner.heads)
        if rems.max_power:  # the state has the values of as many tokens
            self.constant_state = self.compiled_step = False

    def run(
        self, x: Tensor, state: EncodedState | None, starts: Tensor | None, keep: slice | None
    ) -> tuple[Tensor, EncodedState]:
        inner, encoding = (None, None) if state is None else state
        mixed, values, after = self.inner.mix(x, inner, starts=starts, keep=keep)
        gated, encoded = self.encoding(mixed, values, encoding, starts=starts, keep=keep)
        return self.inner.project(gated.transpose(1, 2)), EncodedState(after, encoded)

    def run_one(self, x: Tensor, state: EncodedState) -> tuple[Tensor, EncodedState]:
        mixed, value, after = self.inner.mix_step(x, state.inner)
        gated, encoded = self.encoding(mixed.unsqueeze(2), value.unsqueeze(2), state.encoding)
        return self.inner.project(gated.squeeze(2)), EncodedState(after, encoded)

    def initial_state(self, batch_size: int) -> EncodedState:
        inner = self.inner.initial_state(batch_size)
        return EncodedState(inner, self.encoding.initial_state(batch_size, self.inner.head_dim))


class RSA(Encoded):
    """Causal self-attention with recurrence encoding; powers beyond 200 are masked, as in the paper (appendix D.1)."""

    MAX_POWER = 200

    def __init__(self, width: int, heads: int, dropout: float = 0.0, rems: RemConfig | None = None) -> None:
        super().__init__(Attention(width, heads, dropout), rems)


class AarenRSA(Encoded):
    """Aaren with recurrence encoding: content weights and exponential memory, in a small state of constant size.

    By default no power is masked: that would take the last 200 values of every head, 600 of a dilated one, into it.
    """

    constant_state, compiled_step, MAX_POWER = True, True, 0
    inner: Aaren

    def __init__(self, width: int, heads: int, rems: RemConfig | None = None, *, forget_gate: bool = False) -> None:
        super().__init__(Aaren(width, heads, forget_gate), rems)

    def step_weights(self) -> StepWeights:
        return self.inner.step_weights()._replace(encoding=self.encoding)
