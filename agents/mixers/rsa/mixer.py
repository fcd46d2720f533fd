"""Mixers with recurrence encoding: a gate between attention and REMs over its values (Huang et al. 2023, section 3).

    RSA(X) = {[1 - sigmoid(mu)] softmax(Q K') + sigmoid(mu) P} V      (equation (4), for each head)

P multiplies the values V of its own head, those that the softmax weights multiply too.

Shape suffixes: B batch, N tokens, C channels.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...scan.state import ScanState
from ..aaren import Aaren, ScanGraph
from ..attention import Attention, AttentionState
from ..base import HeadMixer, Mixer
from ..forms import Doubles, MixerGraph, Nodes, StepWeights, exact
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
            self.constant_state = self.compiled_step = self.exported = False

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

    constant_state, compiled_step, exported, MAX_POWER = True, True, True, 0
    inner: Aaren

    def __init__(self, width: int, heads: int, rems: RemConfig | None = None, *, forget_gate: bool = False) -> None:
        super().__init__(Aaren(width, heads, forget_gate), rems)

    def step_weights(self) -> StepWeights:
        return self.inner.step_weights()._replace(encoding=self.encoding)

    def graph(self) -> EncodedGraph:
        return EncodedGraph(copy.deepcopy(self).double().step_weights())


class EncodedGraph(MixerGraph):
    """Aaren with recurrence encoding: a step of the encoding is a linear map of its sums and of the values."""

    def __init__(self, weights: StepWeights) -> None:
        assert weights.encoding is not None
        self.inner, self.encoding = ScanGraph(weights), weights.encoding
        self.output, self.heads = weights.output, weights.heads
        self.sums = encoding_maps(self.encoding, self.heads, 1)[0].shape[-1]  # F
        self.parts = (*self.inner.parts, (self.sums * self.inner.size, 0.0))

    def refusal(self, rollout: str, tokens: int) -> str | None:
        if rollout != "window":
            return None
        return "has an ONNX graph in the rollouts recurrent and staggered; use --rollout recurrent"

    def step(self, nodes: Nodes, x: str, old: list[str], ignored: str | None) -> tuple[list[str], list[str]]:
        outputs, values, after = self.inner.scan(nodes, x, old[:2], ignored)
        if ignored is not None:
            values = nodes.add("Where", ignored, np.array(0.0), values)
        heads, size, tokens = self.heads, self.inner.size, nodes.tokens
        of_sums, of_values, gates = encoding_maps(self.encoding, heads, tokens)
        before = nodes.reshape(old[2], -1, heads, self.sums, size)
        values = nodes.add("Transpose", values, perm=[0, 2, 1, 3])
        both = nodes.add("Add", nodes.add("MatMul", of_sums, before), nodes.add("MatMul", of_values, values))
        *encoded, sums = nodes.split(both, [1] * tokens + [of_sums.shape[-1]], 2)
        gated = []
        for mixed, recurrent in zip(outputs, encoded, strict=True):
            less = nodes.add("Sub", nodes.reshape(recurrent, -1, 1, heads, size), mixed)
            gated.append(nodes.add("Add", mixed, nodes.add("Mul", less, gates.reshape(-1, 1))))
        return gated, [*after, nodes.reshape(sums, -1, 1, heads, self.sums * size)]


def encoding_maps(encoding: GatedEncoding, heads: int, tokens: int) -> tuple[Doubles, Doubles, Doubles]:
    """A step of recurrence encoding as linear maps per head: from its sums and J values to outputs and sums.

    Returns:
        Two maps, from the F sums of a head (oldest token first) and from its `tokens` J values, to J outputs and the
        new F sums, (H, J + F, F) and (H, J + F, J); and the gates (H, 1, 1), 0 for a head without an encoding.
    """
    groups: list[Any] = list(encoding.groups)
    count = max(group.dilation * group.rows for group in groups)
    maps, gates = np.zeros((heads, tokens + count, count + tokens)), np.zeros((heads, 1, 1))
    head = 0
    for group in groups:
        for own_row, z in zip(group.own_rows, exact(group.powers(torch.ones(1))[:, 0]), strict=True):
            rows, dilation = group.rows, group.dilation
            sums = list(np.eye(count, count + tokens)[: rows * dilation].reshape(dilation, rows, -1))
            for token in range(tokens):
                recurrent = z @ sums[token]
                maps[head, token] = recurrent[own_row]
                recurrent[0, count + token] += 1
                sums.append(recurrent)
            maps[head, tokens : tokens + rows * dilation] = np.concatenate(sums[tokens : tokens + dilation])
            gates[head] = float(encoding.mu.detach().double().sigmoid())
            head += 1
    return maps[..., :count], maps[..., count:], gates
