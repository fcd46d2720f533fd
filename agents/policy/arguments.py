"""Checks of the arguments of a policy: types and shapes, without broadcasting. Messages name the argument. No torch.

Shape suffixes: B environments, A action.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base.ranges import AUTO, COUNT, COUNT_FROM_0, TEMPERATURE, Range

if TYPE_CHECKING:
    import numpy.typing as npt


# Dtype kinds that convert to a type, and the name of the type in messages.
KINDS = {"f": ("biuf", "numbers"), "i": ("biu", "integers"), "b": ("b", "bool")}


class Arguments:
    """Argument checks, one method per kind. Invalid arguments raise `error` with a message that names them."""

    def __init__(self, error: type[ValueError] = ValueError) -> None:
        self._error = error

    def array(self, name: str, value: Any, dtype: Any, shape: tuple[int, ...] | None = None) -> npt.NDArray[Any]:  # noqa: ANN401
        """An array of this type and shape, from anything that numpy converts, or from a tensor on any device."""
        array: npt.NDArray[Any] = value
        if type(value) is not np.ndarray or value.dtype != dtype:  # fast path: the conversion below takes microseconds
            wanted = np.dtype(dtype)
            try:
                array = _as_array(value)
                # Conversion would parse text, drop imaginary parts and fractions, and take numbers as booleans.
                if array.size and array.dtype.kind not in KINDS[wanted.kind][0]:
                    raise TypeError(str(array.dtype))
                with np.errstate(over="ignore"):  # reported as not finite elsewhere
                    array = array.astype(wanted, copy=False)
            except (TypeError, ValueError, OverflowError, RuntimeError) as error:
                raise self._error(f"{name}: must be {KINDS[wanted.kind][1]}, not {type(value).__name__}") from error
        if shape is not None and array.shape != shape:
            raise self._error(f"{name}: must have shape {shape} for this policy and state, not {array.shape}")
        return array

    def integer(self, name: str, value: Any, limits: Range) -> int:  # noqa: ANN401
        """An integer of this range."""
        try:
            number = operator.index(value)
        except TypeError:
            raise self._error(f"{name}: must be an integer, not {type(value).__name__}") from None
        if problem := limits.problem(number):
            raise self._error(f"{name}: {problem}")
        return number

    def choices(self, name: str, value: Any, batch: int, start: int, count: int) -> npt.NDArray[np.int64]:  # noqa: ANN401
        """Discrete actions (B,), from `start` to `start + count - 1`."""
        found = self.array(name, value, np.int64, (batch,))
        if (outside := found[(found < start) | (found >= start + count)]).size:
            raise self._error(f"{name}: must be actions from {start} to {start + count - 1}, not {outside[0]}")
        return found

    def temperature(self, value: Any, *, discrete: bool) -> None:  # noqa: ANN401
        """None, or a temperature for sampling discrete actions."""
        if value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._error(f"temperature: must be a number, not {type(value).__name__}")
        if problem := TEMPERATURE.problem(value):
            raise self._error(f"temperature: {problem}")
        if not discrete:
            raise self._error("temperature: needs discrete actions, but this policy has continuous ones; leave it out")

    def seeds(self, name: str, value: Any, batch: int) -> npt.NDArray[np.int64]:  # noqa: ANN401
        """Seeds of a sampling policy: (B,), or one number s for s, s + 1, ..."""
        found = self.array(name, value, np.int64)
        found = found + np.arange(batch) if found.shape == () else found.copy()  # the caller's may change
        return self._from_0(name, found, batch)

    def _from_0(self, name: str, value: Any, batch: int) -> npt.NDArray[np.int64]:  # noqa: ANN401
        found = self.array(name, value, np.int64, (batch,))
        if (found < 0).any():
            raise self._error(f"{name}: must be at least 0, not {found.min()}")
        return found

    def rows(self, name: str, index: Any, batch: int) -> npt.NDArray[np.int64]:  # noqa: ANN401
        """Indices of environments, (R,)."""
        found = self.array(name, index, np.int64)
        if _as_array(index).dtype == bool:  # True and False would be 1 and 0
            raise self._error(f"{name}: must be indices of environments, not a mask; np.flatnonzero makes them of one")
        if found.ndim != 1 or ((found < 0) | (found >= batch)).any():
            raise self._error(f"{name}: must be indices of {batch} environments, in one dimension")
        return found

    def timestep(self, value: Any, batch: int) -> int | npt.NDArray[np.int64]:  # noqa: ANN401
        """Steps taken so far: one number, or (B,)."""
        if isinstance(value, np.ndarray) and value.ndim:
            return self._from_0("state: timestep", value, batch)
        return self.integer("state: timestep", value, COUNT_FROM_0)

    def targets(self, value: Any, batch: int, scale: float = 1.0, *, infinite: bool = True) -> npt.NDArray[np.float64]:  # noqa: ANN401
        """Target returns, one or (B,), as (B,): finite, also divided by the policy's return scale, as float32.

        "auto", in an array infinity, is the maximum achievable return, where the policy is able to: `infinite`.
        """
        if value is None:
            raise self._error('target_return: this policy names none of its own; give a number or "auto"')
        automatic = isinstance(value, str)
        if automatic and value != AUTO:
            raise self._error(f'target_return: must be a number or "{AUTO}", not {value[:40]!r}')
        wanted = self.array("target_return", math.inf if automatic else value, np.float64)
        if wanted.shape not in ((), (batch,)):
            raise self._error(f"target_return: must be a number or have shape ({batch},), not {wanted.shape}")
        asking = np.isposinf(wanted)
        if asking.ndim == 0 and asking and not automatic:
            raise self._error(f'target_return: must be finite; the maximum achievable return is "{AUTO}"')
        if not infinite and asking.any():
            raise self._error(
                "this policy holds no estimate of the maximum achievable return: give a target return, as a number"
            )
        if not (asking | (np.abs(wanted / scale) <= np.finfo(np.float32).max)).all():  # NaN is not
            raise self._error(f"target_return: must be finite, in float32 and divided by {scale:g}, too")
        return np.broadcast_to(wanted, (batch,)).copy()

    def improves(
        self,
        candidates: Any,  # noqa: ANN401
        count: int,
        targets: npt.NDArray[np.float64],
        *,
        named: bool,
    ) -> npt.NDArray[np.bool_] | None:
        """Where a policy takes the best of its `count` candidates, bool (B,); None of one without a critic, `count` 1.

        `candidates` is 1, nowhere, or `count`, everywhere. None: where the best is asked for, by an infinite target
        among `targets` (B,), or by none, if they are not `named` by the caller.
        """
        if candidates is not None:
            candidates = self.integer("candidates", candidates, COUNT)
            if candidates not in (1, count):
                known = "must be 1 for a policy without a critic" if count == 1 else f"must be 1 or {count}"
                raise self._error(f"candidates: {known}, not {candidates}")
        if count == 1:
            return None
        if candidates is None and named:
            return np.isposinf(targets)
        return np.full(len(targets), candidates != 1)


def _as_array(value: Any) -> npt.NDArray[Any]:  # noqa: ANN401
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def blame(given: dict[str, Any], return_to_go: Any, timestep: Any, action: Any = None) -> str:  # noqa: ANN401
    """Why there is no finite action (B, A): the argument that is not finite, with its row, or else the policy."""
    times = np.broadcast_to(timestep, len(return_to_go))
    # Infinite where the maximum achievable return is the target.
    given = {**given, "state: return_to_go": np.where(np.isposinf(return_to_go), 0.0, return_to_go)}
    for name, array in given.items():
        if array is not None and not np.isfinite(array).all():
            row, *column = np.argwhere(~np.isfinite(array))[0].tolist()
            place = f"row {row}" + (f", column {column[0]}" if column else "")
            return f"{name}: {place} is {array[(row, *column)]} at step {times[row]}; no action follows from it"
    return f"the policy's action at step {times[np.argwhere(~np.isfinite(action))[0][0]]} is not finite"
