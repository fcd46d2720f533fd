"""Recurrence encoding: attention and recurrence encoding matrices (REMs), mixed by a gate.

*Encoding Recurrence into Transformers* (Huang et al. 2023), section 3:

    RSA(X) = {[1 - sigmoid(mu)] softmax(Q K') + sigmoid(mu) P} V      (equation (4), for each head)

P, a REM, multiplies the values V of its own head, those that the softmax weights multiply too, by f_j of their
distance j > 0 (equation (3)): what it adds to the head's output at token t is

    h_t = sum_{j=1..K} f_j v_{t - j d}        f_j = lambda^j,  gamma^j cos(j theta)  or  gamma^j sin(j theta)

with dilation d, and powers beyond K masked (appendix D.1). All three are entries of powers Z^j of a block Z of the real
Jordan form: (lambda), or gamma times a rotation by theta. So the sum is also a recurrence in constant memory,

    h_t = Z (h_{t-d} + u_{t-d}),   u_t = v_t - Z^K v_{t-Kd}

where u is v itself without a mask. Many tokens are computed in parallel: dense in blocks, carried between them.

Where the paper's two forms differ, (3) and P (x) I_d stand, for which the propositions are proved: appendix D.1 as
printed puts -1 on the diagonal of a sine's REM, and 1 where a dilated REM has 0.

Shape suffixes: B batch, C channels, R heads with a REM, N tokens, D channels a head, d dilation (as many independent
recurrences, each over every d-th token), M tokens of one of them, K largest power, P = 1 or 2 rows of Z, Q <= P rows
that the input has (the others are zeros).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...base.fields import COUNT_FROM_0, DILATION, Range, check_limits, setting
from ..scan.state import STATE_DTYPE, ScanState
from .aaren import Aaren
from .attention import Attention, AttentionState
from .base import HeadMixer, Mixer, StepWeights

BLOCK = 64  # tokens handled densely

Powers: TypeAlias = Callable[[Tensor], Tensor]  # exponents (M,) -> Z to their power (R, M, P, P), in float64


@dataclass(frozen=True)
class RemConfig:
    """How many of a layer's heads have which REM (section 3, "Hyperparameters"), and how they begin.

    Raises ValueError for what lies outside the paper's range.

    Attributes:
        counts: k1 to k6: regular, cosine, sine, and the same three dilated; not all 0.
        dilation: d of the last three, in tokens.
        max_power: K; larger powers are masked. 0: none are. None: the mixer's own choice.
        gate: the gate-control parameter mu before training.
    """

    counts: tuple[int, int, int, int, int, int]
    dilation: int = setting(3, limits=Range(2, 3 * DILATION))  # of 3 tokens per step at most
    max_power: int | None = setting(None, limits=COUNT_FROM_0)
    gate: float = setting(0.0, limits=Range(-3, 3))

    def __post_init__(self) -> None:
        if len(self.counts) != 6 or min(self.counts) < 0 or sum(self.counts) < 1:
            raise ValueError(f"REM counts must be six numbers from 0 on, not all 0: {self.counts}")
        check_limits(self)

    @property
    def heads(self) -> int:
        """R, heads that have a REM."""
        return sum(self.counts)


def parse_counts(text: str, heads: int) -> tuple[int, int, int, int, int, int]:
    """k1 to k6 of a layer with H `heads`, of six numbers with commas between them or of "auto".

    "auto" gives every head a REM, half of them a dilated one, and of either half all but one or two are pairs of cosine
    and sine: (2, 1, 1, 2, 1, 1) for 8 heads. Raises ValueError: not six numbers, or more than there are heads.
    """
    if text == "auto":
        halves = (heads - heads // 2, heads // 2)
        (near, pairs), (far, far_pairs) = ((n - 2 * m, m) for n in halves for m in [max(0, (n - 1) // 2)])
        return near, pairs, pairs, far, far_pairs, far_pairs
    parts = text.split(",")
    if len(parts) != 6 or not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"{text!r} is not auto or six numbers k1,k2,k3,k4,k5,k6")
    k1, k2, k3, k4, k5, k6 = map(int, parts)
    if (total := k1 + k2 + k3 + k4 + k5 + k6) > heads:
        raise ValueError(f"{text!r} has {total} REMs for {heads} heads")
    return k1, k2, k3, k4, k5, k6


class EncodingState(NamedTuple):
    """The recurrences of the heads of one dilation, in constant memory.

    Attributes:
        sums: h + u of the last d tokens, the oldest first, (B, R, d, P, D), in float64.
        values: v of the last tokens, K d at most, (B, R, n <= K d, D); without a mask, none.
    """

    sums: Tensor
    values: Tensor


Rems: TypeAlias = tuple[EncodingState, ...]  # the states of all dilations


class Recurrence(nn.Module):
    """REM heads of one kind and dilation; `Regular` and `Cyclical` say which powers.

    Takes P `rows`, the row of its sums that each head's output is (R,), the dilation d in tokens, and K, or 0.
    """

    def __init__(self, rows: int, own_rows: list[int], dilation: int, max_power: int) -> None:
        super().__init__()
        self.heads, self.rows, self.own_rows = len(own_rows), rows, own_rows
        self.dilation, self.max_power = dilation, max_power

    def powers(self, exponents: Tensor) -> Tensor:
        """Z to the power of integer exponents (M,), in float64: (R, M, P, P)."""
        raise NotImplementedError

    def outputs(self, sums: Tensor) -> Tensor:
        """Each head's own row of the sums (B, R, N, P, D): (B, R, N, D)."""
        raise NotImplementedError

    def forward(
        self, values: Tensor, state: EncodingState | None, starts: Tensor | None = None, keep: slice | None = None
    ) -> tuple[Tensor, EncodingState]:
        """P V of every head: values (B, R, N, D) -> (B, R, N or fewer, D), float32 at least; and the state."""
        n, dilation = values.shape[-2], self.dilation
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        segments = None if starts is None else starts.cumsum(-1).unsqueeze(1)  # (B, 1, N); the state is of segment 0
        past = self.initial_state(values.shape[0], values.shape[-1], values) if state is None else state
        inputs = self._inputs(values, past.values, segments)
        if n == 1 and state is not None:  # every step of an episode comes here, where each operation counts
            sums = self.powers(torch.ones(1, device=values.device)) @ state.sums[:, :, :1]
            sums = sums if segments is None else sums * (segments == 0)[..., None, None]
        else:
            folded = None if segments is None else fold(segments, dilation)
            sums = scan(self.powers, fold(inputs, dilation), None if state is None else state.sums, folded)
            sums = unfold(sums, n)
        recent = slice(-min(n, dilation), None)
        last = with_inputs(sums[:, :, recent], inputs[:, :, recent])
        after = EncodingState(
            latest(past.sums, last, dilation, None if segments is None else segments[..., recent]),
            latest(past.values, values, self.max_power * dilation, segments),
        )
        kept = sums if keep is None else sums[:, :, keep]
        return self.outputs(kept).to(values.dtype), after

    def initial_state(self, batch_size: int, head_dim: int, like: Tensor) -> EncodingState:
        """The state before any token, for values of `like`'s type and device."""
        shape, dtype = (batch_size, self.heads), torch.promote_types(like.dtype, torch.float32)
        sums = like.new_zeros(*shape, self.dilation, self.rows, head_dim, dtype=STATE_DTYPE)
        return EncodingState(sums, like.new_zeros(*shape, 0, head_dim, dtype=dtype))

    def _inputs(self, values: Tensor, past: Tensor, segments: Tensor | None) -> Tensor:
        """u (B, R, N, Q, D): the values in Z's first row, less what the mask takes back K d tokens later."""
        inputs = values.unsqueeze(-2)
        n, old, span = values.shape[-2], past.shape[-2], self.max_power * self.dilation
        if not span or old + n <= span:
            return inputs
        left = F.pad(torch.cat([past.to(values.dtype), values], 2), (0, 0, span - old, 0))[:, :, :n]
        if segments is not None:
            same = F.pad(segments, (span, 0))[..., :n] == segments
            left = left * same.unsqueeze(-1)
        highest = self.powers(torch.full((1,), self.max_power, device=values.device))[..., :1].to(values.dtype)
        return with_inputs(-highest * left.unsqueeze(-2), inputs)


