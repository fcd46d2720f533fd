"""Loads a task and its episodes by name: a D4RL file, a local dataset, a Minari dataset or any HDF5 file."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import DataError, UsageError
from ..behavior.local_sets import LEAST_STEPS, local_levels, local_path, make_local, recipe_of
from ..tasks import arguments
from ..tasks.built_in import LocalTask
from ..tasks.environment import check_own_name, same_dynamics, unversioned
from ..tasks.names import find_task, get_task
from ..tasks.table import TASKS, D4RLTask, Reference, Task
from .download import fetch
from .episodes import Episodes
from .files import SUFFIXES, check_file, read_file
from .hdf5.d4rl import d4rl_dataset_dir, d4rl_url
from .minari.read import minari_id
from .minari.remote import installed
from .minari.spec import check_minari_id, minari_data_dir, split_version
from .ogbench import load_ogbench, ogbench_names
from .own import Environment, arranged, held_to_horizon, load_minari, settled
from .sources import MINARI, OGBENCH, Source, each

OF_THE_TABLE = ("auto", "d4rl", "local")


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
        if self.memory_map and kind in ("minari", "ogbench"):
            raise UsageError(f"--memory-map is for files: write one with aaren-rl datasets convert {kind}:ID FILE.hdf5")
        if steps is not None and kind not in ("auto", "local"):
            raise UsageError(f"--local-steps {steps} is for local datasets; leave it out, or use --source local")
        if steps is not None and steps < LEAST_STEPS:
            raise UsageError(f"--local-steps {steps}: too few for a local dataset; give at least {LEAST_STEPS:,}")


class Origin(NamedTuple):
    """Where data are from: `kind` is "auto", "d4rl" or "local" for the task `name` of the table, "minari" or "ogbench"
    for its id `name`, or "file" for the path `name`.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        """As it can be typed again."""
        return f"{self.kind}:{self.name}" if self.kind in ("minari", "ogbench") else self.name


def resolve(name: str, source: str | os.PathLike[str] = "auto") -> Origin:
    """What the task `name` and a source mean: auto, d4rl, local, minari, minari:ID, ogbench:NAME, or a file's path.

    Raises:
        UsageError: no such task or source, or not a Minari id.
    """
    text = os.fspath(source)
    if source in OF_THE_TABLE:
        if source == "d4rl" and not isinstance(get_task(name), D4RLTask):
            raise UsageError(f"{name}: D4RL has no such data, because they are made locally; leave --source out")
        return Origin(text, get_task(name).name)
    if source == "minari":
        return Origin("minari", minari_id(name))
    if isinstance(source, str) and source.startswith(MINARI):
        return Origin("minari", check_minari_id(source.removeprefix(MINARI)))
    if isinstance(source, str) and source.startswith(OGBENCH):
        ogbench_names(dataset := source.removeprefix(OGBENCH))
        return Origin("ogbench", dataset)
    word = isinstance(source, str) and not {os.sep, os.altsep} & {*source} and not source.endswith(SUFFIXES)
    if word and not os.path.exists(source):
        raise UsageError(
            f"unknown source {text!r}; use auto, d4rl, local, minari, minari:ID, ogbench:NAME or the path of a file"
        )
    return Origin("file", text)


def is_own(source: Source, env_id: str | None, name: str = "") -> bool:
    """Whether these arguments of `load_task` mean data outside the table: files are its own under its names only."""
    sources = each(source)
    if env_id is not None or any(os.fspath(one).startswith((MINARI, OGBENCH)) for one in sources):
        return True
    return not {*OF_THE_TABLE, "minari"} & {*sources} and find_task(name) is None


def task_name(name: str, source: Source, env_id: str | None) -> str:
    """The name to file a task under, which is safe as a part of a path; for the arguments of `load_task`.

    UsageError: a name that must be the table's is not, or one of your own is the table's or not fit for a path.
    """
    versions = env_id is None and all(_is_version(name, os.fspath(one)) for one in each(source))
    own = is_own(source, env_id, name) and not versions
    return check_own_name(name) if own else get_task(name).name


def _is_version(name: str, source: str) -> bool:
    """Whether `source` names a version of the data that "minari" means for the task `name`."""
    return name in TASKS and source.startswith(MINARI) and split_version(source)[0] == f"{MINARI}{minari_id(name)}"


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
    if origin.kind in ("minari", "ogbench"):
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
    return replace(_read(task, path, reading, made_here=kind == "local"), source=kind)


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
    check = partial(_read, task, reading=Reading(clip_actions=True, max_episode_steps=task.horizon))
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


def _read(task: Task, path: Path, reading: Reading, *, made_here: bool = False) -> Episodes:
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


