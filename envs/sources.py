"""From a task's name to its episodes: D4RL's file, the local set made from shipped policies, or any HDF5 file."""

import os
import sys
from dataclasses import replace
from pathlib import Path

from .d4rl import d4rl_dataset_dir, read_hdf5
from .episodes import Episodes
from .errors import DataError, UsageError
from .local import local_levels, make_local
from .specs import Task, get_task

# D4RL numbers the same dynamics -v2 (and -v3 where contact forces are reported otherwise); Gymnasium's are -v4.
_SAME_DYNAMICS = (2, 3, 4)


def load_episodes(
    name: str,
    source: str | os.PathLike[str] = "auto",
    *,
    clip_actions: bool = False,
    max_episode_steps: int | None = None,
    progress: bool = True,
) -> Episodes:
    """Load the dataset of task `name`, e.g. "hopper-medium".

    `source` is "d4rl" (D4RL's file in `$D4RL_DATASET_DIR`, else `~/.d4rl/datasets`), "local" (a set made on this
    machine from behaviour policies that ship with the package, not D4RL's data), a path to an HDF5 file in D4RL's
    layout, or "auto": D4RL's file if it is there, otherwise the local set, with a line on stderr that says so.
    `clip_actions` and `max_episode_steps` are for files whose actions leave [-1, 1] or whose ends are not marked.

    Raises:
        UnknownTaskError: no such task.
        UsageError: no such source.
        DataError: the data are missing, damaged or of another environment.
        SimulationError: the local set could not be made.
    """
    task = get_task(name)
    kind, path = _resolve(task, source, progress)
    episodes = read_hdf5(
        path,
        dataset=task.name,
        observation_dim=task.observation_dim,
        action_dim=task.action_dim,
        max_episode_steps=max_episode_steps,
        clip_actions=clip_actions,
    )
    _check_fits(task, episodes)
    return replace(episodes, source=kind)


def _resolve(task: Task, source: str | os.PathLike[str], progress: bool) -> tuple[str, Path]:
    """The kind of source ("d4rl", "local", "file") and the file to read."""
    if source == "auto":
        return _resolve_auto(task, progress)
    if source == "d4rl":
        path = d4rl_dataset_dir() / task.d4rl_file
        if not path.is_file():
            raise DataError(f"{path}: D4RL's file for {task.name} is not there; {_how_to_get(task)}")
        return "d4rl", path
    if source == "local":
        return "local", make_local(task, progress=progress)
    if _is_path(source):
        return "file", Path(source)
    raise UsageError(f"unknown source {os.fspath(source)!r}; use auto, d4rl, local or a path to an HDF5 file")


def _resolve_auto(task: Task, progress: bool) -> tuple[str, Path]:
    path = d4rl_dataset_dir() / task.d4rl_file
    if path.is_file():
        return "d4rl", path
    if task.level not in local_levels(task.family):
        raise DataError(
            f"{path}: D4RL's file for {task.name} is not there and no behaviour policy for it ships with the package; "
            f"{_how_to_get(task)}, or give the path of an HDF5 file as the source"
        )
    print(
        f"{task.name}: using the local set made from the shipped behaviour policies; it is not D4RL's file "
        f"({path} is not there)",
        file=sys.stderr,
    )
    return "local", make_local(task, progress=progress)


def _how_to_get(task: Task) -> str:
    return f"download {task.d4rl_file} (gym_mujoco_v2 on D4RL's server) to that path or set D4RL_DATASET_DIR"


def _is_path(source: str | os.PathLike[str]) -> bool:
    if not isinstance(source, str):
        return True
    separators = [mark for mark in (os.sep, os.altsep) if mark]
    return any(mark in source for mark in separators) or source.endswith((".hdf5", ".h5")) or os.path.exists(source)


def _check_fits(task: Task, episodes: Episodes) -> None:
    """Refuse data that were recorded on another environment or that run past the task's horizon."""
    base = task.env_id.rsplit("-v", 1)[0]
    if episodes.env_id is not None and episodes.env_id not in {f"{base}-v{number}" for number in _SAME_DYNAMICS}:
        raise DataError(
            f"{episodes.path}:env_id is {episodes.env_id}, {task.name} is simulated on {task.env_id}; "
            "choose the task the file was made for"
        )
    longest = int(episodes.lengths.max())
    if longest > task.horizon:
        raise DataError(
            f"{episodes.path}:timeouts leave an episode of {longest:,} steps, {task.env_id} ends at {task.horizon}; "
            f"pass --max-episode-steps {task.horizon}"
        )
