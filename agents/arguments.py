"""What a caller hands to a policy, held against the policy and the state: nothing is broadcast, and messages name it.

Shape suffixes: B environments, O observation, A action.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

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
    wanted = _tensor("target_return", target_return, torch.float64, None, device)
    if wanted.shape not in ((), (batch,)):
        raise ValueError(f"target_return: must be a number or have shape ({batch},), not {tuple(wanted.shape)}")
    asking = wanted.isposinf()
    if not infinite and bool(asking.any()):
        raise ValueError(NO_ESTIMATE)
    if not bool((asking | (wanted / return_scale).float().isfinite()).all()):
        raise ValueError(f"target_return: must be finite, in float32 and divided by {return_scale:g}, too")
    return wanted.expand(batch)


def check_memory(memory: object, kind: type[object], rollout: str) -> None:
    """Holds what a state remembers against the policy's rollout mode.

    Raises:
        ValueError: it is that of another mode.
    """
    if not isinstance(memory, kind):
        other = type(memory).__name__.lower() if memory is not None else "window"
        raise ValueError(f"state: is of the rollout mode {other}, and this policy's is {rollout}")


def blame(inputs: Inputs, return_to_go: Tensor, timestep: int) -> str:
    """Why an action is not finite: the argument that is not, with its row, or else the policy."""
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
        return f"{name}: {place} is {tensor[(row, *column)].item()} at step {timestep}; no action follows from it"
    return f"the policy's action at step {timestep} is not finite"


def _tensor(
    name: str,
    value: Any,  # noqa: ANN401
    dtype: torch.dtype,
    shape: tuple[int, ...] | None,
    device: torch.device,
) -> Tensor:
    try:
        tensor = torch.as_tensor(value, dtype=dtype, device=device)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: must be numbers, not {type(value).__name__}") from error
    if shape is not None and tensor.shape != shape:
        raise ValueError(f"{name}: must have shape {shape} for this policy and state, not {tuple(tensor.shape)}")
    return tensor
