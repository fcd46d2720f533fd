"""Datasets of the table: D4RL's file, the local dataset, or another file in D4RL's layout, held to the task."""

import os
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ...base.errors import DataError, UsageError
from ..data.download import fetch
from ..data.episodes import Episodes
from ..data.files import check_file, read_file
from ..data.hdf5.d4rl import d4rl_dataset_dir, d4rl_url
from ..data.minari.remote import installed
from ..data.minari.spec import minari_data_dir, minari_id
from ..local.sets import LEAST_STEPS, local_levels, local_path, make_local, recipe_of
from ..tasks.built_in import LocalTask
from ..tasks.environment import same_dynamics
from ..tasks.names import get_task
from ..tasks.table import D4RLTask, Task
from .fit import arranged, chosen_env_id, held_to_horizon
from .sources import Origin, resolve


@dataclass(frozen=True)
class Reading:
    """How data are read, wherever they are from: `load_episodes`' options."""

    clip_actions: bool = False
    max_episode_steps: int | None = None
    local_steps: int | None = None
    progress: bool = True
    memory_map: bool = False

    def check_kind(self, kind: str) -> None:
        """Raises UsageError where data of this kind (`Origin.kind`) have no number of steps to ask for, or of fewer."""
        steps = self.local_steps
        if self.memory_map and kind == "minari":
            raise UsageError("--memory-map is for files: write one with aaren-rl datasets convert minari:ID FILE.hdf5")
        if steps is not None and kind not in ("auto", "local"):
            raise UsageError(f"--local-steps {steps} is for local datasets; leave it out, or use --source local")
        if steps is not None and steps < LEAST_STEPS:
            raise UsageError(f"--local-steps {steps}: too few for a local dataset; give at least {LEAST_STEPS:,}")


def data_files(task: D4RLTask | LocalTask, local_steps: int | None = None) -> dict[str, Path]:
    """The file of each source that a task has ("d4rl", "local"), there or not, and of "minari" if it is there."""
    if isinstance(task, LocalTask):
        return {"local": local_path(task, local_steps)}
    files = {"d4rl": d4rl_dataset_dir() / task.d4rl_file, "local": local_path(task, local_steps)}
    for dataset in installed(minari_id(task.name))[:1]:
        files["minari"] = minari_data_dir(dataset) / "main_data.hdf5"
    return files


def load_episodes(
    name: str,
    source: str | os.PathLike[str] = "auto",
    *,
    clip_actions: bool = False,
    max_episode_steps: int | None = None,
    local_steps: int | None = None,
    progress: bool = True,
) -> Episodes:
    """Load the dataset of task `name`, e.g. "hopper-medium".

    `source` is "d4rl" (D4RL's file in `$D4RL_DATASET_DIR`, else `~/.d4rl/datasets`, fetched from D4RL's server or the
    mirror `$D4RL_BASE_URL` if need be), "local" (a set made here from behavior policies that ship with the package), a
    path to an HDF5 file in D4RL's layout, or "auto": D4RL's file if it is there, otherwise the local set, or D4RL's
    server where no policy ships, with a line on stderr. A fetched file is held to its SHA-256 in `FILE.sha256`; for one
    of your own, `sha256sum FILE > FILE.sha256` does the same.

    `clip_actions` and `max_episode_steps` are for files whose actions leave [-1, 1] or whose ends are not marked.
    `local_steps` is the size of a local set, 1,000 at least (default: 200,000, fewer for some). `progress` shows bars.

    Raises:
        UsageError: no such task or source, or an option does not fit.
        DataError: the data are missing and cannot be fetched, damaged, changed, or of another environment.
        SimulationError: the local set could not be made.
    """
    task, origin = get_task(name), resolve(name, source)
    if origin.kind == "minari":
        raise UsageError(f"source {str(source)!r}: its data belong to another task; load them with load_task")
    return load_of_table(task, origin, Reading(clip_actions, max_episode_steps, local_steps, progress))


def load_of_table(task: D4RLTask | LocalTask, origin: Origin, reading: Reading) -> Episodes:
    """`load_episodes` of an origin of the table, or of a file."""
    reading.check_kind(origin.kind)
    kind = origin.kind
    if kind == "auto":
        kind = "local" if isinstance(task, LocalTask) else _first_source(task, reading.local_steps)
    if kind == "local":
        path = make_local(task, reading.local_steps, progress=reading.progress)
    elif kind == "file":
        path = Path(origin.name)
    else:
        assert isinstance(task, D4RLTask)  # `resolve` takes no "d4rl" of others
        path = data_files(task)["d4rl"]
        if not path.is_file():
            _fetch(task, path, reading.progress)
    return replace(read_for(task, path, reading, made_here=kind == "local"), source=kind)


def _first_source(task: D4RLTask, steps: int | None) -> str:
    path = data_files(task)["d4rl"]
    if steps is not None and path.is_file():
        raise UsageError(f"--local-steps {steps}: {path} exists and takes precedence; add --source local")
    if steps is None and (path.is_file() or task.level not in local_levels(task.family)):
        return "d4rl"
    recipe_of(task)  # raises DataError if no behavior policy ships for the task
    print(
        f"{task.name}: using the local dataset of the shipped behavior policies; it is not D4RL's file "
        f"({path} does not exist; --source d4rl downloads it)",
        file=sys.stderr,
    )
    return "local"


def _fetch(task: D4RLTask, path: Path, progress: bool) -> None:
    url = d4rl_url(task)
    print(f"{task.name}: downloading D4RL's file from {url}, because {path} does not exist", file=sys.stderr)
    # What options of the load can mend is left to the load.
    check = partial(read_for, task, reading=Reading(clip_actions=True, max_episode_steps=task.horizon))
    try:
        fetch(url, path, check=check, progress=progress)
    except DataError as error:
        local = "use --source local, " if task.level in local_levels(task.family) else ""
        raise DataError(
            f"{error}, or set D4RL_DATASET_DIR to a folder that has {path.name} or D4RL_BASE_URL to a mirror "
            f"(https://HOST/{{file}} if all its files are in one folder), {local}"
            "or give the path of an HDF5 file as the source"
        ) from error


def sizes(task: Task) -> dict[str, Any]:
    """What `read_file` holds a file of the task to."""
    names = ("layout", "observation_dim", "action_dim", "action_low", "action_high", "n_actions", "action_start")
    return {name: getattr(task, name) for name in names}


def read_for(task: Task, path: Path, reading: Reading, *, made_here: bool = False) -> Episodes:
    """A file in D4RL's layout, held to its pin and to the task's sizes, bounds, environment and horizon."""
    if not made_here:
        check_file(path)
    options = {"clip_actions": reading.clip_actions, "max_episode_steps": reading.max_episode_steps, **sizes(task)}
    options["memory_map"] = reading.memory_map
    dataset = task.dataset if isinstance(task, LocalTask) else task.name
    episodes = read_file(path, dataset=dataset, **options)
    if isinstance(task, D4RLTask | LocalTask):
        same = same_dynamics(task.env_id) if isinstance(task, D4RLTask) else [task.env_id]
        if episodes.env_id not in (None, *same):
            raise DataError(
                f"{path}:env_id is {episodes.env_id}, {task.name} is simulated on {task.env_id}; choose the task the "
                "file was made for, or evaluate on another environment with --env-id"
            )
    else:
        episodes = arranged(task, chosen_env_id(episodes, task.env_id))
    return held_to_horizon(task, episodes)
