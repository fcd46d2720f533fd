"""What an environment answers, checked where it comes in: it is the user's code, and may raise or return anything.

An error names the environment and the step: later a policy would be blamed.

Shape suffixes: O observation, A action.
"""

import math
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from ..errors import SimulationError, one_line
from ..tasks.environment import RAISED, told

Floats = npt.NDArray[np.float32]


class Answer(NamedTuple):
    """The answer to a step: observation (O,), reward, whether the episode terminated or was truncated, and `info`."""

    observation: Floats
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


def begin(env: gym.Env[Any, Any], where: str = "", **options: Any) -> tuple[Floats, dict[str, Any]]:  # noqa: ANN401
    """Resets an environment: the first observation (O,), and `info`.

    `where` says which one it is and how far ("reset with seed 1003, step 3"); `options` are of `gymnasium.Env.reset`.

    Raises:
        SimulationError: it raised, or what it gave is not a finite vector of its observation space's shape.
    """
    try:
        observation, info = env.reset(**options)
    except RAISED as error:
        raise _fault(env, where, f"raised {told(error)}", "") from error
    return _observation(env, where, observation), info


def take(env: gym.Env[Any, Any], action: npt.NDArray[Any], where: str = "") -> Answer:
    """Takes a step with an action (A,); the arguments are those of `begin`.

    Raises:
        SimulationError: as in `begin`, or the reward is no finite number, or an end neither true nor false.
    """
    try:
        observation, reward, terminated, truncated, info = env.step(action)
    except RAISED as error:
        raise _fault(env, where, f"raised {told(error)}", "") from error
    ended, cut = _number(terminated), _number(truncated)
    for name, value, flag in (("terminated", terminated, ended), ("truncated", truncated, cut)):
        if flag is None:
            kind = one_line(type(value).__name__)
            raise _fault(env, where, f"gave for {name} {kind}, which is neither true nor false")
    if (number := _number(reward)) is None:
        raise _fault(env, where, f"gave the reward {one_line(repr(reward), 60)}, which is not a number")
    if not math.isfinite(number) or abs(number) > _LARGEST:
        raise _fault(env, where, f"gave a reward that is not finite{' in float32' * math.isfinite(number)}: {number}")
    return Answer(_observation(env, where, observation), number, bool(ended), bool(cut), info)


_LARGEST = float(np.finfo(np.float32).max)


def _number(value: Any) -> float | None:  # noqa: ANN401  whatever it returned
    """A number or truth value, or an array of one without axes; None where it is none of these."""
    if type(value) in (bool, float):
        return float(value)
    try:
        array = np.asarray(value)
        return float(array) if array.ndim == 0 and array.dtype.kind in "biuf" else None
    except Exception:  # what is no number may raise anything where it is asked for one
        return None


def _observation(env: gym.Env[Any, Any], where: str, observation: Any) -> Floats:  # noqa: ANN401  whatever it returned
    try:
        with np.errstate(over="ignore"):  # told below
            array = np.asarray(observation)
            if array.dtype.kind not in "biufO":  # text would be read, and an imaginary part dropped
                raise TypeError(str(array.dtype))
            array = array.astype(np.float32, copy=False)
    except Exception as error:  # likewise
        kind = type(observation).__name__
        raise _fault(env, where, f"gave an observation that is no vector of numbers but a {kind}") from error
    if array.shape != (wanted := env.observation_space.shape):
        shapes = f"{array.shape}, where its observation space has {wanted}"
        raise _fault(env, where, f"gave an observation of shape {shapes}")
    finite = np.isfinite(array)
    if not finite.all():
        column = int(np.argmin(finite))
        value = np.asarray(observation).ravel()[column]
        raise _fault(env, where, f"gave an observation that is not finite: column {column} is {value}")
    return array


def _fault(env: gym.Env[Any, Any], where: str, what: str, way_out: str = "; repair it") -> SimulationError:
    name = env.spec.id if env.spec else type(env.unwrapped).__name__
    return SimulationError(f"the environment {name} {what}{where and f' ({where})'}{way_out}")
