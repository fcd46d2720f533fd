"""What a caller hands to a policy, held to numbers and shapes: nothing is broadcast, and messages name it. Needs numpy.

Shape suffixes: B environments, O observation, A action.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


def check_array(name: str, value: Any, dtype: Any, shape: tuple[int, ...] | None = None) -> npt.NDArray[Any]:  # noqa: ANN401
    """An array of anything that numpy makes one of, or of a tensor on any device.

    Raises:
        ValueError: it is not of that shape, or not of numbers.
    """
    array: npt.NDArray[Any] = value
    if type(value) is not np.ndarray or value.dtype != dtype:
        try:
            array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
            if array.dtype.kind not in "biuf":  # text would be read, and an imaginary part dropped
                raise TypeError(str(array.dtype))
            with np.errstate(over="ignore"):  # told as what is not finite
                array = array if dtype is None else array.astype(dtype, copy=False)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise ValueError(f"{name}: must be numbers, not {type(value).__name__}") from error
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name}: must have shape {shape} for this policy and state, not {array.shape}")
    return array


def check_targets(
    value: object, batch: int, return_scale: float = 1.0, *, infinite: bool = True
) -> npt.NDArray[np.float64]:
    """Asked returns, one number or (B,), as float64 (B,).

    Raises:
        ValueError: they are neither, one is not finite, or too large for the policy's `return_scale`; infinity may be
            asked for where `infinite` says so.
    """
    if value is None:
        raise ValueError("target_return: this policy names none of its own; ask for one, as a number")
    wanted = check_array("target_return", value, np.float64)
    if wanted.shape not in ((), (batch,)):
        raise ValueError(f"target_return: must be a number or have shape ({batch},), not {wanted.shape}")
    asking = np.isposinf(wanted)
    if not infinite and asking.any():
        raise ValueError("this policy holds no estimate of the best return in reach: ask for a return, as a number")
    if not (asking | (np.abs(wanted / return_scale) <= np.finfo(np.float32).max)).all():  # NaN is not
        raise ValueError(f"target_return: must be finite, in float32 and divided by {return_scale:g}, too")
    return np.broadcast_to(wanted, (batch,)).copy()


def check_batch(count: Any) -> int:  # noqa: ANN401
    """A number of environments; raises ValueError where it is none."""
    if not hasattr(count, "__index__") or not 1 <= int(count) <= 2**31:
        raise ValueError(f"batch_size: must be an integer from 1 to 2^31, not {count!r:.40}")
    return int(count)


def check_index(index: Any, batch: int) -> npt.NDArray[np.int64]:  # noqa: ANN401
    """Indices of environments as integers (R,); raises ValueError if they are not that, or one is not below B."""
    found = check_array("rows", index, None)
    integers = found.dtype.kind in "iu" or not found.size
    if found.ndim != 1 or not integers or ((found < 0) | (found >= batch)).any():
        raise ValueError(f"rows: must be indices of {batch} environments, in one dimension")
    return found.astype(np.int64)


def blame(given: dict[str, npt.NDArray[Any]], timestep: Any, action: Any) -> str:  # noqa: ANN401
    """Why there is no finite action (B, A): the argument that is not finite, with its row, or else the policy."""
    for name, array in given.items():
        wrong = ~np.isfinite(array)
        if name == "return_to_go":  # infinite where the best return in reach is asked for
            wrong &= ~np.isposinf(array)
        if wrong.any():
            row, *column = np.argwhere(wrong)[0].tolist()
            place = f"row {row}" + (f", column {column[0]}" if column else "")
            time = np.broadcast_to(timestep, len(array))[row]
            return f"{name}: {place} is {array[(row, *column)]} at step {time}; no action follows from it"
    row = np.argwhere(~np.isfinite(action))[0][0]
    return f"the policy's action at step {np.broadcast_to(timestep, len(action))[row]} is not finite"
