"""What a caller hands over as arrays, held to numbers and shapes: nothing is broadcast. Needs numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import ArgumentError


def numbers(name: str, value: npt.ArrayLike, dtype: Any) -> npt.NDArray[Any]:  # noqa: ANN401  a type of numpy's
    """An array of this type, of anything that numpy makes an array of numbers of; raises ArgumentError."""
    if type(value) is np.ndarray and value.dtype == dtype:  # as it mostly is: the rest takes microseconds
        return value
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":  # text would be read, and an imaginary part dropped
            raise TypeError(str(array.dtype))
        with np.errstate(over="ignore"):  # told as what is not finite
            return array.astype(dtype, copy=False)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ArgumentError(f"{name}: must be numbers, not {type(value).__name__}") from error


def check_shape(name: str, array: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
    """Raises ArgumentError where an array is of another shape."""
    if array.shape != shape:
        raise ArgumentError(f"{name}: must have shape {shape} for this policy and state, not {array.shape}")