def _spread(count: int, signs: tuple[float, float] = (1.0, 1.0)) -> Tensor:
    """From 2 to 1, with these signs in turn; made on a CPU, as `aaren.initial_gates` are."""
    spread = torch.linspace(2, 1, count, device="cpu") * torch.tensor(signs * count, device="cpu")[:count]
    return spread.to(torch.get_default_device())


class Regular(Recurrence):
    """Heads with f_j = lambda^j, lambda = tanh(eta): Z = (lambda); eta starts in [-2, -1] and [1, 2]."""

    def __init__(self, heads: int, dilation: int, max_power: int) -> None:
        super().__init__(1, [0] * heads, dilation, max_power)
        self.eta = nn.Parameter(_spread(heads, (1.0, -1.0)))

    def powers(self, exponents: Tensor) -> Tensor:
        return (self.eta.double().tanh().unsqueeze(-1) ** exponents).unsqueeze(-1).unsqueeze(-1)

    def outputs(self, sums: Tensor) -> Tensor:
        return sums.squeeze(-2)

    def scalars(self) -> dict[str, Tensor]:
        return {"lambda": self.eta.tanh()}


class Cyclical(Recurrence):
    """Heads with f_j = gamma^j cos(j theta), then ones with sin: Z is gamma = sigmoid(nu) times a rotation by theta.

    The i-th cosine and the i-th sine are a pair with one (gamma, theta), as in proposition 1 and in table 7's counts.
    nu starts spread over [1, 2], theta at pi / 4 (section 3).
    """

    def __init__(self, cosines: int, sines: int, dilation: int, max_power: int) -> None:
        super().__init__(2, [0] * cosines + [1] * sines, dilation, max_power)
        self.cosines, self.sines = cosines, sines
        pairs = max(cosines, sines)
        self.nu = nn.Parameter(_spread(pairs))
        self.theta = nn.Parameter(torch.full((pairs,), math.pi / 4))

    def powers(self, exponents: Tensor) -> Tensor:
        size = self.nu.double().sigmoid().unsqueeze(-1) ** exponents
        angle = self.theta.double().unsqueeze(-1) * exponents
        cosine, sine = size * angle.cos(), size * angle.sin()
        pairs = torch.stack([torch.stack([cosine, -sine], -1), torch.stack([sine, cosine], -1)], -2)
        return torch.cat([pairs[: self.cosines], pairs[: self.sines]])

    def outputs(self, sums: Tensor) -> Tensor:
        return torch.cat([sums[:, : self.cosines, :, 0], sums[:, self.cosines :, :, 1]], 1)

    def scalars(self) -> dict[str, Tensor]:
        return {"gamma": self.nu.sigmoid(), "theta": self.theta}