def chosen_env_id(episodes: Episodes, env_id: str | None, *, same_dynamics_only: bool = False) -> Episodes:
    """Data of a file whose environment the user has named, often a newer version than the file's: with a note.

    UsageError: both are robots of D4RL, of which two have the same sizes, and not the same one, or with
    `same_dynamics_only` not the same dynamics.
    """
    there = episodes.env_id
    if env_id is None or there in (None, env_id):
        return episodes
    ours = {unversioned(there), unversioned(env_id)}
    other = len(ours) > 1 or (same_dynamics_only and there not in same_dynamics(env_id))
    if other and ours <= {unversioned(task.env_id) for task in TASKS.values()}:
        raise UsageError(f"--env-id {env_id}: {episodes.path} was recorded on {there}; leave --env-id out")
    note = f"the file names the environment {there}; {env_id} is used, whose sizes and bounds fit"
    return replace(episodes, env_id=env_id, notes=(*episodes.notes, note))


def load_task(
    name: str,
    source: str | os.PathLike[str] = "auto",
    *,
    env_id: str | None = None,
    env_kwargs: str | Mapping[str, Any] | None = None,
    reference: Reference | None = None,
    clip_actions: bool = False,
    max_episode_steps: int | None = None,
    local_steps: int | None = None,
    progress: bool = True,
    memory_map: bool = False,
    settle: bool = True,
) -> tuple[Task, Episodes]:
    """A task and its data; unless `settle`, what data decide of it is left open for `own.settled`.

    `source` is one of `load_episodes`' for a name of the table; "minari": Minari's dataset for that name, scored in the
    environment that it was recorded on; "minari:ID": any Minari dataset, under a name of your own; "ogbench:NAME": a
    single-task set of OGBench's; or the path of a file that was recorded in your own environment `env_id`, made with
    `env_kwargs`, a mapping or JSON; without one, its spaces are the data's, and its task has an empty `env_id`. Of your
    own, `reference` gives the returns that score 0 and 100 (default: the Minari dataset's, if any), and the target
    return is the data's best. `memory_map` maps a file's observations and actions from the disk.

    Raises:
        UsageError: `env_id` without a file, `reference` or `env_kwargs` for a task of the table, or `env_kwargs`
            without an environment.
        AarenRLError: as `load_episodes`, `read_minari` and `own_task`.
    """
    name = task_name(name, source, env_id)
    own = is_own(source, env_id, name) or source == "minari"
    if reference is not None and not own:
        raise UsageError(f"{name} has reference returns; give others with --env-id or a Minari dataset")
    try:
        kwargs = arguments.env_kwargs(env_kwargs)
    except ValueError as error:
        raise UsageError(f"--env-kwargs: {error}") from error
    if kwargs and not own:
        raise UsageError(f"--env-kwargs: {name} is simulated as D4RL's is; give them with --env-id or a Minari dataset")
    if env_id is not None and source in OF_THE_TABLE:
        raise UsageError(f"--env-id {env_id} needs a dataset: --source PATH of an HDF5 file in D4RL's layout")
    origin = resolve(name, source)
    reading = Reading(clip_actions, max_episode_steps, local_steps, progress, memory_map)
    reading.check_kind(origin.kind)
    limit = max_episode_steps
    given = Environment(env_id=env_id, env_kwargs=kwargs, max_episode_steps=limit, reference=reference)
    if not own:
        return get_task(name), load_of_table(get_task(name), origin, reading)
    if origin.kind == "minari":
        task, episodes = load_minari(name, origin.name, given, clip_actions=clip_actions, progress=progress)
    elif origin.kind == "ogbench":
        if kwargs:
            raise UsageError("--env-kwargs: OGBench's environments are made as its data were; leave it out")
        cut: dict[str, Any] = {"max_episode_steps": limit, "clip_actions": clip_actions, "progress": progress}
        task, episodes = load_ogbench(name, origin.name, env_id=env_id, reference=reference, **cut)
    else:
        task, episodes = _load_file(name, Path(origin.name), given, reading)
    if settle:
        task, episodes = settled(task, episodes)
    targets = TASKS[name].target_returns if name in TASKS else (float(episodes.returns.max()),)
    return replace(task, target_returns=targets), episodes


def _load_file(name: str, path: Path, given: Environment, reading: Reading) -> tuple[Task, Episodes]:
    if given.env_id is not None:
        task = given.task(name, given.env_id)
        return task, _read(task, path, reading)
    check_file(path)
    any_actions: dict[str, Any] = {"action_low": -np.inf, "action_high": np.inf}
    any_actions |= {"memory_map": reading.memory_map, "max_episode_steps": reading.max_episode_steps}
    episodes = read_file(path, dataset=name, **any_actions)
    return given.without(name, episodes), episodes
