"""One environment step, a token, of a Decision-Aaren on the CPU in one call: compiled by Numba on first use.

Operation by operation, a step would take several times as long. What is computed for an environment does not depend, to
the last bit, on how many others there are: every row of a product is summed in the same order, and no operation joins
environments. These may be at different steps of their episodes.

Names: E environments, C channels, H heads, D = C / H, L layers; R heads have a recurrence encoding (`encoding.py`), of
which a state holds F numbers.
"""

import math

import numpy as np

from . import Array, compiled

EPSILON = np.float32(1e-5)  # of the layer norms, torch's default

# erf(z) = z P(z^2) / Q(z^2) for |z| <= 4, beyond which it is 1 in float32: a least-squares fit on Chebyshev nodes,
# within 5e-7 where it is computed in float32.
P0, P1, P2, P3, P4, P5 = (
    np.float32(c) for c in (1.12837914, 0.193545223, 0.0531017803, 0.00388335706, 0.000284567214, 1.98679259e-06)
)
Q1, Q2, Q3, Q4, Q5 = (np.float32(c) for c in (0.504857543, 0.115350079, 0.015207273, 0.00118557643, 3.74203542e-05))
ONE, HALF, ROOT_HALF, FOUR = (np.float32(x) for x in (1.0, 0.5, math.sqrt(0.5), 4.0))
ZERO = np.float32(0.0)


@compiled("contract")
def _linear(x: Array, weight: Array, bias: Array, out: Array) -> None:
    """out = x @ weight + bias.

    Four rows and four inputs at a time keep the weights in registers; the inputs must be a multiple of four. Every sum
    is one chain of fused multiply-adds, input by input: the rows that are left over have the same one.
    """
    (inputs, outputs), rows = weight.shape, len(x)
    together = rows // 4 * 4
    for r in range(0, together, 4):
        # Slices, not offsets: Numba would allow for a negative index in every element, and use no vectors.
        y0, y1, y2, y3 = out[r][:outputs], out[r + 1][:outputs], out[r + 2][:outputs], out[r + 3][:outputs]
        for j in range(outputs):
            y0[j], y1[j], y2[j], y3[j] = bias[j], bias[j], bias[j], bias[j]
        for k in range(0, inputs, 4):
            w0, w1 = weight[k][:outputs], weight[k + 1][:outputs]
            w2, w3 = weight[k + 2][:outputs], weight[k + 3][:outputs]
            a0, a1, a2, a3 = x[r, k], x[r, k + 1], x[r, k + 2], x[r, k + 3]
            b0, b1, b2, b3 = x[r + 1, k], x[r + 1, k + 1], x[r + 1, k + 2], x[r + 1, k + 3]
            c0, c1, c2, c3 = x[r + 2, k], x[r + 2, k + 1], x[r + 2, k + 2], x[r + 2, k + 3]
            d0, d1, d2, d3 = x[r + 3, k], x[r + 3, k + 1], x[r + 3, k + 2], x[r + 3, k + 3]
            for j in range(outputs):
                p0, p1, p2, p3 = w0[j], w1[j], w2[j], w3[j]
                y0[j] = a3 * p3 + (a2 * p2 + (a1 * p1 + (a0 * p0 + y0[j])))
                y1[j] = b3 * p3 + (b2 * p2 + (b1 * p1 + (b0 * p0 + y1[j])))
                y2[j] = c3 * p3 + (c2 * p2 + (c1 * p1 + (c0 * p0 + y2[j])))
                y3[j] = d3 * p3 + (d2 * p2 + (d1 * p1 + (d0 * p0 + y3[j])))
    for r in range(together, rows):
        y = out[r][:outputs]
        for j in range(outputs):
            y[j] = bias[j]
        for k in range(inputs):  # one after the other, as they lie in memory, is fastest for one row
            a, w = x[r, k], weight[k][:outputs]
            for j in range(outputs):
                y[j] = a * w[j] + y[j]


