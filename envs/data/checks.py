"""Checks of numbers that every reader of data applies."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from .episodes import row_blocks

Bounds = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


def not_finite(array: npt.NDArray[np.float32]) -> tuple[int, tuple[int, ...], str] | None:
    """How many values are NaN or infinite, the index of the first and what it is; None where all are finite."""
    bad = 0
    first: tuple[int, ...] | None = None
    for rows in row_blocks(len(array)):
        finite = np.isfinite(array[rows])
        if finite.all():
            continue
        places = np.argwhere(~finite)
        bad += len(places)
        if first is None:
            first = (rows.start + int(places[0, 0]), *map(int, places[0, 1:]))
    return None if first is None else (bad, first, "NaN" if np.isnan(array[first]) else "infinite or beyond float32")


def hold_to_bounds(path: Path, actions: npt.NDArray[np.float32], bounds: Bounds, clip: bool, notes: list[str]) -> None:
    """Refuse actions (N, A) out of bounds, numbers or (A,); with `clip` change them in place, and note it.

    Raises:
        DataError: actions are out of bounds, and not to be clipped.
    """
    low, high = bounds
    least, most = actions.min(axis=0), actions.max(axis=0)
    if np.all(least >= low) and np.all(most <= high):
        return
    found, allowed = (f"[{a.min():.6g}, {b.max():.6g}]" for a, b in ((least, most), (low, high)))
    if not clip:
        raise DataError(f"{path}:actions range over {found}, outside {allowed}; pass --clip-actions to clip them")
    np.clip(actions, low, high, out=actions)
    notes.append(f"clipped actions from {found} to {allowed}")
