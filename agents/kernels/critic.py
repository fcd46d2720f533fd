"""A critic's choice among candidate actions on the CPU in one call: compiled by Numba on first use.

What is chosen for an environment does not depend, to the last bit, on how many others there are: each is computed by
itself, and every sum of it in a fixed order.

Names: E environments, O observation, A action, J networks, H hidden units, K candidates.
"""

import math

import numpy as np

from .compiled import Array, compiled

ZERO, ONE = np.float32(0.0), np.float32(1.0)
EPSILON = np.float32(1e-5)  # of the layer norms
TOGETHER = 4  # inputs of the second layer at a time, and candidates


@compiled("contract")
def _candidates(action: Array, scaling: tuple[Array, ...], offsets: Array, out: Array) -> None:
    """The candidates (K, A) in the model's units, around an action (A,) in the environment's, which comes first."""
    middle, half = scaling[2], scaling[3]
    for a in range(len(action)):
        own = (action[a] - middle[a]) / half[a]
        out[0, a] = own
        for k in range(len(offsets)):
            out[1 + k, a] = min(max(own + offsets[k, a], -ONE), ONE)


@compiled("contract")
def _add_scaled(a: float, row: Array, out: Array) -> None:
    """out += a row."""
    for h in range(len(out)):
        out[h] += a * row[h]


@compiled("contract", "reassoc", "nsz")
def _activate(row: Array) -> None:
    """ReLU of the layer norm of a row (H,), in place. NaN stays."""
    count, total, squares = np.float32(len(row)), ZERO, ZERO
    for h in range(len(row)):
        total += row[h]
    mean = total / count
    for h in range(len(row)):
        off = row[h] - mean
        squares += off * off
    inverse = ONE / np.float32(math.sqrt(squares / count + EPSILON))
    for h in range(len(row)):
        y = (row[h] - mean) * inverse
        row[h] = ZERO if y < ZERO else y


@compiled("contract")
def _first_layer(seen: Array, candidates: Array, of_action: Array, out: Array) -> None:
    """The hidden units (K, H), of the observation's part (H,), which all candidates share, and of each candidate."""
    hidden = len(seen)
    for k in range(len(candidates)):
        row = out[k][:hidden]
        for h in range(hidden):
            row[h] = seen[h]
        for a in range(candidates.shape[1]):
            _add_scaled(candidates[k, a], of_action[a], row)
        _activate(row)


@compiled("contract")
def _second_layer(x: Array, weight: Array, bias: Array, out: Array) -> None:
    """x @ weight + bias of rows (K, H), K and H multiples of four: four rows and four inputs share what is loaded."""
    (inputs, outputs), rows = weight.shape, len(x)
    for r in range(0, rows, TOGETHER):
        # Slices, not offsets: Numba would allow for a negative index in every element, and use no vectors.
        y0, y1, y2, y3 = out[r][:outputs], out[r + 1][:outputs], out[r + 2][:outputs], out[r + 3][:outputs]
        for j in range(outputs):
            y0[j], y1[j], y2[j], y3[j] = bias[j], bias[j], bias[j], bias[j]
        for k in range(0, inputs, TOGETHER):
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


@compiled("contract", "reassoc", "nsz")
def _value(row: Array, weight: Array) -> float:
    """The last layer without its bias, of a row (H,) of hidden units."""
    total = ZERO
    for h in range(len(weight)):
        total += row[h] * weight[h]
    return total  # type: ignore[return-value]  # a float32


@compiled("contract")
def _most_gaining(least: Array) -> int:
    """The first of the largest numbers (K,) above 0; 0, the policy's own action, where there is none. NaN is none."""
    best, most = 0, ZERO
    for k in range(1, len(least)):
        if least[k] > most:
            best, most = k, least[k]
    return best


@compiled("contract")
def choose(
    observations: Array,
    improves: Array,
    scaling: tuple[Array, ...],
    offsets: Array,
    first: tuple[Array, ...],
    second: tuple[Array, ...],
    last: Array,
    actions: Array,
) -> None:
    """Replaces the actions of environments by the candidates whose smallest advantage over them is largest.

    Args:
        observations: (E, O), raw.
        improves: bool (E,), which environments choose.
        scaling: mean and deviation of observations (O,), middle and half of actions (A,), as `kernels.step` has them.
        offsets: (K - 1, A), of the candidates, in the model's units.
        first: weights (J, O, H) of observations and (J, A, H) of actions, and biases (J, H).
        second: weights (J, H, H) and biases (J, H).
        last: weights (J, H); its bias changes no advantage.
        actions: (E, A), the policy's, in the environment's units; written. Its own action stays as it is, to the last
            bit, where no candidate is better.
    """
    of_observation, of_action, bias = first
    networks, size, hidden = of_observation.shape
    count, dim = len(offsets) + 1, actions.shape[1]
    candidates = np.empty((count, dim), np.float32)
    x, y = np.empty((count, hidden), np.float32), np.empty((count, hidden), np.float32)
    seen, least = np.empty(hidden, np.float32), np.empty(count, np.float32)
    for e in range(len(actions)):
        if not improves[e]:
            continue
        _candidates(actions[e], scaling, offsets, candidates)
        least[:] = np.inf
        for j in range(networks):
            seen[:] = bias[j]
            for o in range(size):
                _add_scaled((observations[e, o] - scaling[0][o]) / scaling[1][o], of_observation[j, o], seen)
            _first_layer(seen, candidates, of_action[j], x)
            _second_layer(x, second[0][j], second[1][j], y)
            for k in range(count):
                _activate(y[k][:hidden])
            own = _value(y[0], last[j])
            for k in range(count):
                gain = _value(y[k], last[j]) - own
                if gain < least[k] or gain != gain:  # once NaN, it stays so
                    least[k] = gain
        chosen = _most_gaining(least)
        if chosen > 0:
            for a in range(dim):
                actions[e, a] = scaling[2][a] + scaling[3][a] * candidates[chosen, a]
