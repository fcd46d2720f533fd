"""What an environment shows and takes, for environments that no table knows."""

from typing import Any, NamedTuple

import gymnasium as gym

from .errors import UsageError
from .specs import make_env


class Spaces(NamedTuple):
    """Vectors to see (O,) and bounded ones to act (A,); `horizon` is the time limit in steps, None without one."""

    observation: gym.spaces.Box
    action: gym.spaces.Box
    horizon: int | None


def inspect_spaces(env_id: str, **kwargs: Any) -> Spaces:  # noqa: ANN401  whatever gymnasium.make takes
    """Make an environment and look at it.

    Raises:
        SimulationError: Gymnasium cannot make the environment.
        UsageError: observations or actions are not vectors of numbers, or the actions are not bounded.
    """
    env = make_env(env_id, **kwargs)
    try:
        observation = _vector(env_id, "observations", env.observation_space)
        action = _vector(env_id, "actions", env.action_space)
        horizon = env.spec.max_episode_steps if env.spec is not None else None
    finally:
        env.close()
    if not action.is_bounded():
        raise UsageError(f"{env_id}: actions are not bounded ({action}); wrap the environment in RescaleAction")
    return Spaces(observation, action, horizon)


def _vector(env_id: str, what: str, space: gym.Space[Any]) -> gym.spaces.Box:
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
        raise UsageError(f"{env_id}: {what} are {space}, not a vector of numbers (a Box with one axis)")
    return space
