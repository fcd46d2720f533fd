"""What the words of a source mean: one or several, patterns of files, ids, and a name for what they hold."""

import glob
import os
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple, TypeAlias

from ...base.errors import UsageError
from ..data.files import SUFFIXES
from ..data.minari.spec import check_minari_id, minari_id, split_version
from ..tasks.environment import check_own_name
from ..tasks.names import find_task, get_task
from ..tasks.table import TASKS, D4RLTask

Source: TypeAlias = str | os.PathLike[str] | Sequence[str]

MINARI = "minari:"
OF_THE_TABLE = ("auto", "d4rl", "local")


def each(source: Source) -> list[str | os.PathLike[str]]:
    """A source, or several, as a list."""
    return [source] if isinstance(source, str | os.PathLike) else list(source)


def expand(source: Source) -> str | list[str]:
    """The sources that `source` names, with a pattern such as "logs/*.hdf5" as the sorted files that it matches.

    UsageError: a pattern matches no file, or a source is there twice.
    """
    found: list[str] = []
    for one in [os.fspath(word) for word in each(source)]:
        pattern = glob.has_magic(one) and "\0" not in one and not os.path.exists(one)
        if pattern and not (files := sorted(glob.glob(one))):
            raise UsageError(f"--source {one}: no file matches; correct the pattern")
        found += files if pattern else [one]
    twice = [one for i, one in enumerate(found) if os.path.normpath(one) in map(os.path.normpath, found[:i])]
    if twice:
        raise UsageError(f"--source {twice[0]}: is given twice, and its episodes would count twice; give it once")
    if not found:
        raise UsageError("--source: there is none; give a file or minari:ID")
    return found[0] if len(found) == 1 else found


def default_name(source: Source) -> str:
    """A name for the data of `source`: a file's name without its suffix, an id with dashes for slashes.

    Of several, it is what their names begin with in common, or else the first one's.
    """
    if not isinstance(source, str):
        names = [default_name(os.fspath(one)) for one in each(source)]
        return os.path.commonprefix(names).strip("-._") or names[0]  # noqa: RUF071  of characters
    plain = source.removeprefix(MINARI) if source.startswith(MINARI) else PurePath(source).stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-._") or "data"


class Origin(NamedTuple):
    """Where data are from: `kind` is "auto", "d4rl" or "local" for the task `name` of the table, "minari"
    for its id `name`, or "file" for the path `name`.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        """As it can be typed again."""
        return f"{MINARI}{self.name}" if self.kind == "minari" else self.name


def resolve(name: str, source: str | os.PathLike[str] = "auto") -> Origin:
    """What the task `name` and a source mean: auto, d4rl, local, minari, minari:ID, or a file's path.

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
    word = isinstance(source, str) and not {os.sep, os.altsep} & {*source} and not source.endswith(SUFFIXES)
    if word and not os.path.exists(source):
        raise UsageError(f"unknown source {text!r}; use auto, d4rl, local, minari, minari:ID or the path of a file")
    return Origin("file", text)


def is_own(source: Source, env_id: str | None, name: str = "") -> bool:
    """Whether these arguments of `load_task` mean data outside the table: files are its own under its names only."""
    sources = each(source)
    if env_id is not None or any(os.fspath(one).startswith(MINARI) for one in sources):
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
