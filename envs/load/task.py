"""A task and its data: one source, or several that are one dataset."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.errors import DataError, UsageError
from ..data.episodes import Episodes
from ..data.files import check_file, read_file
from ..data.storage import allocate
from ..tasks import arguments
from ..tasks.names import get_task
from ..tasks.table import TASKS, Reference, Task
from .own import Environment, load_minari, settled
from .sources import OF_THE_TABLE, Source, expand, is_own, resolve, task_name
from .table import Reading, load_of_table, read_for

_STEPS = ("observations", "actions", "rewards", "terminated")
_SAME = ("env_id", "observation_dim", "layout", "action_dim", "n_actions", "action_start", "action_low", "action_high")


def load_task(
    name: str,
    source: Source = "auto",
    *,
    env_id: str | None = None,
    env_kwargs: str | Mapping[str, Any] | None = None,
    reference: Reference | None = None,
    clip_actions: bool = False,
    max_episode_steps: int | None = None,
    local_steps: int | None = None,
    progress: bool = True,
    memory_map: bool = False,
) -> tuple[Task, Episodes]:
    """A task and its data, of one source or of several that are one dataset, with their sizes on stderr.

    A source is one of `load_episodes`' for a name of the table; "minari": Minari's dataset for that name, scored in the
    environment that it was recorded on; "minari:ID": any Minari dataset, under a name of your own; or the path of a
    file that was recorded in your own environment `env_id`, made with `env_kwargs`, a mapping or JSON; without one, its
    spaces are the data's, and its task has an empty `env_id`. Of your own, `reference` gives the returns that score 0
    and 100 (default: the Minari dataset's, if any), and the target
    return is the data's best. `memory_map` maps a file's observations and actions from the disk.

    Raises:
        UsageError: as `expand`; or `env_id` without a file, `reference` or `env_kwargs` for a task of the table, or
            `env_kwargs` without an environment.
        DataError: the sources are of different environments.
        AarenRLError: as `load_episodes`, `read_minari` and `own_task`.
    """
    try:
        kwargs = arguments.env_kwargs(env_kwargs)
    except ValueError as error:
        raise UsageError(f"--env-kwargs: {error}") from error
    limit = max_episode_steps
    given = Environment(env_id=env_id, env_kwargs=kwargs, max_episode_steps=limit, reference=reference)
    reading = Reading(clip_actions, limit, local_steps, progress, memory_map)
    sources = source if isinstance(source, os.PathLike) else expand(source)
    if isinstance(sources, str | os.PathLike):
        return settled(*_load(name, sources, given, reading))
    tasks: list[Task] = []
    parts: list[Episodes] = []
    for one in sources:
        task, episodes = _load(name, one, given, reading)
        print(f"{one}: {len(episodes):,} episodes, {episodes.n_steps:,} steps", file=sys.stderr)
        for key in _SAME:
            if tasks and (found := getattr(task, key)) != (first := getattr(tasks[0], key)):
                raise DataError(
                    f"{one}: {key} is {found}, that of {sources[0]} is {first}; give sources of one environment"
                )
        tasks.append(task)
        parts.append(episodes)
    targets = tasks[0].target_returns
    if len(targets) == 1:  # the data's best
        targets = (max(target for task in tasks for target in task.target_returns),)
    return settled(replace(tasks[0], target_returns=targets), _joined(name, parts))


def _load(name: str, source: str | os.PathLike[str], given: Environment, reading: Reading) -> tuple[Task, Episodes]:
    """The data of one source and their task, in which `settled` fills in what only data say."""
    name = task_name(name, source, given.env_id)
    own = is_own(source, given.env_id, name) or source == "minari"
    if given.reference is not None and not own:
        raise UsageError(f"{name} has reference returns; give others with --env-id or a Minari dataset")
    if given.env_kwargs and not own:
        raise UsageError(f"--env-kwargs: {name} is simulated as D4RL's is; give them with --env-id or a Minari dataset")
    if given.env_id is not None and source in OF_THE_TABLE:
        raise UsageError(f"--env-id {given.env_id} needs a dataset: --source PATH of an HDF5 file in D4RL's layout")
    origin = resolve(name, source)
    reading.check_kind(origin.kind)
    if not own:
        return get_task(name), load_of_table(get_task(name), origin, reading)
    clip_actions, progress = reading.clip_actions, reading.progress
    if origin.kind == "minari":
        task, episodes = load_minari(name, origin.name, given, clip_actions=clip_actions, progress=progress)
    else:
        task, episodes = _load_file(name, Path(origin.name), given, reading)
    targets = TASKS[name].target_returns if name in TASKS else (float(episodes.returns.max()),)
    return replace(task, target_returns=targets), episodes


def _load_file(name: str, path: Path, given: Environment, reading: Reading) -> tuple[Task, Episodes]:
    if given.env_id is not None:
        task = given.task(name, given.env_id)
        return task, read_for(task, path, reading)
    check_file(path)
    any_actions: dict[str, Any] = {"action_low": -np.inf, "action_high": np.inf}
    any_actions |= {"memory_map": reading.memory_map, "max_episode_steps": reading.max_episode_steps}
    episodes = read_file(path, dataset=name, **any_actions)
    return given.without(name, episodes), episodes


def _end_to_end(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    rows, mapped = sum(map(len, arrays)), any(isinstance(array, np.memmap) for array in arrays)
    joined = allocate((rows, *arrays[0].shape[1:]), np.result_type(*arrays), mapped)
    return np.concatenate(arrays, out=joined)


def _joined(name: str, parts: Sequence[Episodes]) -> Episodes:
    steps: dict[str, Any] = {key: _end_to_end([getattr(part, key) for part in parts]) for key in _STEPS}
    starts = np.cumsum([0, *(part.n_steps for part in parts)])
    ends = [part.offsets[1:] + start for part, start in zip(parts, starts[:-1], strict=True)]
    kinds, env_ids = ({getattr(part, key) for part in parts} for key in ("source", "env_id"))
    return replace(
        parts[0],
        **steps,
        offsets=np.concatenate([[0], *ends]),
        dataset=name,
        source=kinds.pop() if len(kinds) == 1 else "file",
        path=", ".join(part.path for part in parts),
        env_id=env_ids.pop() if len(env_ids) == 1 else parts[0].env_id,
        notes=tuple(dict.fromkeys(f"{os.path.basename(part.path)}: {note}" for part in parts for note in part.notes)),
    )
