"""From what the user names to a task and its episodes: D4RL's file, a local set, Minari's, any HDF5 file."""

import os
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..behaviour.local_sets import local_levels, make_local
from ..errors import DataError, UsageError
from ..tasks.own import check_own_name, own_task
from ..tasks.table import TASKS, D4RLTask, Reference, Task, get_task
from .download.fetch import fetch
from .download.pins import verify_pin
from .episodes import Episodes
from .hdf5.d4rl import d4rl_dataset_dir, d4rl_url, read_hdf5
from .hdf5.guard import try_file
from .minari.read import minari_id, read_minari

# D4RL numbers the same dynamics -v2 (and -v3 where contact forces are reported otherwise); Gymnasium's are -v4.
_SAME_DYNAMICS = (2, 3, 4)
_MINARI_ID = "minari:"


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


def is_own(source: str, env_id: str | None) -> bool:
    """Whether these arguments of `load_task` mean data outside the table."""
    return env_id is not None or source.startswith(_MINARI_ID)


def task_name(name: str, source: str, env_id: str | None) -> str:
    """The name to file a task under, which is safe as a part of a path; for the arguments of `load_task`.

    Raises:
        UnknownTaskError: a name that must be the table's is not.
        UsageError: a name that must be your own is the table's, or not fit for a path.
    """
    return check_own_name(name) if is_own(source, env_id) else get_task(name).name


@dataclass(frozen=True)
class _Asked:
    """The arguments of `load_task`."""

    name: str
    source: str
    env_id: str | None
    reference: Reference | None
    clip_actions: bool
    max_episode_steps: int | None
    progress: bool


def load_task(
    name: str,
    source: str = "auto",
    *,
    env_id: str | None = None,
    reference: Reference | None = None,
    clip_actions: bool = False,
    max_episode_steps: int | None = None,
    progress: bool = True,
) -> tuple[Task, Episodes]:
    """A task and its data.

    `source` is one of `load_episodes`' for a name of the table; "minari": Minari's dataset for that name, which is
    another and is scored in the environment that it was recorded on; "minari:ID": any Minari dataset, under a name of
    your own; or the path of a file that was recorded in your own environment `env_id`. Of your own, `reference` gives
    the returns that score 0 and 100 (default: the Minari dataset's, where it has them), and the target return is the
    data's best.

    Raises:
        UsageError: `env_id` without a file, `reference` for a task of the table, or an environment that cannot be
            learnt.
        EnvsError: as `load_episodes`, `read_minari` and `own_task`.
    """
    name = task_name(name, source, env_id)
    if reference is not None and not is_own(source, env_id):
        raise UsageError(f"{name} has reference returns; others go with --env-id or a Minari dataset")
    asked = _Asked(name, source, env_id, reference, clip_actions, max_episode_steps, progress)
    if source == "minari" or source.startswith(_MINARI_ID):
        own, episodes = _load_minari(asked)
    elif env_id is not None:
        own, episodes = _load_file(asked, env_id)
    else:
        return get_task(name), load_episodes(
            name, source, clip_actions=clip_actions, max_episode_steps=max_episode_steps, progress=progress
        )
    check_fits(own, episodes)
    targets = TASKS[name].target_returns if name in TASKS else (float(episodes.returns.max()),)
    return replace(own, target_returns=targets), episodes


def _load_file(asked: _Asked, env_id: str) -> tuple[Task, Episodes]:
    if not is_path(asked.source):
        raise UsageError(f"--env-id {env_id} needs data of its own: --source PATH of an HDF5 file in D4RL's layout")
    own = own_task(asked.name, env_id, reference=asked.reference, max_episode_steps=asked.max_episode_steps)
    try_file(Path(asked.source))
    episodes = read_hdf5(
        asked.source,
        dataset=asked.name,
        observation_dim=own.observation_dim,
        action_dim=own.action_dim,
        action_low=own.action_low,
        action_high=own.action_high,
        max_episode_steps=asked.max_episode_steps,
        clip_actions=asked.clip_actions,
    )
    return own, episodes


def _load_minari(asked: _Asked) -> tuple[Task, Episodes]:
    dataset_id = minari_id(asked.name) if asked.source == "minari" else asked.source.removeprefix(_MINARI_ID)
    data = read_minari(dataset_id, progress=asked.progress, clip_actions=asked.clip_actions)
    env_id = data.episodes.env_id or asked.env_id
    if env_id is None:
        raise UsageError(f"{dataset_id} does not say which environment it was recorded on; give it with --env-id")
    if asked.env_id not in (None, env_id):
        raise UsageError(f"--env-id {asked.env_id}: {dataset_id} was recorded on {env_id}; leave --env-id out")
    reference = asked.reference
    if reference is None and data.reference_returns is not None:
        reference = Reference("Minari's reference returns", *data.reference_returns)
    own = own_task(
        asked.name,
        env_id,
        env_kwargs=data.env_kwargs,
        reference=reference,
        max_episode_steps=asked.max_episode_steps or data.max_episode_steps,
    )
    sizes = (data.episodes.observation_dim, data.episodes.action_dim)
    if sizes != (own.observation_dim, own.action_dim):
        raise DataError(
            f"{data.episodes.path}: has {sizes[0]} observation and {sizes[1]} action columns, {env_id} has "
            f"{own.observation_dim} and {own.action_dim}; choose the environment it was recorded on"
        )
    return own, data.episodes