class GatedEncoding(nn.Module):
    """The gate of equation (4) around a mixer's heads: (1 - sigmoid(mu)) attention + sigmoid(mu) P V, one mu a layer.

    Heads beyond the REMs' number are attention alone, without a gate (appendix E.3).
    """

    def __init__(self, rems: RemConfig, heads: int) -> None:
        super().__init__()
        if rems.heads > heads:
            raise ValueError(f"{rems.heads} REMs for {heads} heads")
        self.mu = nn.Parameter(torch.tensor(float(rems.gate)))
        (k1, k2, k3, k4, k5, k6), d, most = rems.counts, rems.dilation, rems.max_power or 0
        groups = [Regular(k1, 1, most), Cyclical(k2, k3, 1, most), Regular(k4, d, most), Cyclical(k5, k6, d, most)]
        self.groups = nn.ModuleList(group for group in groups if group.heads)
        self.sizes = [group.heads for group in groups if group.heads]

    def forward(
        self,
        mixed: Tensor,
        values: Tensor,
        state: Rems | None,
        starts: Tensor | None = None,
        keep: slice | None = None,
    ) -> tuple[Tensor, Rems]:
        """All tokens: attention at the kept ones (B, H, N', D) and all values (B, H, N, D) -> (B, H, N', D)."""
        # Autocast would do the products, and so round the state, in bfloat16.
        with torch.autocast(values.device.type, enabled=False):
            heads = sum(self.sizes)
            parts, states = values[:, :heads].split(self.sizes, 1), state or [None] * len(self.sizes)
            runs = [g(v, s, starts, keep) for g, v, s in zip(self.groups, parts, states, strict=True)]
            encoded = torch.cat([y for y, _ in runs], 1)
            gated = torch.lerp(mixed[:, :heads].to(encoded.dtype), encoded, torch.sigmoid(self.mu).to(encoded.dtype))
            return torch.cat([gated.to(mixed.dtype), mixed[:, heads:]], 1), tuple(s for _, s in runs)

    def initial_state(self, batch_size: int, head_dim: int) -> Rems:
        return tuple(group.initial_state(batch_size, head_dim, self.mu) for group in self.groups)  # type: ignore[operator]

    def scalars(self) -> dict[str, float]:
        """What the layer has learned: the gate sigmoid(mu), and every lambda, gamma and theta."""
        found = {"gate": float(self.mu.detach().sigmoid())}
        for group in self.groups:
            suffix = "" if group.dilation == 1 else f"_dilated{group.dilation}"
            for name, values in group.scalars().items():  # type: ignore[operator]
                found |= {f"{name}{suffix}_{i}": value for i, value in enumerate(values.tolist())}
        return found


