"""OGBench's single-task sets of states: fetched from its server, and rewarded by its own functions for the task."""

import importlib
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...base.errors import DataError, UsageError
from ...base.system import require_memory
from ..tasks.environment import RAISED, close_env, make_env, own_task, told
from ..tasks.table import Reference, Task
from .assemble import Limits, Table, assemble
from .columns import ArrayColumn, check_size, read_flags
from .download import fetch, file_url, verify_pin
from .episodes import Episodes
from .npz import npz_columns

_NAME = re.compile(r"(?!visual-)([a-z0-9-]+)-([a-z]+)-singletask(-task[1-9])?-(v[0-9]+)")
_NEEDED = ("observations", "actions", "terminals", "qpos")
_STATE = ("qpos", "button_states")  # what OGBench computes rewards from


class Names(NamedTuple):
    """The environment and the file of a set."""

    env_id: str
    file: str


def ogbench_names(name: str) -> Names:
    """What "antmaze-large-navigate-singletask-v0" stands for; UsageError: it is no single-task set of states."""
    if len(name) > 100 or not (match := _NAME.fullmatch(name)):
        raise UsageError(
            f"{name[:60]!a} is not a single-task set of OGBench's with states as observations; write it like "
            "antmaze-large-navigate-singletask-v0, or -singletask-task2-v0 for another of its tasks"
        )
    env, kind, task, version = match.groups(default="")
    return Names(f"{env}-singletask{task}-{version}", f"{env}-{kind}-{version}.npz")


def ogbench_path(name: str) -> Path:
    """The file of a set, there or not: in `$OGBENCH_DATASET_DIR`, else `~/.ogbench/data`, as the package does."""
    return Path(os.environ.get("OGBENCH_DATASET_DIR") or Path.home() / ".ogbench" / "data") / ogbench_names(name).file


def load_ogbench(
    task_name: str,
    name: str,
    *,
    env_id: str | None = None,
    reference: Reference | None = None,
    max_episode_steps: int | None = None,
    clip_actions: bool = False,
    progress: bool = True,
) -> tuple[Task, Episodes]:
    """A set such as "antmaze-large-navigate-singletask-v0", fetched where it is not there, and its task `task_name`.

    Its file is that of all tasks of the environment. OGBench's functions compute the rewards of the one: 0 in the goal
    and -1 elsewhere, or minus the number of parts that are not done. As in the environment, an episode ends at a first
    step in the goal, and at the time limit. Steps that start or stay in the goal are left out, and last observations.

    Raises:
        UsageError: not such a name, or `env_id` is another environment than its own.
        SimulationError: the environment cannot be made, or the package is not installed.
        DataError: the file cannot be fetched, is damaged or changed, or does not fit the environment.
    """
    recorded, path = ogbench_names(name).env_id, ogbench_path(name)
    if env_id not in (None, recorded):
        raise UsageError(f"--env-id {env_id}: ogbench:{name} is of {recorded}; leave --env-id out")
    task = own_task(task_name, recorded, reference=reference, max_episode_steps=max_episode_steps)
    limits = Limits(
        observation_dim=task.observation_dim,
        action_dim=task.action_dim,
        action_low=task.action_low,
        action_high=task.action_high,
        max_episode_steps=task.horizon,
        clip_actions=clip_actions,
    )
    if not path.is_file():
        _fetch(name, path, limits, progress)
    verify_pin(path)
    return task, _read(path, name, limits)


def _fetch(name: str, path: Path, limits: Limits, progress: bool) -> None:
    server = importlib.import_module("ogbench.utils").DATASET_URL
    url = file_url("OGBENCH_BASE_URL", server, "{file}", file=path.name)
    print(f"{name}: downloading OGBench's file from {url} to {path}", file=sys.stderr)
    try:
        fetch(url, path, check=partial(_read, name=name, limits=limits), progress=progress)
    except DataError as error:
        raise DataError(
            f"{error}, or set OGBENCH_DATASET_DIR to a folder that has {path.name} or OGBENCH_BASE_URL to a mirror"
        ) from error


def _read(path: Path, name: str, limits: Limits) -> Episodes:
    env_id = ogbench_names(name).env_id
    with npz_columns(path) as found:
        if missing := [key for key in _NEEDED if key not in found]:
            raise DataError(f"{path}: missing {', '.join(missing)} (found: {', '.join(found)}); get OGBench's file")
        require_memory(2 * check_size(found.values(), path), str(path), "use a smaller dataset")
        arrays = {key: found[key].values() for key in {*_NEEDED, *_STATE} & {*found}}
        last = read_flags(found["terminals"])
    steps = len(last)
    for key, array in arrays.items():
        if array.shape[:1] != (steps,) or not np.isfinite(array).all():
            raise DataError(
                f"{path}:{key} of shape {array.shape} is not {steps:,} rows of finite numbers; get it again"
            )
    rewards, goal = _relabel(path, env_id, {key: arrays[key] for key in _STATE if key in arrays})
    stays = goal & np.append(True, (goal | last)[:-1])  # or starts there, as no episode of the environment does
    kept = ~last & ~stays
    columns = {key: arrays[key] for key in ("observations", "actions")}
    columns |= {"rewards": rewards, "terminals": goal, "timeouts": np.append(last[1:], False)}
    table = Table(str(path), {key: ArrayColumn(f"{path}:{key}", array[kept]) for key, array in columns.items()})
    note = f"left out {(stays & ~last).sum():,} steps that start or stay in the goal, where {env_id} ends"
    labels: dict[str, Any] = {"dataset": name, "source": "ogbench", "env_id": env_id, "notes": (note,)}
    return Episodes(**assemble([table], limits, path=str(path), way_out="get OGBench's file", **labels))


def _relabel(
    path: Path, env_id: str, state: dict[str, npt.NDArray[Any]]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """The rewards of all rows (N,) and whether they are in the goal, by OGBench's own function."""
    env, steps = make_env(env_id), len(state["qpos"])
    try:
        env.reset(seed=0)
        relabel: Any = importlib.import_module("ogbench.relabel_utils").relabel_dataset
        relabel(env_id, env, state)
        rewards, goal = np.asarray(state["rewards"], np.float32), np.asarray(state["masks"]) == 0
        if rewards.shape != (steps,) or goal.shape != (steps,):
            raise ValueError(f"rewards of shape {rewards.shape}")
    except RAISED as error:
        raise DataError(
            f"{path}: OGBench cannot compute the rewards of {env_id} for it ({told(error)}); get OGBench's file"
        ) from error
    finally:
        close_env(env)
    return rewards, goal