@compiled("contract", "reassoc", "nsz")
def _normalize(x: Array, scale_shift: Array, out: Array) -> None:
    """Layer norm of every row; scale_shift (2, C). `out` may be x."""
    rows, channels = x.shape
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
def _activate(x: Array, gelu: bool) -> None:
    """GELU, or ReLU, in place."""
    rows, channels = x.shape
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
def _attend(mixed: Array, begins: Array, heads: int, before: Array, after: Array, out: Array) -> None:
    """Aaren's recurrence (section 3.1 of the paper): one more token for every environment.

    Args:
        mixed: rows (E, C + H) or (E, C + 2 H): values, scores, and gates, sigmoid(gate) of which fades what was before.
        begins: bool (E,), True where a sequence begins: after no tokens.
        heads: H.
        before: the layer's states (E, S), which begin with w (C), u (H) and m (H); float64.
        after: likewise, written.
        out: rows (E, C) of outputs w / u.
    """
    environments, channels = out.shape
    dim, gated = channels // heads, mixed.shape[1] > channels + heads
    for e in range(environments):
        for h in range(heads):
            u, m = before[e, channels + h], before[e, channels + heads + h]
            old, w = before[e][h * dim :][:dim], after[e][h * dim :][:dim]
            value, y = mixed[e][h * dim :][:dim], out[e][h * dim :][:dim]
            score = float(mixed[e, channels + h])
            shrink, p = 1.0, 1.0
            if begins[e]:
                m, u = score, 0.0
                p = math.exp(score - m)  # 1, or NaN
                for d in range(dim):
                    w[d] = p * value[d]
            else:
                if gated:
                    gate = float(mixed[e, channels + heads + h])
                    m += min(gate, 0.0) - math.log1p(math.exp(-abs(gate)))  # log sigmoid
                if score > m:
                    shrink, m = math.exp(m - score), score
                else:
                    p = math.exp(score - m)
                for d in range(dim):
                    w[d] = old[d] * shrink + p * value[d]
            u = u * shrink + p
            inverse = 1.0 / u
            for d in range(dim):
                y[d] = w[d] * inverse
            after[e, channels + h], after[e, channels + heads + h] = u, m


@compiled("contract")
def _recur(source: Array, value: Array, column: Array, pushed: Array, own_row: int, h: Array) -> None:
    """h = Z source in its own row, and pushed = Z source + value, both of P rows of D."""
    dim = len(h)
    a, b = column[0], column[1]
    if len(source) == dim:  # Z is one number
        for k in range(dim):
            h[k] = a * source[k]
            pushed[k] = h[k] + value[k]
        return
    first, second = source[:dim], source[dim:]
    for k in range(dim):
        upper, lower = a * first[k] - b * second[k], b * first[k] + a * second[k]
        pushed[k], pushed[dim + k] = upper + value[k], lower
        h[k] = lower if own_row else upper


@compiled("contract")
def _encode(
    mixed: Array, begins: Array, layer: int, dim: int, encoding: tuple[Array, ...],
    sums: Array, after: Array, out: Array,
) -> None:  # fmt: skip
    """The gate of equation (4) around attention's outputs; other arguments as of `_attend`.

    Args:
        layer: whose encoding is meant.
        dim: D.
        encoding: the gates (L,); the first columns of Z (L, R, 2); where a head's sums begin in a state, (R + 1,);
            their rows P, (R,); the row that is its output, (R,).
        sums: the layer's states; their last F numbers are h + v of every head's last d tokens, the oldest first,
            (d, P, D) each.
        out: rows of attention's outputs, (E, C); those of R heads are changed.
    """
    gates, columns, starts, rows, own_rows = encoding
    count = starts[-1]
    gate, nothing, h = gates[layer], np.zeros(count), np.empty(dim)
    first = sums.shape[1] - count
    for e in range(len(sums)):
        source_sums = nothing if begins[e] else sums[e][first:]
        for r in range(len(rows)):
            size = rows[r] * dim  # of a token
            old, new = source_sums[starts[r] : starts[r + 1]], after[e][first:][starts[r] : starts[r + 1]]
            later = len(old) - size
            for k in range(later):
                new[k] = old[size + k]
            value = mixed[e][r * dim :][:dim]
            _recur(old[:size], value, columns[layer, r], new[later:], own_rows[r], h)
            y = out[e][r * dim :][:dim]
            for k in range(dim):
                y[k] += gate * (h[k] - y[k])