class EncodedState(NamedTuple):
    """The state of the mixer inside, and those of the REMs' groups."""

    inner: ScanState | AttentionState
    encoding: Rems


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
        mixed, values, after = self.inner.mix(x, inner, starts, keep)
        gated, encoded = self.encoding(mixed, values, encoding, starts, keep)
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


def scan(
    powers: Powers, inputs: Tensor, before: Tensor | None = None, segments: Tensor | None = None, stride: int = 1
) -> Tensor:
    """h_t = sum_{i<t} Z^(stride (t - i)) u_i over the tokens i of t's own sequence.

    Args:
        powers: of Z.
        inputs: u (B, R, d, M, Q, D).
        before: h + u of the token before the first, of segment 0, (B, R, d, P, D).
        segments: the sequence that a token belongs to, (B, 1, d, M); None: all to one.
        stride: the power between neighbors.

    Returns:
        (B, R, d, M, P, D), in the inputs' type, or that of `before` if it is wider.
    """
    m = inputs.shape[3]
    table = powers(stride * torch.arange(min(m, BLOCK) + 1, device=inputs.device))
    sums = _dense(table, inputs, segments) if m <= BLOCK else _blocked(powers, table, inputs, segments, stride)
    if before is None:
        return sums
    if m > BLOCK:
        table = powers(stride * torch.arange(m + 1, device=inputs.device))
    earlier = _decayed(table, before)
    if segments is not None:
        earlier = earlier * (segments == 0)[..., None, None]
    return earlier if m == 1 else sums + earlier


def with_inputs(sums: Tensor, inputs: Tensor) -> Tensor:
    """h + u, (..., P, D)."""
    missing = sums.shape[-2] - inputs.shape[-2]
    return sums + (F.pad(inputs, (0, 0, 0, missing)) if missing else inputs)


