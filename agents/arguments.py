"""What a caller hands to a policy, held against the policy and the state: nothing is broadcast, and messages name it.

Shape suffixes: B environments, O observation, A action.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .policy_state import Memory, PolicyState
from .scan.rows import batch_size

if TYPE_CHECKING:
    import numpy.typing as npt

NO_ESTIMATE = "this policy holds no estimate of the best return in reach: ask for a return, as a number"


def check_array(name: str, value: Any, dtype: Any, shape: tuple[int, ...] | None) -> npt.NDArray[Any]:  # noqa: ANN401
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


def check_targets(value: Any, batch: int, return_scale: float, *, infinite: bool) -> npt.NDArray[np.float64]:  # noqa: ANN401
    """Asked returns, one number or (B,), as float64 (B,).

    Raises:
        ValueError: they are neither, one is not finite, or too large for the policy's `return_scale`; infinity may be
            asked for where `infinite` says so.
    """
    if value is None:
        raise ValueError("target_return: this policy names none of its own; ask for one, as a number")
    wanted = check_array("target_return", value, np.float64, None)
    if wanted.shape not in ((), (batch,)):
        raise ValueError(f"target_return: must be a number or have shape ({batch},), not {wanted.shape}")
    asking = np.isposinf(wanted)
    if not infinite and asking.any():
        raise ValueError(NO_ESTIMATE)
    if not (asking | (np.abs(wanted / return_scale) <= np.finfo(np.float32).max)).all():  # NaN is not
        raise ValueError(f"target_return: must be finite, in float32 and divided by {return_scale:g}, too")
    return np.broadcast_to(wanted, (batch,)).copy()


def check_batch(count: Any) -> int:  # noqa: ANN401
    """A number of environments; raises ValueError where it is none."""
    if not hasattr(count, "__index__") or not 1 <= int(count) <= 2**31:
        raise ValueError(f"batch_size: must be an integer from 1 to 2^31, not {count!r:.40}")
    return int(count)


def check_state(state: Any, kind: type[Memory], rollout: str) -> PolicyState:  # noqa: ANN401
    """A state that a caller hands back, parts of it perhaps replaced, for a policy with this memory and rollout mode.

    Raises:
        ValueError: it is something else, of another rollout mode, or its parts are not of one number of environments.
    """
    if not isinstance(state, PolicyState):
        raise ValueError(f"state: must be what initial_state or act gave, not {type(state).__name__}")
    timestep, to_go, previous, memory = state
    if not isinstance(memory, kind):
        other = type(memory).__name__.lower()
        raise ValueError(f"state: is of the rollout mode {other}, and this policy's is {rollout}")
    batch = batch_size(memory)
    to_go = check_array("state: return_to_go", to_go, np.float64, (batch,))
    rows = isinstance(timestep, np.ndarray) and timestep.shape == (batch,) and timestep.dtype == np.int64
    if not rows and not (isinstance(timestep, int) and 0 <= timestep < 2**53):
        found = " ".join(f"{timestep!r:.40}".split())
        raise ValueError(f"state: timestep must be an integer from 0, or int64 of shape ({batch},), not {found}")
    if previous is None and not (isinstance(timestep, int) and timestep == 0):
        raise ValueError("previous_action: is None, and an action has been handed out before")
    return state if to_go is state.return_to_go else state._replace(return_to_go=to_go)


def check_index(index: Any, batch: int) -> npt.NDArray[np.int64]:  # noqa: ANN401
    """Indices of environments as integers (R,); raises ValueError if they are not that, or one is not below B."""
    found = check_array("rows", index, None, None)
    integers = found.dtype.kind in "iu" or not found.size
    if found.ndim != 1 or not integers or ((found < 0) | (found >= batch)).any():
        raise ValueError(f"rows: must be indices of {batch} environments, in one dimension")
    return found.astype(np.int64)


def blame(given: dict[str, npt.NDArray[Any] | None], state: PolicyState, action: Any = None) -> str:  # noqa: ANN401
    """Why there is no finite action (B, A): the argument that is not finite, with its row, or else the policy."""
    times = np.broadcast_to(state.timestep, len(state.return_to_go))
    for name, array in {**given, "state: return_to_go": state.return_to_go}.items():
        if array is None:
            continue
        wrong = ~np.isfinite(array)
        if array is state.return_to_go:  # infinite where the best return in reach is asked for
            wrong &= ~np.isposinf(array)
        if wrong.any():
            row, *column = np.argwhere(wrong)[0].tolist()
            place = f"row {row}" + (f", column {column[0]}" if column else "")
            return f"{name}: {place} is {array[(row, *column)]} at step {times[row]}; no action follows from it"
    return f"the policy's action at step {times[np.argwhere(~np.isfinite(action))[0][0]]} is not finite"