@compiled("contract")
def _embed(
    given: tuple[Array, ...], scaling: tuple[Array, ...], return_scale: float, embedding: tuple[Array, ...], x: Array
) -> None:
    """The tokens (E, C) before their layer norm: the step in the model's units (`Scaling.to_model`), embedded."""
    observations, to_go, times, previous, begins = given
    mean, std, middle, half = scaling
    moments, of_action, of_rest = embedding
    channels = x.shape[1]
    for e in range(len(x)):
        token, moment = x[e][:channels], moments[min(max(times[e], 0), len(moments) - 1)][:channels]
        scaled = np.float32(to_go[e] / return_scale)
        _add_scaled(scaled, of_rest[0], moment, token)  # type: ignore[arg-type]  # a float32 in compiled code
        for k in range(len(mean)):
            _add_scaled((observations[e, k] - mean[k]) / std[k], of_rest[1 + k], token, token)
        if not begins[e]:
            for k in range(len(middle)):
                _add_scaled((previous[e, k] - middle[k]) / half[k], of_action[k], token, token)


@compiled("contract")
def _add_scaled(a: float, row: Array, x: Array, out: Array) -> None:
    """out = x + a row."""
    for c in range(len(out)):
        out[c] = x[c] + a * row[c]


@compiled("contract")
def step(
    given: tuple[Array, ...],
    scaling: tuple[Array, ...],
    return_scale: float,
    embedding: tuple[Array, ...],
    blocks: tuple[Array, ...],
    norms: Array,
    head: tuple[Array, ...],
    form: tuple[int, bool, bool, bool],
    encoding: tuple[Array, ...],
    before: Array,
    after: Array,
    actions: Array,
) -> None:
    """Takes in a_{t-1}, R_t, s_t of every environment and predicts a_t, in the environment's units.

    Args:
        given: s_t (E, O), R_t (E,) in float64, t (E,), a_{t-1} (E, A), and bool (E,), True where a sequence begins:
            neither its state nor its a_{t-1} counts.
        scaling: mean and deviation of observations (O,), middle and half of actions (A,).
        return_scale: what returns-to-go are divided by.
        embedding: of time with the token's bias (T, C), and weights (A, C) of a_{t-1} and (1 + O, C) of R_t and s_t.
        blocks: weights (L, in, out) and biases (L, out): values, scores and gates; output; MLP up; MLP down.
        norms: (1 + 2 L + 1, 2, C): the embedding's, every block's two, and the trunk's own, which "pre-norm" has.
        head: weight (C, A) and bias (A,).
        form: H; whether blocks are pre-norm, or post-norm; whether MLPs have GELU, or ReLU; whether actions are
            discrete: `actions` are then logits.
        encoding: of recurrence encoding, see `encode`; of no heads where there is none.
        before: states (E, L, S), float64: w (C), u (H), m (H), and the encoding's sums (F).
        after: likewise, written.
        actions: (E, A), written.
    """
    mix, mix_bias, output, output_bias, up, up_bias, down, down_bias = blocks
    heads, pre_norm, gelu, discrete = form
    layers, channels = mix.shape[0], mix.shape[1]
    environments, begins = len(actions), given[4]
    x = np.empty((environments, channels), np.float32)
    y, z = np.empty_like(x), np.empty_like(x)
    mixed = np.empty((environments, mix.shape[2]), np.float32)
    hidden = np.empty((environments, up.shape[2]), np.float32)
    _embed(given, scaling, return_scale, embedding, x)
    _normalize(x, norms[0], x)
    for layer in range(layers):
        if pre_norm:
            _normalize(x, norms[1 + 2 * layer], y)
        _linear(y if pre_norm else x, mix[layer], mix_bias[layer], mixed)
        old, new = before[:, layer], after[:, layer]
        _attend(mixed, begins, heads, old, new, y)
        _encode(mixed, begins, layer, channels // heads, encoding, old, new, y)
        _linear(y, output[layer], output_bias[layer], z)
        x += z
        _normalize(x, norms[1 + pre_norm + 2 * layer], y if pre_norm else x)
        _linear(y if pre_norm else x, up[layer], up_bias[layer], hidden)
        _activate(hidden, gelu)
        _linear(hidden, down[layer], down_bias[layer], z)
        x += z
        if not pre_norm:
            _normalize(x, norms[2 + 2 * layer], x)
    if pre_norm:
        _normalize(x, norms[2 * layers + 1], x)
    _linear(x, head[0], head[1], actions)
    if discrete:
        return
    for e in range(environments):
        for a in range(actions.shape[1]):
            actions[e, a] = scaling[2][a] + scaling[3][a] * np.float32(math.tanh(actions[e, a]))
