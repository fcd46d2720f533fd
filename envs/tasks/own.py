"""Tasks outside D4RL's table: the sizes, bounds and time limit of any Gymnasium environment."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import UsageError
from .environment import inspect_spaces
from .table import TASKS, Reference, Task

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def is_safe_name(name: str) -> bool:
    """Whether a name may become part of a path."""
    return _NAME.fullmatch(name) is not None


def check_own_name(name: str) -> str:
    """A name that may become part of a path and is not one of the table's.

    Raises:
        UsageError: it is neither.
    """
    if not is_safe_name(name):
        raise UsageError(
            f"name {name[:60]!r}: use letters, digits, '.', '_' and '-', up to 100, a letter or digit first"
        )
    if name in TASKS:
        raise UsageError(
            f"{name} is simulated on {TASKS[name].env_id}; give data of another environment a name of their own (--env)"
        )
    return name


def own_task(
    name: str,
    env_id: str,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    reference: Reference | None = None,
    max_episode_steps: int | None = None,
) -> Task:
    """The task of an environment that Gymnasium knows; its target returns are left empty.

    `max_episode_steps` replaces the environment's own time limit.

    Raises:
        SimulationError: Gymnasium cannot make the environment.
        UsageError: observations or bounded actions are not vectors, there is no time limit, or the reference returns
            are equal.
    """
    if reference is not None and not reference.high > reference.low:
        raise UsageError(f"the reference returns {reference.low:g} and {reference.high:g} must rise")
    kwargs = dict(env_kwargs or {})
    if max_episode_steps is not None:
        kwargs["max_episode_steps"] = max_episode_steps
    observation, action, horizon = inspect_spaces(env_id, **kwargs)
    if (empty := np.flatnonzero(action.low >= action.high)).size:
        raise UsageError(f"{env_id}: action {empty[0]} has equal bounds ({action.low[empty[0]]:g}); leave it out")
    if horizon is None:
        raise UsageError(f"{env_id} has no time limit; give one with --max-episode-steps")
    return Task(
        name=name,
        env_id=env_id,
        observation_dim=observation.shape[0],
        action_dim=action.shape[0],
        horizon=horizon,
        target_returns=(),
        action_low=tuple(map(float, action.low)),
        action_high=tuple(map(float, action.high)),
        env_kwargs=kwargs,
        reference=reference,
    )
