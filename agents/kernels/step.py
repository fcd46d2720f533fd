"""One environment step of a Decision-Aaren, with recurrence encoding or without, on the CPU in one call: compiled by
Numba on first use.

For one environment a step is a few hundred thousand multiplications; called operation by operation it would take
several times as long. What is computed for an environment does not depend, to the last bit, on how many others there
are: every row of a product is summed in the same order, and no operation joins environments.

Environments may be at different steps of their episodes: each has its own rows of time's embedding, and one whose
sequence begins counts neither its state nor an action before.

Names: E environments, R = 3 E token rows in the order (a_{t-1}, R_t, s_t), C channels, H heads, D = C / H, L layers.
"""

from __future__ import annotations

import math

import numpy as np

from .compiling.bfloat16 import Array
from .compiling.decorators import compiled
from .step_encoding import encode

EPSILON = np.float32(1e-5)  # of the layer norms, torch's default

# erf(z) = z P(z^2) / Q(z^2) for |z| <= 4, beyond which it is 1 in float32: a weighted least-squares fit on Chebyshev
# nodes, within 3e-8 of erf (in float64; 5e-7 where it is computed in float32).
P0, P1, P2, P3, P4, P5 = (
    np.float32(c) for c in (1.12837914, 0.193545223, 0.0531017803, 0.00388335706, 0.000284567214, 1.98679259e-06)
)
Q1, Q2, Q3, Q4, Q5 = (np.float32(c) for c in (0.504857543, 0.115350079, 0.015207273, 0.00118557643, 3.74203542e-05))
ONE, HALF, ROOT_HALF, FOUR = (np.float32(x) for x in (1.0, 0.5, math.sqrt(0.5), 4.0))
ZERO = np.float32(0.0)
LEAST = float(np.finfo(np.float64).min)  # m of a state before any token


@compiled("contract")
def _linear(x: Array, rows: int, weight: Array, bias: Array, out: Array) -> None:
    """out[r] = x[r] @ weight + bias for the first `rows` rows, rounded up to a multiple of three.

    Three rows and four inputs at a time keep the weights in registers; the inputs must be a multiple of four.
    """
    inputs, outputs = weight.shape
    for r in range(0, rows, 3):
        # Slices, not offsets: Numba would allow for a negative index in every element, and use no vectors.
        y0, y1, y2 = out[r][:outputs], out[r + 1][:outputs], out[r + 2][:outputs]
        for j in range(outputs):
            y0[j] = bias[j]
            y1[j] = bias[j]
            y2[j] = bias[j]
        for k in range(0, inputs, 4):
            w0, w1, w2, w3 = (
                weight[k][:outputs],
                weight[k + 1][:outputs],
                weight[k + 2][:outputs],
                weight[k + 3][:outputs],
            )
            a0, a1, a2, a3 = x[r, k], x[r, k + 1], x[r, k + 2], x[r, k + 3]
            b0, b1, b2, b3 = x[r + 1, k], x[r + 1, k + 1], x[r + 1, k + 2], x[r + 1, k + 3]
            c0, c1, c2, c3 = x[r + 2, k], x[r + 2, k + 1], x[r + 2, k + 2], x[r + 2, k + 3]
            for j in range(outputs):
                p0, p1, p2, p3 = w0[j], w1[j], w2[j], w3[j]
                y0[j] += a0 * p0 + a1 * p1 + a2 * p2 + a3 * p3
                y1[j] += b0 * p0 + b1 * p1 + b2 * p2 + b3 * p3
                y2[j] += c0 * p0 + c1 * p1 + c2 * p2 + c3 * p3


@compiled("contract", "reassoc", "nsz")
def _normalise(x: Array, rows: int, scale_shift: Array, out: Array) -> None:
    """Layer norm of the first `rows` rows; scale_shift (2, C). `out` may be x."""
    channels = x.shape[1]
    scale, shift = scale_shift[0], scale_shift[1]
    share = ONE / np.float32(channels)
    for r in range(rows):
        row, to = x[r][:channels], out[r][:channels]
        total = ZERO
        for c in range(channels):
            total += row[c]
        mean, squares = total * share, ZERO
        for c in range(channels):
            off = row[c] - mean
            squares += off * off
        inverse = ONE / np.float32(math.sqrt(squares * share + EPSILON))
        for c in range(channels):
            to[c] = (row[c] - mean) * inverse * scale[c] + shift[c]


