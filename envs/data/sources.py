"""Words that name data: one source or several, patterns of files, and a name for what they hold."""

import glob
import os
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import TypeAlias

from ...base.errors import UsageError

Source: TypeAlias = str | os.PathLike[str] | Sequence[str]

MINARI, OGBENCH = "minari:", "ogbench:"


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
    begin = next((begin for begin in (MINARI, OGBENCH) if source.startswith(begin)), None)
    plain = PurePath(source).stem if begin is None else source.removeprefix(begin)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-._") or "data"
