"""Environments: how they are made, what they show and take, and the tasks of those outside D4RL's table."""

import importlib
import os
import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import WrapperSpec

from ...base.errors import SimulationError, UsageError, one_line
from .spaces import flat_size, is_vector, layout_of
from .table import Reference, Task, check_reference, unversioned

MOST_ACTIONS = 2**20  # integers beyond are no numbers of choices
UNBOUNDED = 1e30  # a bound that says nothing, such as the largest float32

# What code of the user's may raise; Ctrl-C is none of it.
RAISED = (Exception, SystemExit, GeneratorExit)


_SHIPPED = ("Hopper", "HalfCheetah", "Walker2d", "Ant-", "Pendulum")  # of these a name is mistyped, not forgotten

# The built-in environments, whose classes are in envs/local. Importing this module registers them.
_LOCAL = f"{__package__.rpartition('.')[0]}.local"
gym.register("aaren_rl/TMaze-v0", f"{_LOCAL}.tmaze:TMaze")
gym.register("aaren_rl/TMazeDiscrete-v0", f"{_LOCAL}.tmaze:DiscreteTMaze")
gym.register("aaren_rl/Reacher-Recall-v0", f"{_LOCAL}.reacher:ReacherRecall", max_episode_steps=1000)
for _name, _count in (("Hopper", 5), ("Walker2d", 8)):
    _shown = WrapperSpec("Positions", f"{_LOCAL}.positions:Positions", {"count": _count})
    _full = gym.spec(f"{_name}-v4").entry_point
    gym.register(f"aaren_rl/{_name}-P-v4", _full, max_episode_steps=1000, additional_wrappers=(_shown,))


def _checked_actions(env_id: str, action: gym.Space[Any]) -> gym.spaces.Box | gym.spaces.Discrete:
    if isinstance(action, gym.spaces.Discrete):
        if not -MOST_ACTIONS < action.start <= action.start + action.n < MOST_ACTIONS:
            raise UsageError(f"{env_id}: actions are {action}, beyond {MOST_ACTIONS:,}; number them from 0 on")
        return action
    if not isinstance(action, gym.spaces.Box) or len(action.shape) != 1 or action.dtype.kind != "f":
        told = f"actions are {one_line(action, 100)}, no vector of real numbers (a Box with one axis) and not Discrete"
        way_out = "wrap the environment in gymnasium.wrappers.TransformAction (docs/howto/own-environment.md)"
        raise UsageError(f"{env_id}: {told}; {way_out}")
    if not action.shape[0]:
        raise UsageError(f"{env_id}: actions are vectors without a number in them ({action})")
    if (empty := np.flatnonzero(action.low >= action.high)).size:
        raise UsageError(f"{env_id}: action {empty[0]} has equal bounds ({action.low[empty[0]]:g}); leave it out")
    return action


def load_mujoco() -> Any:
    """MuJoCo, imported as if MUJOCO_GL were not set: what draws, and needs a renderer, is a process of its own."""
    chosen = os.environ.pop("MUJOCO_GL", None)
    try:
        return importlib.import_module("mujoco")
    finally:
        if chosen is not None:
            os.environ["MUJOCO_GL"] = chosen


def make_env(env_id: str, **kwargs: Any) -> gym.Env[Any, Any]:
    """Make a Gymnasium environment; keyword arguments go to `gymnasium.make`.

    Observations that are no vectors become such, where they can, by Gymnasium's FlattenObservation.

    SimulationError: the id is unknown to Gymnasium, the environment's packages are missing, or it raised.
    """
    env = _make(env_id, kwargs)
    try:
        flat = is_vector(layout_of(env.observation_space))
    except ValueError:  # `own_task` says why
        return env
    return env if flat else gym.wrappers.FlattenObservation(env)


