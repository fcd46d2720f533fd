"""What a caller hands to a policy, held against the policy and the state: nothing is broadcast, and messages name it.

Shape suffixes: B environments, O observation, A action.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .policy_state import Memory, PolicyState
from .scan.rows import batch_size

if TYPE_CHECKING:
    import numpy.typing as npt

_MOST = 2**53  # steps and environments: more are a mistake
NO_ESTIMATE = "this policy holds no estimate of the best return in reach: ask for a return, as a number"


class Inputs(NamedTuple):
    """What an action follows from.

    Attributes:
        observation: (B, O), float32, raw.
        reward: (B,), float64.
        previous_action: (B, A), float32; None at the first step.
    """

    observation: npt.NDArray[np.float32]
    reward: npt.NDArray[np.float64]
    previous_action: npt.NDArray[np.float32] | None


def check_inputs(
    observation: Any,  # noqa: ANN401  whatever the caller has
    reward: Any,  # noqa: ANN401
    previous_action: Any,  # noqa: ANN401
    *,
    batch: int,
    sizes: tuple[int, int],
) -> Inputs:
    """The arguments of `Policy.act` as arrays.

    Args:
        observation: (B, O), anything that numpy makes an array of, or a tensor on any device.
        reward: (B,), likewise.
        previous_action: (B, A), likewise, or None; of the state, where the caller may have replaced it.
        batch: B of the state.
        sizes: O and A of the policy.

    Raises:
        ValueError: one is not of that shape, or not of numbers.
    """
    observed = _array("observation", observation, np.float32, (batch, sizes[0]))
    rewards = _array("reward", reward, np.float64, (batch,))
    if previous_action is None:
        return Inputs(observed, rewards, None)
    return Inputs(observed, rewards, _array("previous_action", previous_action, np.float32, (batch, sizes[1])))


def check_targets(
    target_return: Any,  # noqa: ANN401
    batch: int,
    return_scale: float,
    *,
    infinite: bool,
) -> npt.NDArray[np.float64]:
    """Asked returns, one number or (B,), as float64 (B,).

    Raises:
        ValueError: they are neither, one is not finite, or too large for the policy's `return_scale`; infinity may be
            asked for where `infinite` says so.
    """
    if target_return is None:
        raise ValueError("target_return: this policy names none of its own; ask for one, as a number")
    wanted = _array("target_return", target_return, np.float64, None)
    if wanted.shape not in ((), (batch,)):
        raise ValueError(f"target_return: must be a number or have shape ({batch},), not {wanted.shape}")
    asking = np.isposinf(wanted)
    if not infinite and asking.any():
        raise ValueError(NO_ESTIMATE)
    small = np.abs(wanted / return_scale) <= np.finfo(np.float32).max  # False for NaN, too
    if not (asking | small).all():
        raise ValueError(f"target_return: must be finite, in float32 and divided by {return_scale:g}, too")
    return np.broadcast_to(wanted, (batch,)).copy()


def check_batch(batch_size: Any) -> int:  # noqa: ANN401
    """A number of environments; raises ValueError where it is none."""
    if not isinstance(batch_size, int) and not hasattr(batch_size, "__index__"):
        raise ValueError(f"batch_size: must be an integer, not {type(batch_size).__name__}")
    if not 1 <= int(batch_size) <= 2**31:
        raise ValueError(f"batch_size: must be from 1 to 2^31, not {batch_size}")
    return int(batch_size)


def check_state(state: Any, kind: type[Memory], rollout: str) -> PolicyState:  # noqa: ANN401
    """A state that a caller hands back, its parts as arrays; what it remembers, and what it says of itself.

    Args:
        state: what should be of `initial_state`, `act`, `restart` or `select`, parts of it perhaps replaced.
        kind: of the memory in the policy's rollout mode.
        rollout: that mode.

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
    to_go = _array("state: return_to_go", to_go, np.float64, (batch,))
    if isinstance(timestep, np.ndarray):
        if timestep.shape != (batch,) or timestep.dtype != np.int64:
            shown = f"{timestep.dtype} of shape {timestep.shape}"
            raise ValueError(f"state: timestep must be integers of shape ({batch},), not {shown}")
    elif not isinstance(timestep, int) or not 0 <= timestep < _MOST:
        raise ValueError(f"state: timestep must be an integer from 0, not {timestep!r:.40}")
    if previous is None and not (isinstance(timestep, int) and timestep == 0):
        raise ValueError("previous_action: is None, and an action has been handed out before")
    return state if to_go is state.return_to_go else state._replace(return_to_go=to_go)


def check_index(index: Any, batch: int) -> npt.NDArray[np.int64]:  # noqa: ANN401
    """Indices of environments as integers (R,).

    Raises:
        ValueError: they are not that, or one is none of 0 to B - 1.
    """
    found = _array("rows", index, None, None)
    integers = found.dtype.kind in "iu" or not found.size
    if found.ndim != 1 or not integers or ((found < 0) | (found >= batch)).any():
        raise ValueError(f"rows: must be indices of {batch} environments, in one dimension")
    return found.astype(np.int64)


def blame(inputs: Inputs, state: PolicyState, action: npt.NDArray[np.float32] | None = None) -> str:
    """Why there is no finite action (B, A): the argument that is not finite, with its row, or else the policy."""
    times = np.broadcast_to(state.timestep, len(inputs.reward))
    named: dict[str, npt.NDArray[Any]] = {"observation": inputs.observation, "reward": inputs.reward}
    if inputs.previous_action is not None:
        named["previous_action"] = inputs.previous_action
    for name, array in {**named, "state: return_to_go": state.return_to_go}.items():
        wrong = ~np.isfinite(array)
        if array is state.return_to_go:  # infinite where the best return in reach is asked for
            wrong &= ~np.isposinf(array)
        if not wrong.any():
            continue
        row, *column = np.argwhere(wrong)[0].tolist()
        place = f"row {row}" + (f", column {column[0]}" if column else "")
        return f"{name}: {place} is {array[(row, *column)]} at step {times[row]}; no action follows from it"
    assert action is not None
    return f"the policy's action at step {times[np.argwhere(~np.isfinite(action))[0][0]]} is not finite"


def _array(name: str, value: Any, dtype: Any, shape: tuple[int, ...] | None) -> npt.NDArray[Any]:  # noqa: ANN401
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
