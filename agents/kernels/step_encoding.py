"""Recurrence encoding in a compiled environment step: `encoding.py`'s recurrence, a token after the other.

Names as in `step.py`; R heads have an encoding, and a state holds F numbers of them.
"""

from __future__ import annotations

import numpy as np

from .compiling.bfloat16 import Array
from .compiling.decorators import compiled


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
def encode(
    mixed: Array,
    fresh: Array,
    only_last: bool,
    layer: int,
    dim: int,
    encoding: tuple[Array, ...],
    sums: Array,
    after: Array,
    out: Array,
) -> None:
    """The gate of equation (4) around attention's outputs.

    Args:
        mixed: rows (3 E, C or more), which begin with the tokens' values.
        fresh: (E,), 1 where a sequence begins: after no tokens, and without the action's; else 0.
        only_last: outputs of the last tokens only, in the first E rows of `out`.
        layer: which part of the states is meant.
        dim: D.
        encoding: the gates (L,); the first columns of Z (L, R, 2); where a head's sums begin in a state, (R + 1,);
            their rows P, (R,); the row that is its output, (R,).
        sums: h + v of a head's last d tokens, the oldest first, (d, P, D) each: (E, L, F), float64.
        after: likewise, written.
        out: rows of attention's outputs, (3 E, C) or more; those of R heads are changed.
    """
    gates, columns, begins, rows, own_rows = encoding
    gate, nothing = gates[layer], np.zeros(sums.shape[2])
    pushed, h = np.empty((3, 2 * dim)), np.empty(dim)
    for e in range(sums.shape[0]):
        skipped = fresh[e]
        count, source_sums = 3 - skipped, nothing if skipped else sums[e, layer]
        for r in range(len(rows)):
            size = rows[r] * dim  # of a token
            old, new = source_sums[begins[r] : begins[r + 1]], after[e, layer, begins[r] : begins[r + 1]]
            dilation = len(old) // size
            for i in range(count):
                # The tokens' sums in order: first those of the state, then the new ones.
                source = old[i * size :][:size] if i < dilation else pushed[i - dilation][:size]
                token = 3 * e + skipped + i
                _recur(source, mixed[token][r * dim :][:dim], columns[layer, r], pushed[i], own_rows[r], h)
                if not only_last or i == count - 1:
                    y = out[e if only_last else token][r * dim :][:dim]
                    for k in range(dim):
                        y[k] += gate * (h[k] - y[k])
            for j in range(dilation):
                at = j + count
                new[j * size :][:size] = old[at * size :][:size] if at < dilation else pushed[at - dilation][:size]