@compiled("contract")
def _activate(x: Array, rows: int, gelu: bool) -> None:
    """GELU, or ReLU, of the first `rows` rows, in place."""
    channels = x.shape[1]
    for r in range(rows):
        row = x[r][:channels]
        if gelu:
            for c in range(channels):
                a = row[c]
                z = min(max(a * ROOT_HALF, -FOUR), FOUR)
                t = z * z
                top = z * (P0 + t * (P1 + t * (P2 + t * (P3 + t * (P4 + t * P5)))))
                bottom = ONE + t * (Q1 + t * (Q2 + t * (Q3 + t * (Q4 + t * Q5))))
                row[c] = a * (HALF + HALF * min(max(top / bottom, -ONE), ONE))
        else:
            for c in range(channels):
                row[c] = ZERO if row[c] < ZERO else row[c]  # NaN stays


@compiled("contract")
def _clear(row: Array) -> None:
    for i in range(len(row)):
        row[i] = 0.0


@compiled("contract")
def _attend(
    mixed: Array,
    begins: Array,
    only_last: bool,
    layer: int,
    before: tuple[Array, ...],
    after: tuple[Array, ...],
    out: Array,
) -> None:
    """Aaren's recurrence (section 3.1 of the paper) over every environment's tokens.

    Args:
        mixed: rows (R, C + H or more): values, then scores.
        begins: (E,), 1 where a sequence begins: after no tokens, and without the action's; else 0.
        only_last: outputs of the last tokens only, in the first E rows of `out`.
        layer: which part of the states is meant.
        before: m (E, L, H), u (E, L, H), w (E, L, H, D), float64.
        after: likewise, written.
        out: rows (R, C) of outputs w / u.
    """
    environments, _, heads, dim = before[2].shape
    for e in range(environments):
        first = begins[e]
        for h in range(heads):
            m, u = before[0][e, layer, h], before[1][e, layer, h]
            old, w = before[2][e, layer, h][:dim], after[2][e, layer, h][:dim]
            for d in range(dim):
                w[d] = old[d]
            if first:
                m, u = LEAST, 0.0
                _clear(w)
            for t in range(first, 3):
                score = float(mixed[3 * e + t, heads * dim + h])
                value = mixed[3 * e + t][h * dim :][:dim]
                shrink, p = 1.0, 1.0
                if score > m:
                    shrink, m = math.exp(m - score), score
                else:
                    p = math.exp(score - m)
                u = u * shrink + p
                inverse = 1.0 / u
                if only_last and t < 2:
                    for d in range(dim):
                        w[d] = w[d] * shrink + p * value[d]
                else:
                    y = out[e if only_last else 3 * e + t][h * dim :][:dim]
                    for d in range(dim):
                        w[d] = w[d] * shrink + p * value[d]
                        y[d] = w[d] * inverse
            after[0][e, layer, h], after[1][e, layer, h] = m, u


@compiled("contract")
def _add(x: Array, y: Array, rows: int) -> None:
    """x += y in the first `rows` rows."""
    channels = x.shape[1]
    for r in range(rows):
        to, other = x[r][:channels], y[r][:channels]
        for c in range(channels):
            to[c] += other[c]


@compiled("contract")
def _embed(
    inputs: Array, weight: Array, bias: Array, moments: Array, when: Array, place: int, token: int, x: Array
) -> None:
    """One of the three token rows of every environment: inputs (E, I) @ weight (I, C) + bias + its moment."""
    channels = weight.shape[1]
    for e in range(inputs.shape[0]):
        to, moment = x[3 * e + token][:channels], moments[when[e, place]][:channels]
        for c in range(channels):
            to[c] = bias[c] + moment[c]
        for k in range(weight.shape[0]):
            a, row = inputs[e, k], weight[k][:channels]
            for c in range(channels):
                to[c] += a * row[c]


