"""From a task's name to its episodes: D4RL's file, the local set made from shipped policies, or any HDF5 file."""

import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from .d4rl import d4rl_dataset_dir, d4rl_url, read_hdf5
from .download import fetch
from .episodes import Episodes
from .errors import DataError, UsageError
from .hdf5_guard import try_file
from .local import local_levels, make_local
from .pins import verify_pin
from .specs import D4RLTask, Task, get_task

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

    `source` is "d4rl" (D4RL's file in `$D4RL_DATASET_DIR`, else `~/.d4rl/datasets`; fetched where it is not there,
    from D4RL's server or the mirror `$D4RL_BASE_URL`), "local" (a set made on this machine from behaviour policies
    that ship with the package, not D4RL's data), a path to an HDF5 file in D4RL's layout, or "auto": D4RL's file if
    it is there, otherwise the local set, or D4RL's server where no policy ships, with a line on stderr that says so.
    A fetched file is pinned by its SHA-256 in `FILE.sha256` beside it and checked against it at every load; for a
    file put there by hand, `sha256sum FILE > FILE.sha256` does the same.

    `clip_actions` and `max_episode_steps` are for files whose actions leave [-1, 1] or whose ends are not marked.

    Raises:
        UnknownTaskError: no such task.
        UsageError: no such source, or `$D4RL_BASE_URL` is not an http or https address.
        DataError: the data are missing and cannot be fetched, damaged, changed since they were fetched, or of another
            environment.
        SimulationError: the local set could not be made.
    """
    task = get_task(name)
    kind, path = _resolve(task, source, progress)
    if kind == "file":
        try_file(path)
    episodes = read_hdf5(
        path,
        dataset=task.name,
        observation_dim=task.observation_dim,
        action_dim=task.action_dim,
        max_episode_steps=max_episode_steps,
        clip_actions=clip_actions,
    )
    check_fits(task, episodes)
    return replace(episodes, source=kind)


def _resolve(task: D4RLTask, source: str | os.PathLike[str], progress: bool) -> tuple[str, Path]:
    """The kind of source ("d4rl", "local", "file") and the file to read."""
    if source == "auto":
        path = d4rl_dataset_dir() / task.d4rl_file
        if path.is_file() or task.level not in local_levels(task.family):
            return "d4rl", _d4rl_file(task, progress)
        print(
            f"{task.name}: using the local set made from the shipped behaviour policies; it is not D4RL's file "
            f"({path} is not there; --source d4rl fetches it)",
            file=sys.stderr,
        )
        return "local", make_local(task, progress=progress)
    if source == "d4rl":
        return "d4rl", _d4rl_file(task, progress)
    if source == "local":
        return "local", make_local(task, progress=progress)
    if is_path(source):
        return "file", Path(source)
    raise UsageError(f"unknown source {os.fspath(source)!r}; use auto, d4rl, local, minari or a path to an HDF5 file")


def _d4rl_file(task: D4RLTask, progress: bool) -> Path:
    """D4RL's file: the one that is there, if it is still the one that was fetched, else D4RL's server's."""
    path = d4rl_dataset_dir() / task.d4rl_file
    if path.is_file():
        if not verify_pin(path):
            try_file(path)
        return path
    url = d4rl_url(task)
    print(f"{task.name}: fetching D4RL's file, which is not at {path}, from {url}", file=sys.stderr)
    try:
        fetch(url, path, check=partial(_check_download, task), progress=progress)
    except DataError as error:
        local = "use --source local, " if task.level in local_levels(task.family) else ""
        raise DataError(
            f"{error}, or set D4RL_DATASET_DIR to a folder that has {path.name} or D4RL_BASE_URL to a mirror, {local}"
            "or give the path of an HDF5 file as the source"
        ) from error
    return path


def _check_download(task: D4RLTask, path: Path) -> None:
    """Refuse a file that is not the task's. What options of the load can mend is left to the load."""
    try_file(path)
    episodes = read_hdf5(
        path,
        observation_dim=task.observation_dim,
        action_dim=task.action_dim,
        max_episode_steps=task.horizon,
        clip_actions=True,
    )
    check_fits(task, episodes)


def is_path(source: str | os.PathLike[str]) -> bool:
    """Whether a source means a file, rather than a word like "local"."""
    if not isinstance(source, str):
        return True
    separators = [mark for mark in (os.sep, os.altsep) if mark]
    return any(mark in source for mark in separators) or source.endswith((".hdf5", ".h5")) or os.path.exists(source)


def check_fits(task: Task, episodes: Episodes) -> None:
    """Refuse data that were recorded on another environment or that run past the task's horizon."""
    same = {task.env_id}
    if isinstance(task, D4RLTask):
        same = {f"{task.env_id.rsplit('-v', 1)[0]}-v{number}" for number in _SAME_DYNAMICS}
    if episodes.env_id is not None and episodes.env_id not in same:
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
