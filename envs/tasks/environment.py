"""Environments: how they are made, what they show and take, and the tasks of those outside D4RL's table."""

import importlib
import math
import os
import re
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np

from .. import memory as memory  # registers the built-in environments
from ..errors import SimulationError, UsageError, one_line
from .names import find_task
from .table import Reference, Task

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

# Arguments that name files to read or modules to import.
_FORBIDDEN_KEY = re.compile(r"(^|_)(xml|file|path|dir|folder|module|entry_point|id)s?(_|$)", re.IGNORECASE)
_FORBIDDEN_TEXT = re.compile(r"[/\\:~]|\.\.|\.xml$", re.IGNORECASE)

# What code of the user's may raise; Ctrl-C is none of it.
RAISED = (Exception, SystemExit, GeneratorExit)

# What to do about spaces that are no vectors. Observations in one of _ONE_HOT become vectors without the user's help.
_FLATTEN = "register the environment wrapped in FlattenObservation, which makes a vector of what is not too large"
_COMBINE = "wrap it so that an action is a vector or an integer (Discrete), one for every combination"
_ONE_HOT = (gym.spaces.Discrete, gym.spaces.MultiBinary, gym.spaces.MultiDiscrete)

OGBENCH = "-singletask-"  # in the ids of OGBench's environments of one task

_MOST_ACTIONS = 2**20  # integers beyond are no numbers of choices

_SHIPPED = ("Hopper", "HalfCheetah", "Walker2d", "Ant-", "Pendulum")  # of these a name is mistyped, not forgotten


def inspect_spaces(
    env_id: str,
    **kwargs: Any,  # noqa: ANN401  as `make_env`
) -> tuple[gym.spaces.Box, gym.spaces.Box | gym.spaces.Discrete, int | None]:
    """The vectors to see (O,) and the actions of an environment, and its time limit in steps, if any.

    Actions are bounded vectors (A,) or integers.

    Raises:
        SimulationError: Gymnasium cannot make the environment.
        UsageError: observations are not vectors of numbers, or actions are neither bounded vectors nor `Discrete`.
    """
    env = make_env(env_id, **kwargs)
    close_env(env)
    observation = _vector(env_id, "observations", env.observation_space, _FLATTEN)
    action, limit = env.action_space, env.spec.max_episode_steps if env.spec is not None else None
    if isinstance(action, gym.spaces.Discrete):
        if not -_MOST_ACTIONS < action.start <= action.start + action.n < _MOST_ACTIONS:
            raise UsageError(f"{env_id}: actions are {action}, beyond {_MOST_ACTIONS:,}; number them from 0 on")
        return observation, action, limit
    action = _vector(env_id, "actions", action, _COMBINE)
    if not action.is_bounded():
        raise UsageError(f"{env_id}: actions are not bounded ({action}); wrap the environment in RescaleAction")
    if (empty := np.flatnonzero(action.low >= action.high)).size:
        raise UsageError(f"{env_id}: action {empty[0]} has equal bounds ({action.low[empty[0]]:g}); leave it out")
    return observation, action, limit


def _vector(env_id: str, what: str, space: gym.Space[Any], way_out: str) -> gym.spaces.Box:
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
        shown = one_line(space)
        raise UsageError(f"{env_id}: {what} are {shown}, not a vector of numbers (a Box with one axis); {way_out}")
    if not space.shape[0]:
        raise UsageError(f"{env_id}: {what} are vectors without a number in them ({space})")
    return space


def load_mujoco() -> Any:  # noqa: ANN401  a module
    """MuJoCo, imported as if MUJOCO_GL were not set: what draws, and needs a renderer, is a process of its own."""
    chosen = os.environ.pop("MUJOCO_GL", None)
    try:
        return importlib.import_module("mujoco")
    finally:
        if chosen is not None:
            os.environ["MUJOCO_GL"] = chosen


def make_env(env_id: str, **kwargs: Any) -> gym.Env[Any, Any]:  # noqa: ANN401  gym.make takes whatever the environment does
    """Make a Gymnasium environment; keyword arguments go to `gymnasium.make`.

    Discrete, MultiBinary and MultiDiscrete observations become one-hot vectors (Gymnasium's FlattenObservation).

    SimulationError: the id is unknown to Gymnasium, the environment's packages are missing, or it raised.
    """
    if ":" in env_id:
        # Gymnasium would import the module named before the colon, and the id may come from a file.
        raise SimulationError(
            f"environment id {env_id!r} names a module to import; use a registered id such as Hopper-v4"
        )
    # Left alone, MuJoCo prints what it finds odd in a model, and writes MUJOCO_LOG.TXT into the working directory.
    mujoco, messages = load_mujoco(), list[str]()
    previous = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(messages.append)
    try:
        with warnings.catch_warnings():
            # -v4 is chosen on purpose (see ENV_VERSION).
            warnings.filterwarnings("ignore", message=r".*is out of date", category=DeprecationWarning)
            if OGBENCH in env_id and env_id not in gym.registry and find_spec("ogbench"):
                importlib.import_module("ogbench")  # which registers its environments
            env = gym.make(env_id, **kwargs)
    # TypeError: an argument that the environment does not take; it may come from a file.
    except (gym.error.Error, TypeError) as error:
        unknown = isinstance(error, gym.error.UnregisteredEnv) and not env_id.startswith(_SHIPPED)
        hint = "; is it your own? --register MODULE imports the module that registers it" if unknown else ""
        if unknown and OGBENCH in env_id:
            hint = (
                "; correct the name" if find_spec("ogbench") else "; it is OGBench's: pip install 'aaren-rl[ogbench]'"
            )
        raise SimulationError(f"cannot make the environment {env_id!r}: {one_line(error)}{hint}") from error
    except RAISED as error:
        moved = isinstance(error, ImportError) and (newer := f"{unversioned(env_id)}-v4") in gym.registry
        hint = f"; use {newer}, which has the same dynamics" if moved else ""
        raise SimulationError(f"the environment {env_id!r} cannot be made: it raised {told(error)}{hint}") from error
    finally:
        mujoco.set_mju_user_warning(previous)
    for message in messages:
        if "is deprecated" not in message:  # outdated model syntax
            warnings.warn(message, RuntimeWarning, stacklevel=2)
    return gym.wrappers.FlattenObservation(env) if isinstance(env.observation_space, _ONE_HOT) else env


