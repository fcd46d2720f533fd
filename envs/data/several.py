"""Several sources as one dataset, in the order in which they are given."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.errors import DataError
from ..tasks.table import Task
from . import load
from .episodes import Episodes
from .own import settled
from .sources import Source, expand
from .storage import allocate

_STEPS = ("observations", "actions", "rewards", "terminated")
_SAME = ("env_id", "observation_dim", "layout", "action_dim", "n_actions", "action_start", "action_low", "action_high")


def load_task(
    name: str,
    source: Source = "auto",
    *,
    env_id: str | None = None,
    **options: Any,  # noqa: ANN401  those of `load.load_task`
) -> tuple[Task, Episodes]:
    """`load.load_task` of one source, or of several that are one dataset, with their sizes on stderr.

    Raises:
        DataError: the sources are of different environments; or as `load.load_task`.
        UsageError: as `expand` and `load.load_task`.
    """
    sources = source if isinstance(source, os.PathLike) else expand(source)
    if isinstance(sources, str | os.PathLike):
        return load.load_task(name, sources, env_id=env_id, **options)
    tasks: list[Task] = []
    parts: list[Episodes] = []
    for one in sources:
        task, episodes = load.load_task(name, one, env_id=env_id, settle=False, **options)
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
    joined = _joined(name, parts)
    own = load.is_own(sources, env_id, name)
    return settled(replace(tasks[0], target_returns=targets), joined) if own else (tasks[0], joined)


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
