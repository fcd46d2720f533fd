"""Checks of the arguments of a policy: types and shapes, without broadcasting. No torch.

An invalid argument raises ArgumentError, a ValueError, whose message names it.

Shape suffixes: B environments, A action.
"""

import math
import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.errors import ArgumentError
from ...base.ranges import AUTO, COUNT_FROM_0, TEMPERATURE, Range

# Dtype kinds that convert to a type, and the name of the type in messages.
KINDS = {"f": ("biuf", "numbers"), "i": ("biu", "integers"), "b": ("b", "bool")}


def array(name: str, value: Any, dtype: Any, shape: tuple[int, ...] | None = None) -> npt.NDArray[Any]:  # noqa: ANN401
    """An array of this type and shape, from anything that numpy converts, or from a tensor on any device."""
    found: npt.NDArray[Any] = value
    if type(value) is not np.ndarray or value.dtype != dtype:  # fast path: the conversion below takes microseconds
        wanted = np.dtype(dtype)
        try:
            found = _as_array(value)
            # Conversion would parse text, drop imaginary parts and fractions, and take numbers as booleans.
            if found.size and found.dtype.kind not in KINDS[wanted.kind][0]:
                raise TypeError(str(found.dtype))
            with np.errstate(over="ignore"):  # reported as not finite elsewhere
                found = found.astype(wanted, copy=False)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise ArgumentError(f"{name}: must be {KINDS[wanted.kind][1]}, not {type(value).__name__}") from error
    if shape is not None and found.shape != shape:
        raise ArgumentError(f"{name}: must have shape {shape} for this policy and state, not {found.shape}")
    return found


def integer(name: str, value: Any, limits: Range) -> int:  # noqa: ANN401
    """An integer of this range."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name}: must be an integer, not {type(value).__name__}") from None
    if problem := limits.problem(number):
        raise ArgumentError(f"{name}: {problem}")
    return number


def choices(name: str, value: Any, batch: int, start: int, count: int) -> npt.NDArray[np.int64]:  # noqa: ANN401
    """Discrete actions (B,), from `start` to `start + count - 1`."""
    found = array(name, value, np.int64, (batch,))
    if (outside := found[(found < start) | (found >= start + count)]).size:
        raise ArgumentError(f"{name}: must be actions from {start} to {start + count - 1}, not {outside[0]}")
    return found


def temperature(value: Any, *, discrete: bool) -> None:  # noqa: ANN401
    """None, or a temperature for sampling discrete actions."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentError(f"temperature: must be a number, not {type(value).__name__}")
    if problem := TEMPERATURE.problem(value):
        raise ArgumentError(f"temperature: {problem}")
    if not discrete:
        raise ArgumentError("temperature: needs discrete actions, but this policy has continuous ones; leave it out")


def seeds(name: str, value: Any, batch: int) -> npt.NDArray[np.int64]:  # noqa: ANN401
    """Seeds of a sampling policy: (B,), or one number s for s, s + 1, ..."""
    found = array(name, value, np.int64)
    found = found + np.arange(batch) if found.shape == () else found.copy()  # the caller's may change
    return _from_0(name, found, batch)


def _from_0(name: str, value: Any, batch: int) -> npt.NDArray[np.int64]:  # noqa: ANN401
    found = array(name, value, np.int64, (batch,))
    if (found < 0).any():
        raise ArgumentError(f"{name}: must be at least 0, not {found.min()}")
    return found


def rows(name: str, index: Any, batch: int) -> npt.NDArray[np.int64]:  # noqa: ANN401
    """Indices of environments, (R,)."""
    found = array(name, index, np.int64)
    if _as_array(index).dtype == bool:  # True and False would be 1 and 0
        raise ArgumentError(f"{name}: must be indices of environments, not a mask; np.flatnonzero makes them of one")
    if found.ndim != 1 or ((found < 0) | (found >= batch)).any():
        raise ArgumentError(f"{name}: must be indices of {batch} environments, in one dimension")
    return found


def timestep(value: Any, batch: int) -> int | npt.NDArray[np.int64]:  # noqa: ANN401
    """Steps taken so far: one number, or (B,)."""
    if isinstance(value, np.ndarray) and value.ndim:
        return _from_0("state: timestep", value, batch)
    return integer("state: timestep", value, COUNT_FROM_0)


def targets(value: Any, batch: int, scale: float = 1.0, *, infinite: bool = True) -> npt.NDArray[np.float64]:  # noqa: ANN401
    """Target returns, one or (B,), as (B,): finite, also divided by the policy's return scale, as float32.

    "auto", in an array infinity, is the maximum achievable return, where the policy is able to: `infinite`.
    """
    if value is None:
        raise ArgumentError('target_return: this policy names none of its own; give a number or "auto"')
    automatic = isinstance(value, str)
    if automatic and value != AUTO:
        raise ArgumentError(f'target_return: must be a number or "{AUTO}", not {value[:40]!r}')
    wanted = array("target_return", math.inf if automatic else value, np.float64)
    if wanted.shape not in ((), (batch,)):
        raise ArgumentError(f"target_return: must be a number or have shape ({batch},), not {wanted.shape}")
    asking = np.isposinf(wanted)
    if asking.ndim == 0 and asking and not automatic:
        raise ArgumentError(f'target_return: must be finite; the maximum achievable return is "{AUTO}"')
    if not infinite and asking.any():
        raise ArgumentError(
            "this policy holds no estimate of the maximum achievable return: give a target return, as a number"
        )
    if not (asking | (np.abs(wanted / scale) <= np.finfo(np.float32).max)).all():  # NaN is not
        raise ArgumentError(f"target_return: must be finite, in float32 and divided by {scale:g}, too")
    return np.broadcast_to(wanted, (batch,)).copy()


def _as_array(value: Any) -> npt.NDArray[Any]:  # noqa: ANN401
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def blame(given: dict[str, Any], timestep: Any, action: Any = None) -> str:  # noqa: ANN401
    """Why there is no finite action: the first number of `given` that is not finite, with its row, or else the policy.

    `given` are arrays (B, ...) or None by the names of arguments; `action` (B, A) is what followed from them, if
    anything did.
    """
    rows = len(next(array for array in given.values() if array is not None))
    times = np.broadcast_to(timestep, rows)
    for name, array in given.items():
        if array is not None and not np.isfinite(array).all():
            row, *column = np.argwhere(~np.isfinite(array))[0].tolist()
            place = f"row {row}" + (f", column {column[0]}" if column else "")
            return f"{name}: {place} is {array[(row, *column)]} at step {times[row]}; no action follows from it"
    if action is None:
        return f"reward: the return-to-go that it leaves is not finite at step {times.min()}; no action follows from it"
    return f"the policy's action at step {times[np.argwhere(~np.isfinite(action))[0][0]]} is not finite"
