"""Actions that are neither vectors of real numbers nor integers from one range: the wrapper that makes them so."""

import math
from typing import Any

import gymnasium as gym
import numpy as np

MOST_ACTIONS = 2**20  # integers beyond are no numbers of choices
UNBOUNDED = 1e30  # a bound that says nothing, such as the largest float32

_WRAP = "register the environment wrapped: gymnasium.wrappers.TransformAction(env, {}, {})"


def is_bounded(action: gym.spaces.Box) -> bool:
    """Whether the bounds of all actions are numbers that mean something."""
    return bool(max(np.abs(action.low).max(), np.abs(action.high).max()) < UNBOUNDED)


def bounding(action: gym.spaces.Box) -> str:
    """How to bound actions where no data say what they are."""
    return _WRAP.format("lambda a: a", f"gymnasium.spaces.Box(-1, 1, {action.shape}, numpy.float32)")


def way_out(action: gym.Space[Any]) -> str:
    """How to make vectors or integers of such actions."""
    if isinstance(action, gym.spaces.MultiDiscrete | gym.spaces.MultiBinary):
        return _numbered(action)
    if isinstance(action, gym.spaces.Box) and action.dtype.kind != "f":
        reals = ", ".join(f"numpy.float32(env.action_space.{side}).ravel()" for side in ("low", "high"))
        return _WRAP.format(
            f"lambda a: numpy.rint(a).astype(env.action_space.dtype).reshape({action.shape})",
            f"gymnasium.spaces.Box({reals})",
        )
    if _is_real(action):
        return _WRAP.format(
            "lambda a: gymnasium.spaces.unflatten(env.action_space, a)",
            "gymnasium.spaces.flatten_space(env.action_space)",
        )
    return (
        _WRAP.format("FUNCTION", "SPACE") + ", a function of yours from an action of a Discrete or Box space to these"
    )


def _is_real(action: gym.Space[Any]) -> bool:
    if isinstance(action, gym.spaces.Dict | gym.spaces.Tuple):
        parts = action.spaces.values() if isinstance(action, gym.spaces.Dict) else action.spaces
        return len(parts) > 0 and all(map(_is_real, parts))
    return isinstance(action, gym.spaces.Box) and action.dtype.kind == "f"


def _numbered(action: gym.spaces.MultiDiscrete | gym.spaces.MultiBinary) -> str:
    """Every combination as one integer; where there are too many, rounded real numbers."""
    shape = tuple(map(int, action.shape))
    counts, of_start, multi = (2,) * math.prod(shape), "", isinstance(action, gym.spaces.MultiDiscrete)
    if isinstance(action, gym.spaces.MultiDiscrete):
        counts = tuple(map(int, action.nvec.flat))
        of_start = " + env.action_space.start" if action.start.any() else ""
    count = math.prod(counts)
    if count < MOST_ACTIONS:
        shaped = f"numpy.array(numpy.unravel_index(i, {counts})).reshape({shape})"
        wrap = _WRAP.format(f"lambda i: {shaped}{of_start}", f"gymnasium.spaces.Discrete({count})")
        first = " - start" if of_start else ""
        return f"{wrap}, and number the data's: numpy.ravel_multi_index((actions{first}).reshape(N, -1).T, {counts})"
    high = "numpy.float32(env.action_space.nvec.ravel() - 1)" if multi else f"numpy.ones({len(counts)}, numpy.float32)"
    return _WRAP.format(
        f"lambda a: numpy.rint(a).astype(numpy.int64).reshape({shape}){of_start}",
        f"gymnasium.spaces.Box(numpy.zeros({len(counts)}, numpy.float32), {high})",
    )
