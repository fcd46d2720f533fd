"""What an environment answers, checked where it comes in: it is the user's code, and may raise or return anything.

Its faults are told with its name, number and step; further on, a policy would be blamed for what it made of them.

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

    Args:
        env: the environment.
        where: which one it is and how far, for messages: "reset with seed 1003, step 3".
        options: of `gymnasium.Env.reset`.

    Raises:
        SimulationError: it raised, or what it gave is not a finite vector of its observation space's shape.
    """
    try:
        observation, info = env.reset(**options)
    except RAISED as error:
        raise _raised(env, where, error) from error
    return _observation(env, where, observation), info


def take(env: gym.Env[Any, Any], action: npt.NDArray[Any], where: str = "") -> Answer:
    """Takes a step with an action (A,); the arguments are those of `begin`.

    Raises:
        SimulationError: it raised, its observation is not a finite vector of its space's shape, or its reward is not
            a finite number.
    """
    try:
        observation, reward, terminated, truncated, info = env.step(action)
    except RAISED as error:
        raise _raised(env, where, error) from error
    ends = []
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        if (flag := _flag(value)) is None:
            raise _gave(env, where, f"for {name} {one_line(type(value).__name__)}, which is neither true nor false")
        ends.append(flag)
    number = _number(reward)
    if number is None:
        raise _gave(env, where, f"the reward {one_line(repr(reward), 60)}, which is not a number")
    if not math.isfinite(number) or abs(number) > _LARGEST:
        raise _gave(env, where, f"a reward that is not finite{' in float32' * math.isfinite(number)}: {number}")
    return Answer(_observation(env, where, observation), number, ends[0], ends[1], info)


_LARGEST = float(np.finfo(np.float32).max)


def _number(reward: Any) -> float | None:  # noqa: ANN401  whatever it returned
    """A reward as a number; None where it is none: a list or an array of one element is none either."""
    try:
        return None if isinstance(reward, str | bytes) or np.ndim(reward) else float(reward)
    except Exception:  # what is no number may raise anything where it is asked for one
        return None


def _flag(value: Any) -> bool | None:  # noqa: ANN401  whatever it returned
    """Whether an episode ended; None where that is not said: of an array there may be several answers."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    try:
        array = np.asarray(value)
        return None if array.ndim or array.dtype.kind not in "biuf" else bool(array)
    except Exception:  # likewise
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
        raise _gave(env, where, f"an observation that is no vector of numbers but a {kind}") from error
    if array.shape != env.observation_space.shape:
        shapes = f"of shape {array.shape}, where its observation space has {env.observation_space.shape}"
        raise _gave(env, where, f"an observation {shapes}")
    finite = np.isfinite(array)
    if not finite.all():
        column = int(np.argmin(finite))
        value = np.asarray(observation).ravel()[column]
        raise _gave(env, where, f"an observation that is not finite: column {column} is {value}")
    return array


def _gave(env: gym.Env[Any, Any], where: str, what: str) -> SimulationError:
    return SimulationError(f"the environment {_name(env)} gave {what}{where and f' ({where})'}; repair it")


def _raised(env: gym.Env[Any, Any], where: str, error: BaseException) -> SimulationError:
    return SimulationError(f"the environment {_name(env)} raised {told(error)}{where and f' ({where})'}")


def _name(env: gym.Env[Any, Any]) -> str:
    return env.spec.id if env.spec else type(env.unwrapped).__name__
