"""Recurrence encoding in a compiled environment step: `encoding.py`'s recurrence, one token further.

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
    begins: Array,
    layer: int,
    dim: int,
    encoding: tuple[Array, ...],
    sums: Array,
    after: Array,
    out: Array,
) -> None:
    """The gate of equation (4) around attention's outputs.

    Args:
        mixed: rows (E, C or more), which begin with the tokens' values.
        begins: bool (E,), True where a sequence begins: after no tokens.
        layer: whose encoding is meant.
        dim: D.
        encoding: the gates (L,); the first columns of Z (L, R, 2); where a head's sums begin in a state, (R + 1,);
            their rows P, (R,); the row that is its output, (R,).
        sums: the layer's states (E, S), float64; their last F numbers are h + v of every head's last d tokens, the
            oldest first, (d, P, D) each.
        after: likewise, written.
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
