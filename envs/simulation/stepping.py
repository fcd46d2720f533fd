"""Resets and steps of the user's environments, checked; an error names the environment and the step.

Shape suffixes: O observation, A action.
"""

import math
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from ...base.errors import SimulationError, one_line
from ..tasks.environment import RAISED, told

Observation: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.float64]  # (O,)

_OLD = (
    "; since Gym 0.26 reset returns (observation, info), and step (observation, reward, terminated, truncated, info): "
    "if this one is older, wrap it in shimmy's GymV21CompatibilityV0"
)
_LARGEST = float(np.finfo(np.float32).max)


def begin(env: gym.Env[Any, Any], where: str = "", **options: Any) -> tuple[Observation, dict[str, Any]]:  # noqa: ANN401
    """Resets an environment and returns the first observation (O,), and `info`.

    `where` names the environment and its step for messages ("reset with seed 1003, step 3"); `options` are passed to
    `gymnasium.Env.reset`.

    SimulationError: it raised, or the observation is not a finite vector of its observation space's shape.
    """
    try:
        observation, info = env.reset(**options)
    except RAISED as error:
        raise _fault(env, where, f"raised {told(error)}", _OLD if "to unpack" in str(error) else "") from error
    return _observation(env, where, observation), info


def take(
    env: gym.Env[Any, Any], action: npt.NDArray[Any] | int, where: str = ""
) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
    """Takes a step with an action, (A,) or an integer.

    Returns the observation (O,), the reward, whether the episode terminated, whether it was truncated, and `info`. The
    other arguments are those of `begin`.

    SimulationError: as in `begin`, or the reward is not a finite number, or a flag is neither true nor false.
    """
    try:
        observation, reward, terminated, truncated, info = env.step(action)
    except RAISED as error:
        raise _fault(env, where, f"raised {told(error)}", _OLD if "to unpack" in str(error) else "") from error
    ended, cut, number = _number(terminated), _number(truncated), _number(reward)
    if ended is None or cut is None:
        name, value = ("terminated", terminated) if ended is None else ("truncated", truncated)
        raise _fault(env, where, f"returned {type(value).__name__} as {name}, which is neither true nor false")
    if number is None:
        raise _fault(env, where, f"returned the reward {one_line(repr(reward), 60)}, which is not a number")
    if not abs(number) <= _LARGEST:
        in_float32 = " in float32" if math.isfinite(number) else ""
        raise _fault(env, where, f"returned a reward that is not finite{in_float32}: {number}")
    return _observation(env, where, observation), number, bool(ended), bool(cut), info


def _number(value: Any) -> float | None:  # noqa: ANN401  whatever it returned
    """A number, a truth value or a 0-d array of one as a float; None for anything else."""
    if type(value) in (bool, float):
        return float(value)
    try:
        array = np.asarray(value)
        return float(array) if array.ndim == 0 and array.dtype.kind in "biuf" else None
    except Exception:  # an object that is not a number may raise any error here
        return None


def _observation(env: gym.Env[Any, Any], where: str, observation: Any) -> Observation:  # noqa: ANN401  whatever it returned
    try:
        with np.errstate(over="ignore"):  # reported below
            array = np.asarray(observation)
            if array.dtype.kind not in "biufO":  # numpy would parse text and drop an imaginary part
                raise TypeError(str(array.dtype))
            # Wider numbers are kept: a policy may subtract their mean first.
            array = array.astype(np.float32 if np.can_cast(array.dtype, np.float32) else np.float64, copy=False)
            finite = np.isfinite(array.astype(np.float32, copy=False))
    except Exception as error:  # likewise
        kind = type(observation).__name__
        raise _fault(env, where, f"returned an observation that is a {kind}, not a vector of numbers") from error
    if array.shape != (wanted := env.observation_space.shape):
        shapes = f"{array.shape}, but its observation space has {wanted}"
        raise _fault(env, where, f"returned an observation of shape {shapes}")
    if not finite.all():
        column = int(np.argmin(finite))
        value = np.asarray(observation).ravel()[column]
        raise _fault(env, where, f"returned an observation that is not finite: column {column} is {value}")
    return array


def _fault(env: gym.Env[Any, Any], where: str, what: str, way_out: str = "; fix the environment") -> SimulationError:
    name = env.spec.id if env.spec else type(env.unwrapped).__name__
    return SimulationError(f"the environment {name} {what}{where and f' ({where})'}{way_out}")