@compiled("contract")
def step(
    inputs: tuple[Array, ...],
    moments: Array,
    when: Array,
    embedding: tuple[Array, ...],
    blocks: tuple[Array, ...],
    norms: Array,
    head: tuple[Array, ...],
    begins: Array,
    pre_norm: bool,
    gelu: bool,
    encoding: tuple[Array, ...],
    before: tuple[Array, ...],
    after: tuple[Array, ...],
    actions: Array,
) -> None:
    """Pushes (a_{t-1}, R_t, s_t) of every environment and predicts a_t.

    Args:
        inputs: a_{t-1} (E, A), R_t (E, 1), s_t (E, O).
        moments: time's embedding (T, C).
        when: its rows of t - 1 and t, (E, 2).
        embedding: weights (A, C), (1, C), (O, C) of the three, and biases (3, C).
        blocks: weights (L, in, out) and biases (L, out): values and scores; output; MLP up; MLP down.
        norms: (1 + 2 L + 1, 2, C): the embedding's, every block's two, and the trunk's own, which "pre-norm" has.
        head: weight (C, A) and bias (A,).
        begins: (E,), 1 where a sequence begins: its state does not count, and no action is pushed; else 0.
        pre_norm: the blocks' form; post-norm otherwise.
        gelu: the MLPs' activation; ReLU otherwise.
        encoding: of recurrence encoding, see `encode`; of no heads where there is none.
        before: m (E, L, H), u (E, L, H), w (E, L, H, D) and the encoding's sums (E, L, F), float64.
        after: likewise, written.
        actions: (E, A), written: in (-1, 1).
    """
    mix, mix_bias, output, output_bias, up, up_bias, down, down_bias = blocks
    layers, channels = mix.shape[0], mix.shape[1]
    environments = actions.shape[0]
    count = 3 * environments
    rounded = (environments + 2) // 3 * 3
    x = np.empty((count, channels), np.float32)
    y = np.zeros((count, channels), np.float32)  # not all rows are written before they are read
    z = np.empty((count, channels), np.float32)
    mixed = np.empty((count, mix.shape[2]), np.float32)
    hidden = np.empty((count, up.shape[2]), np.float32)
    answers = np.empty((rounded, actions.shape[1]), np.float32)
    _embed(inputs[0], embedding[0], embedding[3][0], moments, when, 0, 0, x)
    _embed(inputs[1], embedding[1], embedding[3][1], moments, when, 1, 1, x)
    _embed(inputs[2], embedding[2], embedding[3][2], moments, when, 1, 2, x)
    _normalise(x, count, norms[0], x)
    rows = count
    for layer in range(layers):
        last = layer == layers - 1
        if pre_norm:
            _normalise(x, count, norms[1 + 2 * layer], y)
            _linear(y, count, mix[layer], mix_bias[layer], mixed)
        else:
            _linear(x, count, mix[layer], mix_bias[layer], mixed)
        _attend(mixed, begins, last, layer, before, after, y)
        encode(mixed, begins, last, layer, before[2].shape[3], encoding, before[3], after[3], y)
        if last:  # the action is read from the observation's token alone
            rows = rounded
            for e in range(environments):
                x[e] = x[3 * e + 2]
        _linear(y, rows, output[layer], output_bias[layer], z)
        _add(x, z, rows)
        if pre_norm:
            _normalise(x, rows, norms[2 + 2 * layer], y)
            _linear(y, rows, up[layer], up_bias[layer], hidden)
        else:
            _normalise(x, rows, norms[1 + 2 * layer], x)
            _linear(x, rows, up[layer], up_bias[layer], hidden)
        _activate(hidden, rows, gelu)
        _linear(hidden, rows, down[layer], down_bias[layer], z)
        _add(x, z, rows)
        if not pre_norm:
            _normalise(x, rows, norms[2 + 2 * layer], x)
    if pre_norm:
        _normalise(x, rows, norms[2 * layers + 1], x)
    _linear(x, rows, head[0], head[1], answers)
    for e in range(environments):
        for a in range(actions.shape[1]):
            actions[e, a] = math.tanh(answers[e, a])
