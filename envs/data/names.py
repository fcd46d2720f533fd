"""What the user names: where data are from, under which name their task is filed, and how they are read."""

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NamedTuple

from ..behaviour.local_sets import LEAST_STEPS, local_path
from ..errors import UsageError
from ..tasks.own import check_own_name
from ..tasks.table import D4RLTask, get_task
from .hdf5.d4rl import d4rl_dataset_dir
from .minari.read import MINARI_LEVELS, minari_id
from .minari.spec import check_minari_id, minari_data_file

OF_THE_TABLE = ("auto", "d4rl", "local")
_MINARI = "minari:"


@dataclass(frozen=True)
class Reading:
    """How data are read, wherever they are from.

    `clip_actions` and `max_episode_steps` are for data whose actions are out of bounds or whose ends are not marked,
    `local_steps` is the size of a local set (None: its recipe's), `progress` shows bars on stderr.
    """

    clip_actions: bool = False
    max_episode_steps: int | None = None
    local_steps: int | None = None
    progress: bool = True

    def check_kind(self, kind: str) -> None:
        """Raises UsageError where data of this kind (`Origin.kind`) have no number of steps to ask for, or of fewer."""
        if self.local_steps is not None and kind not in ("auto", "local"):
            raise UsageError(f"--local-steps {self.local_steps} is for local sets; leave it out, or use --source local")
        if self.local_steps is not None and self.local_steps < LEAST_STEPS:
            raise UsageError(
                f"--local-steps {self.local_steps}: too few for a local set; give at least {LEAST_STEPS:,}"
            )


class Origin(NamedTuple):
    """Where data are from: `kind` is "auto", "d4rl" or "local" for the task `name` of the table, "minari" for the
    Minari id `name`, or "file" for the path `name`.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        """As it can be typed again."""
        return f"{_MINARI}{self.name}" if self.kind == "minari" else self.name


def resolve(name: str, source: str | os.PathLike[str] = "auto") -> Origin:
    """What the task `name` and a source mean: auto, d4rl, local, minari, minari:ID, or the path of an HDF5 file.

    Raises:
        UnknownTaskError: the source is one of the table's, and the name is no task.
        UsageError: no such source, or not a Minari id.
        DataError: Minari has no such dataset.
    """
    if source in OF_THE_TABLE:
        return Origin(str(source), get_task(name).name)
    if source == "minari":
        return Origin("minari", minari_id(name))
    if isinstance(source, str) and source.startswith(_MINARI):
        return Origin("minari", check_minari_id(source.removeprefix(_MINARI)))
    if is_path(source):
        return Origin("file", os.fspath(source))
    raise UsageError(f"unknown source {os.fspath(source)!r}; use auto, d4rl, local, minari or a path to an HDF5 file")


def is_path(source: str | os.PathLike[str]) -> bool:
    """Whether a source means a file, rather than a word like "local"."""
    if not isinstance(source, str):
        return True
    separators = [mark for mark in (os.sep, os.altsep) if mark]
    return any(mark in source for mark in separators) or source.endswith((".hdf5", ".h5")) or os.path.exists(source)


def is_own(source: str, env_id: str | None) -> bool:
    """Whether these arguments of `load_task` mean data outside the table."""
    return env_id is not None or source.startswith(_MINARI)


def task_name(name: str, source: str, env_id: str | None) -> str:
    """The name to file a task under, which is safe as a part of a path; for the arguments of `load_task`.

    Raises:
        UnknownTaskError: a name that must be the table's is not.
        UsageError: a name that must be your own is the table's, or not fit for a path.
    """
    return check_own_name(name) if is_own(source, env_id) else get_task(name).name


def default_name(source: str) -> str:
    """A name for the data of `source`: a file's name without its suffix, a Minari id with dashes for slashes."""
    plain = source.removeprefix(_MINARI) if source.startswith(_MINARI) else PurePath(source).stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-._") or "data"


def data_files(task: D4RLTask, local_steps: int | None = None) -> dict[str, Path]:
    """The file of each source that a task has ("d4rl", "local", "minari"), whether it is there or not."""
    files = {"d4rl": d4rl_dataset_dir() / task.d4rl_file, "local": local_path(task, local_steps)}
    if task.level in MINARI_LEVELS:
        files["minari"] = minari_data_file(minari_id(task.name))
    return files
