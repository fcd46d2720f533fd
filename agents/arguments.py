"""What a caller hands to a policy, held against the policy and the state: nothing is broadcast, and messages name it.

Shape suffixes: B environments, O observation, A action.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .policy_state import Memory, PolicyState
from .scan.rows import batch_size

_MOST = 2**53  # steps and environments: more are a mistake
NO_ESTIMATE = "this policy holds no estimate of the best return in reach: ask for a return, as a number"


class Inputs(NamedTuple):
    """What an action follows from.

    Attributes:
        observation: (B, O), float32, raw.
        reward: (B,), float64.
        previous_action: (B, A), float32; None at the first step.
    """

    observation: Tensor
    reward: Tensor
    previous_action: Tensor | None


def check_inputs(
    observation: Any,  # noqa: ANN401  whatever the caller has
    reward: Any,  # noqa: ANN401
    previous_action: Any,  # noqa: ANN401
    *,
    batch: int,
    sizes: tuple[int, int],
    device: torch.device,
) -> Inputs:
    """The arguments of `Policy.act` as tensors.

    Args:
        observation: (B, O), anything that `torch.as_tensor` takes.
        reward: (B,), likewise.
        previous_action: (B, A), likewise, or None; of the state, where the caller may have replaced it.
        batch: B of the state.
        sizes: O and A of the policy.
        device: of the policy.

    Raises:
        ValueError: one is not of that shape, or not of numbers.
    """
    observed = _tensor("observation", observation, torch.float32, (batch, sizes[0]), device)
    rewards = _tensor("reward", reward, torch.float64, (batch,), device)
    if previous_action is None:
        return Inputs(observed, rewards, None)
    shape = (batch, sizes[1])
    return Inputs(observed, rewards, _tensor("previous_action", previous_action, torch.float32, shape, device))


def check_targets(
    target_return: Any,  # noqa: ANN401
    batch: int,
    return_scale: float,
    device: torch.device,
    *,
    infinite: bool,
) -> Tensor:
    """Asked returns, one number or (B,), as float64 (B,).

    Raises:
        ValueError: they are neither, one is not finite, or too large for the policy's `return_scale`; infinity may be
            asked for where `infinite` says so.
    """
    if target_return is None:
        raise ValueError("target_return: this policy names none of its own; ask for one, as a number")
    wanted = _tensor("target_return", target_return, torch.float64, None, device)
    if wanted.shape not in ((), (batch,)):
        raise ValueError(f"target_return: must be a number or have shape ({batch},), not {tuple(wanted.shape)}")
    asking = wanted.isposinf()
    if not infinite and bool(asking.any()):
        raise ValueError(NO_ESTIMATE)
    if not bool((asking | (wanted / return_scale).float().isfinite()).all()):
        raise ValueError(f"target_return: must be finite, in float32 and divided by {return_scale:g}, too")
    return wanted.expand(batch)


def check_batch(batch_size: Any) -> int:  # noqa: ANN401
    """A number of environments; raises ValueError where it is none."""
    if not isinstance(batch_size, int) and not hasattr(batch_size, "__index__"):
        raise ValueError(f"batch_size: must be an integer, not {type(batch_size).__name__}")
    if not 1 <= int(batch_size) <= 2**31:
        raise ValueError(f"batch_size: must be from 1 to 2^31, not {batch_size}")
    return int(batch_size)


def check_state(state: Any, kind: type[Memory], rollout: str, device: torch.device) -> PolicyState:  # noqa: ANN401
    """A state that a caller hands back, its return-to-go as a tensor: its parts, and what it says of itself.

    Args:
        state: what should be of `initial_state`, `act`, `restart` or `select`, parts of it perhaps replaced.
        kind: of the memory in the policy's rollout mode.
        rollout: that mode.
        device: of the policy.

    Raises:
        ValueError: it is something else, of another rollout mode, or its parts are not of one number of environments.
    """
    if not isinstance(state, PolicyState):
        raise ValueError(f"state: must be what initial_state or act gave, not {type(state).__name__}")
    to_go = state.return_to_go
    if not (isinstance(to_go, Tensor) and to_go.dtype == torch.float64):
        to_go = _tensor("state: return_to_go", to_go, torch.float64, None, device)
    memory, timestep = state.memory, state.timestep
    if not isinstance(memory, kind):
        other = type(memory).__name__.lower()
        raise ValueError(f"state: is of the rollout mode {other}, and this policy's is {rollout}")
    batch = batch_size(memory)
    if to_go.shape != (batch,):
        raise ValueError(f"state: return_to_go must have shape ({batch},), not {tuple(to_go.shape)}")
    if isinstance(timestep, Tensor):
        if timestep.shape != (batch,) or timestep.dtype != torch.long:
            shown = f"{timestep.dtype} of shape {tuple(timestep.shape)}"
            raise ValueError(f"state: timestep must be integers of shape ({batch},), not {shown}")
    elif not isinstance(timestep, int) or not 0 <= timestep < _MOST:
        raise ValueError(f"state: timestep must be an integer from 0, not {timestep!r:.40}")
    if state.previous_action is None and not (isinstance(timestep, int) and timestep == 0):
        raise ValueError("previous_action: is None, and an action has been handed out before")
    return state if to_go is state.return_to_go else state._replace(return_to_go=to_go)


def check_index(index: Any, batch: int, device: torch.device) -> Tensor:  # noqa: ANN401
    """Indices of environments as integers (R,).

    Raises:
        ValueError: they are not that, or one is none of 0 to B - 1.
    """
    found = _tensor("rows", index, None, None, device)
    integers = not (found.is_floating_point() or found.is_complex() or found.dtype == torch.bool) or not found.numel()
    if found.dim() != 1 or not integers or bool(((found < 0) | (found >= batch)).any()):
        raise ValueError(f"rows: must be indices of {batch} environments, in one dimension")
    return found.long()


def blame(inputs: Inputs, return_to_go: Tensor, timestep: int | Tensor, action: Tensor) -> str:
    """Why an action (B, A) is not finite: the argument that is not, with its row, or else the policy."""
    times = torch.as_tensor(timestep).expand(len(action))
    named = {"observation": inputs.observation, "reward": inputs.reward, "previous_action": inputs.previous_action}
    for name, tensor in {**named, "state: return_to_go": return_to_go}.items():
        if tensor is None:
            continue
        wrong = ~tensor.isfinite()
        if tensor is return_to_go:  # infinite where the best return in reach is asked for
            wrong &= ~tensor.isposinf()
        if not bool(wrong.any()):
            continue
        row, *column = wrong.nonzero()[0].tolist()
        place = f"row {row}" + (f", column {column[0]}" if column else "")
        return f"{name}: {place} is {tensor[(row, *column)].item()} at step {times[row]}; no action follows from it"
    row = (~action.isfinite()).nonzero()[0][0]
    return f"the policy's action at step {times[row]} is not finite"


def _tensor(
    name: str,
    value: Any,  # noqa: ANN401
    dtype: torch.dtype | None,
    shape: tuple[int, ...] | None,
    device: torch.device,
) -> Tensor:
    if isinstance(value, Tensor) and value.dtype == dtype and value.device == device:
        tensor = value  # of the policy itself: at every step a previous action
    else:
        try:
            kind = getattr(value, "dtype", None)
            if kind.is_complex if isinstance(kind, torch.dtype) else getattr(kind, "kind", "") == "c":
                raise TypeError("complex")  # torch would drop the imaginary part
            tensor = torch.as_tensor(value, dtype=dtype, device=device)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise ValueError(f"{name}: must be numbers, not {type(value).__name__}") from error
    if shape is not None and tensor.shape != shape:
        raise ValueError(f"{name}: must have shape {shape} for this policy and state, not {tuple(tensor.shape)}")
    return tensor