def _blocked(powers: Powers, table: Tensor, inputs: Tensor, segments: Tensor | None, stride: int) -> Tensor:
    m = inputs.shape[3]
    blocks = -(-m // BLOCK)
    extra = blocks * BLOCK - m
    inputs = F.pad(inputs, (0, 0, 0, 0, 0, extra)).unflatten(3, (blocks, BLOCK))
    if segments is not None:
        last = segments[..., -1:].expand(*segments.shape[:-1], extra)
        segments = torch.cat([segments, last], -1).unflatten(3, (blocks, BLOCK))
    inside = _dense(table, inputs, segments)
    ends = None if segments is None else segments[..., -1]
    totals = with_inputs(inside[..., -1, :, :], inputs[..., -1, :, :])
    carried = scan(powers, totals, None, ends, stride * BLOCK) + totals  # up to the end of every block
    earlier = _decayed(table, carried[:, :, :, :-1])
    if segments is not None:
        earlier = earlier * (segments[..., :-1, -1:] == segments[..., 1:, :])[..., None, None]
    return torch.cat([inside[:, :, :, :1], inside[:, :, :, 1:] + earlier], 3).flatten(3, 4)[:, :, :, :m]


def _dense(table: Tensor, inputs: Tensor, segments: Tensor | None) -> Tensor:
    # The same for a few tokens (..., M, Q, D) as one strictly triangular product; powers 0 to M, segments (..., M).
    m, q = inputs.shape[-3:-1]
    p = table.shape[-1]
    if m == 1:  # every step of an episode comes here, where each operation counts
        return inputs.new_zeros(*inputs.shape[:-2], p, inputs.shape[-1])
    token = torch.arange(m, device=inputs.device)
    distance = token.unsqueeze(-1) - token
    weights = table.to(inputs.dtype)[:, distance.clamp(min=0), :, :q] * (distance > 0)[..., None, None]
    weights = weights.transpose(2, 3).reshape(-1, *[1] * (inputs.dim() - 5), m * p, m * q)
    if segments is not None:
        same = segments.unsqueeze(-1) == segments.unsqueeze(-2)
        weights = weights * same.repeat_interleave(p, -2).repeat_interleave(q, -1)
    return (weights @ inputs.flatten(-3, -2)).unflatten(-2, (m, p))  # type: ignore[no-any-return]


def _decayed(table: Tensor, start: Tensor) -> Tensor:
    """Z^1 to Z^M times a start (B, R, ..., P, D), for powers 0 to M: (B, R, ..., M, P, D) in the start's type."""
    flat = table[:, 1:].to(start.dtype).flatten(1, 2)
    flat = flat.view(len(flat), *[1] * (start.dim() - 4), *flat.shape[1:])
    return (flat @ start).unflatten(-2, (-1, table.shape[-1]))  # type: ignore[no-any-return]


def fold(x: Tensor, dilation: int) -> Tensor:
    """(B, R, N, ...) -> (B, R, d, M, ...): every d-th token in a row of its own; padded with zeros."""
    if extra := -x.shape[2] % dilation:
        x = torch.cat([x, x.new_zeros(*x.shape[:2], extra, *x.shape[3:])], 2)
    return x.unflatten(2, (-1, dilation)).transpose(2, 3)  # type: ignore[no-any-return]


def unfold(x: Tensor, n: int) -> Tensor:
    """The inverse of `fold` for N tokens."""
    return x.transpose(2, 3).flatten(2, 3)[:, :, :n]


def latest(past: Tensor, new: Tensor, count: int, segments: Tensor | None) -> Tensor:
    """The last of past and new tokens (B, R, N, ...), `count` or all; zeros where they are not of the last sequence."""
    n, old = new.shape[2], past.shape[2]
    if segments is not None:
        every = F.pad(segments, (old, 0))
        same = (every == segments[..., -1:]).view(*every.shape, *[1] * (new.dim() - 3))
        past, new = past * same[:, :, :old], new * same[:, :, old:]
    # Copied, and only what is kept: the state keeps no whole sequence's memory alive.
    dropped = max(0, old + n - count)
    return torch.cat([past[:, :, min(dropped, old) :], new[:, :, max(0, dropped - old) :].to(past.dtype)], 2)
