"""What a caller hands over, held to numbers and shapes: nothing is broadcast. Needs numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import ArgumentError
from .ranges import Range


def array(name: str, value: Any, dtype: Any, shape: tuple[int, ...] | None = None) -> npt.NDArray[Any]:  # noqa: ANN401
    """An array of this type and shape, of anything that numpy makes an array of numbers of; raises ArgumentError."""
    found = value
    if type(value) is not np.ndarray or value.dtype != dtype:  # it rarely is: the rest takes microseconds
        try:
            found = np.asarray(value)
            if found.dtype.kind not in "biuf":  # text would be read, and an imaginary part dropped
                raise TypeError(str(found.dtype))
            with np.errstate(over="ignore"):  # told as what is not finite
                found = found.astype(dtype, copy=False)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise ArgumentError(f"{name}: must be numbers, not {type(value).__name__}") from error
    if shape is not None and found.shape != shape:
        raise ArgumentError(f"{name}: must have shape {shape} for this policy and state, not {found.shape}")
    return np.asarray(found)


def integer(name: str, value: object, limits: Range) -> int:
    """An integer of this range; raises ArgumentError."""
    if not isinstance(value, int | np.integer):
        raise ArgumentError(f"{name}: must be an integer, not {type(value).__name__}")
    if problem := limits.problem(int(value)):
        raise ArgumentError(f"{name}: {problem}")
    return int(value)


def targets(value: Any, count: int) -> npt.NDArray[np.float64]:  # noqa: ANN401
    """Asked returns, (count,), of one number for all environments or one for each; raises ArgumentError."""
    wanted = array("target_return", value, np.float64)
    if wanted.shape not in ((), (count,)):
        raise ArgumentError(f"target_return: must be a number or have shape ({count},), not {wanted.shape}")
    if np.isnan(wanted).any() or np.isneginf(wanted).any():
        raise ArgumentError("target_return: must be finite, or infinity for the best in reach")
    return np.broadcast_to(wanted, (count,)).copy()