def close_env(env: gym.Env[Any, Any]) -> None:
    """Close an environment; SimulationError: it raised."""
    try:
        env.close()
    except RAISED as error:
        name = env.spec.id if env.spec else type(env.unwrapped).__name__
        raise SimulationError(
            f"the environment {name} raised {told(error)} when it was closed; fix the environment"
        ) from error


def told(error: BaseException) -> str:
    """What an environment raised, as a message has it: ValueError('no robot')."""
    said = one_line(error)
    return f"{type(error).__name__}({said})" if said else type(error).__name__


def entry_point_name(env_id: str) -> str:
    """Where Gymnasium has a registered environment's class: its entry point as a text, MODULE:NAME."""
    entry = gym.registry[env_id].entry_point
    if isinstance(entry, str):
        return entry
    return f"{getattr(entry, '__module__', '')}:{getattr(entry, '__qualname__', '')}"


def is_plain_argument(key: str, value: object) -> bool:
    """Whether an environment's argument that a file gives is harmless: plain values that name no file or module."""
    return key.isidentifier() and not _FORBIDDEN_KEY.search(key) and _is_plain(value)


def _is_plain(value: object, depth: int = 4) -> bool:
    if isinstance(value, str):
        return not _FORBIDDEN_TEXT.search(value)
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(item, depth - 1) for item in value)
    # A policy's card is JSON, which has no infinity.
    return value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))


def is_safe_name(name: str) -> bool:
    """Whether a name may become part of a path."""
    return _NAME.fullmatch(name) is not None


def check_own_name(name: str) -> str:
    """A name that may become part of a path and is not one of the table's; UsageError: it is no such name."""
    if not is_safe_name(name):
        raise UsageError(
            f"name {name[:60]!r}: use letters, digits, '.', '_' and '-', up to 100, a letter or digit first"
        )
    if (task := find_task(name)) is not None:
        raise UsageError(
            f"{name} is simulated on {task.env_id}; give data of another environment a name of their own (--env)"
        )
    return name


def unversioned(env_id: str) -> str:
    """The name of an environment without its version, of which data of one task name several."""
    return env_id.rsplit("-v", 1)[0]


def same_dynamics(env_id: str) -> list[str]:
    """The ids that data for this one may name: D4RL numbers the dynamics of Gymnasium's -v4 -v2, or -v3.

    In -v3 contact forces are reported otherwise.
    """
    same = [f"{unversioned(env_id)}-v{number}" for number in (2, 3, 4)]
    return same if env_id in same else [env_id]


def own_task(
    name: str,
    env_id: str,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    reference: Reference | None = None,
    max_episode_steps: int | None = None,
) -> Task:
    """The task of an environment that Gymnasium knows, without target returns; `max_episode_steps` is a new time limit.

    Raises:
        SimulationError: Gymnasium cannot make the environment.
        UsageError: as `inspect_spaces`, there is no time limit, or the reference returns do not rise.
    """
    if reference is not None and not reference.high > reference.low:
        raise UsageError(f"the reference returns {reference.low:g} and {reference.high:g} must rise")
    kwargs = dict(env_kwargs or {})
    if max_episode_steps is not None:
        kwargs["max_episode_steps"] = max_episode_steps
    observation, action, horizon = inspect_spaces(env_id, **kwargs)
    if isinstance(action, gym.spaces.Discrete):
        acts: dict[str, Any] = {"action_dim": int(action.n), "action_low": (), "action_high": ()}
        acts |= {"n_actions": int(action.n), "action_start": int(action.start)}
    else:
        low, high = (tuple(map(float, bound)) for bound in (action.low, action.high))
        acts = {"action_dim": action.shape[0], "action_low": low, "action_high": high}
    if horizon is None:
        raise UsageError(f"{env_id} has no time limit; give one with --max-episode-steps")
    return Task(
        name=name,
        env_id=env_id,
        observation_dim=observation.shape[0],
        horizon=horizon,
        target_returns=(),
        env_kwargs=kwargs,
        reference=reference,
        **acts,
    )