def _make(env_id: str, kwargs: Mapping[str, Any]) -> gym.Env[Any, Any]:
    if ":" in env_id:
        # Gymnasium would import the module named before the colon, and the id may come from a file.
        raise SimulationError(f"environment id {env_id!r} names a module to import; use an id such as Hopper-v4")
    # Left alone, MuJoCo prints what it finds odd in a model, and writes MUJOCO_LOG.TXT into the working directory.
    mujoco, messages = load_mujoco(), list[str]()
    previous = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(messages.append)
    try:
        with warnings.catch_warnings():
            # -v4 is chosen on purpose (see ENV_VERSION).
            warnings.filterwarnings("ignore", message=r".*is out of date", category=DeprecationWarning)
            keys = (kwargs := dict(kwargs)).pop("observation_keys", None)
            env = gym.make(env_id, **kwargs)
            env = env if keys is None else gym.wrappers.FilterObservation(env, keys)
    # TypeError: an argument that the environment does not take; it may come from a file.
    except (gym.error.Error, TypeError) as error:
        unknown = isinstance(error, gym.error.UnregisteredEnv) and not env_id.startswith(_SHIPPED)
        hint = "; is it your own? --register MODULE imports the module that registers it" if unknown else ""
        raise SimulationError(f"cannot make the environment {env_id!r}: {one_line(error).rstrip('.')}{hint}") from error
    except RAISED as error:
        moved = isinstance(error, ImportError) and (newer := f"{unversioned(env_id)}-v4") in gym.registry
        hint = f"; use {newer}, which has the same dynamics" if moved else ""
        raise SimulationError(f"the environment {env_id!r} cannot be made: it raised {told(error)}{hint}") from error
    finally:
        mujoco.set_mju_user_warning(previous)
    for message in messages:
        if "is deprecated" not in message:  # outdated model syntax
            warnings.warn(message, RuntimeWarning, stacklevel=2)
    return env


def close_env(env: gym.Env[Any, Any]) -> None:
    """Close an environment; SimulationError: it raised."""
    try:
        env.close()
    except RAISED as error:
        name = env.spec.id if env.spec else type(env.unwrapped).__name__
        raise SimulationError(f"the environment {name} raised {told(error)} when it was closed; fix it") from error


def told(error: BaseException) -> str:
    """What an environment raised, as a message has it: ValueError('no robot')."""
    said = one_line(error)
    return f"{type(error).__name__}({said})" if said else type(error).__name__


def has_no_limit(env_id: str) -> bool:
    """Whether a registered environment does not say after how many steps it ends an episode."""
    return env_id in gym.registry and gym.registry[env_id].max_episode_steps is None


def entry_point_name(env_id: str) -> str:
    """Where Gymnasium has a registered environment's class: its entry point as a text, MODULE:NAME."""
    entry = gym.registry[env_id].entry_point
    if isinstance(entry, str):
        return entry
    return f"{getattr(entry, '__module__', '')}:{getattr(entry, '__qualname__', '')}"


def own_task(
    name: str,
    env_id: str,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    reference: Reference | None = None,
    max_episode_steps: int | None = None,
) -> Task:
    """The task of an environment that Gymnasium knows, without target returns; `max_episode_steps` is a new time limit.

    Bounds of its actions may be infinite, and its horizon is 0 where there is no time limit.

    Raises:
        SimulationError: Gymnasium cannot make the environment.
        UsageError: observations cannot be flattened, or actions are neither vectors of real numbers nor `Discrete`, or
            the reference returns do not rise.
    """
    check_reference(reference)
    kwargs = dict(env_kwargs or {})
    if max_episode_steps is not None:
        kwargs["max_episode_steps"] = max_episode_steps
    env = _make(env_id, kwargs)
    close_env(env)
    try:
        layout = layout_of(env.observation_space)
    except ValueError as error:
        raise UsageError(f"{env_id}: observations {error}") from error
    if not flat_size(layout):
        raise UsageError(f"{env_id}: observations are without a number in them ({one_line(env.observation_space)})")
    action, limit = _checked_actions(env_id, env.action_space), env.spec and env.spec.max_episode_steps
    acts: dict[str, Any]
    if isinstance(action, gym.spaces.Discrete):
        acts = {"action_dim": int(action.n), "n_actions": int(action.n), "action_start": int(action.start)}
    else:
        sides = np.array([action.low, action.high])
        low, high = np.where(np.abs(sides) < UNBOUNDED, sides, np.copysign(np.inf, sides))
        acts = {"action_dim": len(low), "action_low": tuple(low.tolist()), "action_high": tuple(high.tolist())}
    return Task(
        name=name,
        env_id=env_id,
        observation_dim=flat_size(layout),
        layout=None if is_vector(layout) else layout,
        horizon=max(0, limit or 0),  # -1 is Gymnasium's for none
        env_kwargs=kwargs,
        reference=reference,
        **acts,
    )
