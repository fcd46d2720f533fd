"""HDF5 files to columns, in D4RL's layout and in those of d3rlpy, robomimic and Minari; writing D4RL's.

Nothing but the file itself is read: links to other files, virtual datasets and external storage are errors.
"""

import io
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ...base.errors import DataError, one_line
from ...base.files import write_whole
from ..tasks.spaces import Layout, checked_layout, flat_size
from ..tasks.table import D4RL_SERVER, D4RLTask
from .assemble import Limits, assemble
from .columns import CONVERT, MEANING, NAMES, UNUSED_PREFIXES, Column, Table, Tree
from .download import file_url
from .episodes import Episodes

_D3RLPY = ("observations", "actions", "rewards", "terminated")
_NUMBERED = re.compile(r"(\D*?)_?(\d{1,9})")
_INDEXED = re.compile(r"_index_(\d{1,9})")  # Minari's name for a part of a tuple
_SPACE = "observation_space"  # attribute: the layout of observations that were dicts or tuples, as JSON
_PACKED = ("scale_factor", "add_offset", "_FillValue", "missing_value")  # netCDF's
_DEPTH = 16

# What h5py raises on a file whose structure is damaged depends on where the damage is.
_HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)


def read_hdf5(path: str | os.PathLike[str], *, dataset: str | None = None, **limits: Any) -> Episodes:  # noqa: ANN401
    """Read an HDF5 file: observations (N, O), actions (N, A), rewards, terminals and timeouts (N,), as in D4RL's.

    A group of observations is laid side by side, as Gymnasium flattens a dict. Integers as actions, (N,) or (N, 1), are
    discrete. The attribute "observation_space" names the parts of flat observations that were dicts or tuples. Ends of
    episodes, their numbers and lengths may have the names of `columns.NAMES`. Files of d3rlpy and robomimic, whose
    episodes are apart, are read, too. `limits` are the fields of `assemble.Limits`.

    Real numbers become float32. Episodes end where a flag is set, and after `max_episode_steps` at the latest. An
    unfinished last one is left out, with a note, as are D4RL Ant's 84 zero columns where `observation_dim` is 27.

    Raises:
        DataError: the file is missing, damaged, of another layout or size, or as `assemble`.
        UsageError: `max_episode_steps` is less than 1.
    """
    path, held, notes = Path(path), Limits(**limits), list[str]()
    with open_hdf5(path) as file:
        tables, one_each = read_tables(file, notes)
        notes += [f"{name}: {text}" for name in ("origin", "policy") if (text := _text(file, name)) is not None]
        fields = assemble(
            tables,
            held,
            path=str(path),
            way_out=f"use a file in D4RL's layout, or convert it: {CONVERT}",
            one_each=one_each,
            dataset=dataset or path.stem,
            env_id=_text(file, "env_id"),
            notes=tuple(notes),
        )
        if _SPACE in file.attrs:
            fields["layout"] = _read_layout(path, file.attrs[_SPACE], fields["observations"].shape[1])
        return Episodes(**fields)


def read_env_id(path: Path) -> str | None:
    """The environment that a file names; raises DataError if it cannot be read."""
    with open_hdf5(path) as file:
        return _text(file, "env_id")


def _text(file: h5py.File, name: str) -> str | None:
    value = file.attrs.get(name)
    value = value.decode(errors="replace") if isinstance(value, bytes) else value
    return one_line(value) if isinstance(value, str) else None  # it ends up in messages


def _read_layout(path: Path, text: object, columns: int) -> Layout:
    try:
        layout = checked_layout(json.loads(str(text)))
        if flat_size(layout) != columns:
            raise ValueError(f"are {flat_size(layout)} numbers")
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}:{_SPACE} does not describe the {columns} columns of observations: they {one_line(error)}; delete "
            "the attribute"
        ) from error
    return layout


def d4rl_dataset_dir() -> Path:
    """Where D4RL keeps its files: `$D4RL_DATASET_DIR`, else `~/.d4rl/datasets`, as the d4rl package does."""
    return Path(os.environ.get("D4RL_DATASET_DIR") or os.path.expanduser("~/.d4rl/datasets"))


def d4rl_url(task: D4RLTask) -> str:
    """Where a task's file is fetched from: `gym_mujoco_v2/FILE` of D4RL's server, or of the mirror `$D4RL_BASE_URL`.

    The mirror may be a pattern, as in `file_url`, of {file} and {family}; UsageError: it is neither that nor a base.
    """
    return file_url("D4RL_BASE_URL", D4RL_SERVER, "gym_mujoco_v2/{file}", file=task.d4rl_file, family=task.family)


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open a file for reading; every failure in the body that comes from a damaged file becomes a DataError."""
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise DataError(f"{path}: {what}; check the path, or get the file and put it there")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty (0 bytes), so its download or copy did not finish; get it again")
    try:
        # Clusters mount data where file locks do not exist, and nothing here writes. Every chunk is read once and as a
        # whole, so a cache of chunks would serve nothing; with it, a million steps took 24 MiB more.
        with h5py.File(path, "r", locking="best-effort", rdcc_nbytes=0) as file:
            yield file
    except PermissionError as error:
        raise DataError(f"{path}: no permission to read it; change the file's mode or owner") from error
    except _HDF5_ERRORS as error:
        reason = one_line(error)
        if "lock" in reason or "already open" in reason:
            raise DataError(f"{path}: another program is writing it ({reason}); read it when that is done") from error
        cause = "the file is truncated" if "truncated" in reason else "not a readable HDF5 file"
        raise DataError(f"{path}: {cause} ({reason}); get the file again, or make it again") from error


def read_tables(file: h5py.File, notes: list[str]) -> tuple[list[Table], bool]:
    """The tables of a file, and whether each is an episode; DataError: a column is a link or not of numbers."""
    if f"{_D3RLPY[0]}_0" in file or f"{_D3RLPY[0]}_0_0" in file:
        return _d3rlpy(file), True
    inner = plain_entry(file, "data") if "actions" not in file and "data" in file else None  # robomimic's
    for parent in (file, inner) if isinstance(inner, h5py.Group) else (file,):
        if groups := _episode_groups(parent):
            tables = [_table(group) for group in groups]
            return [_last_done(table, notes) for table in tables] if parent is not file else tables, True
    return [_table(file)], False


def _episode_groups(parent: h5py.Group) -> list[h5py.Group]:
    """The groups of one episode each, in the order of their numbers; empty where there are none."""
    found = {name: match for name in parent if (match := _NUMBERED.fullmatch(name))}
    names = sorted(found, key=lambda name: (found[name][1], int(found[name][2])))
    groups = [(name, group) for name in names if isinstance(group := plain_entry(parent, name), h5py.Group)]
    if not any(key in group for _, group in groups[:1] for key in NAMES["actions"]):
        return []
    return [group for _, group in groups]


def read_episode(file: h5py.File, name: str, keys: Sequence[str]) -> Table:
    """The arrays of the episode that a group holds, in Minari's layout; DataError: one is missing, a link, ..."""
    group = plain_entry(file, name)
    if not isinstance(group, h5py.Group):
        raise DataError(f"{place_of(group)} is no group; use a file in Minari's layout")
    return Table(place_of(group), {key: read_tree(group, key) for key in keys})


def _table(group: h5py.Group) -> Table:
    place, columns = place_of(group).rstrip(":"), dict[str, Tree]()
    for name in sorted(group):
        if name in MEANING:
            columns[name] = read_tree(group, name)
        elif not name.startswith(UNUSED_PREFIXES):
            columns[name] = _other(group, name)
    return Table(place, columns)


def read_tree(parent: h5py.Group, name: str, depth: int = _DEPTH) -> Tree:
    """The columns of an entry, a dataset or nested groups; DataError: one is a link or not of numbers."""
    entry = plain_entry(parent, name)
    if isinstance(entry, h5py.Dataset):
        return _column(entry)
    if not depth:
        raise DataError(f"{place_of(entry)}: is nested more than {_DEPTH} levels deep; store arrays")
    numbers = {key: match for key in entry if (match := _INDEXED.fullmatch(key))}
    if len(numbers) == len(entry):
        ordered = sorted(numbers, key=lambda key: int(numbers[key][1]))
        return [read_tree(entry, key, depth - 1) for key in ordered]
    return {key: read_tree(entry, key, depth - 1) for key in entry}


def _column(data: h5py.Dataset) -> Column:
    """A dataset as a column; netCDF's packed numbers are unpacked, and NaN where nothing was filled in."""
    place, packed = place_of(data), {name: data.attrs[name] for name in _PACKED if name in data.attrs}
    if all(name not in _PACKED[:2] and not np.isfinite(value).all() for name, value in packed.items()):
        return Column(place, data)
    stored = data[()]
    values = stored * np.float64(packed.get("scale_factor", 1)) + np.float64(packed.get("add_offset", 0))
    for name in _PACKED[2:]:
        values[np.isin(stored, packed.get(name, []))] = np.nan
    return Column(place, values)


def _other(group: h5py.Group, name: str) -> Tree:
    """A column that has no known name; {}: it cannot be one, or is too large for one number a step."""
    try:
        entry = plain_entry(group, name)
    except DataError:
        return {}  # it is not looked at, but the message has its name
    return Column(place_of(entry), entry) if isinstance(entry, h5py.Dataset) else {}


def _d3rlpy(file: h5py.File) -> list[Table]:
    """d3rlpy's replay buffer, version 2: NAME_E of episode E, and NAME_E_K of part K of a tuple."""
    claimed, known = 0, sum(name.startswith("rewards_") for name in file)
    if "num_episodes" in file and (counted := plain_entry(file, "num_episodes")).shape in ((), (1,)):
        claimed = int(np.ravel(counted[()])[0])
    if claimed != known:
        raise DataError(f"{file.filename}: has {known:,} episodes, num_episodes counts {claimed}; dump it again")
    return [Table(place_of(file) + f"episode {e}", dict(_d3rlpy_columns(file, e))) for e in range(known)]


def _d3rlpy_columns(file: h5py.File, e: int) -> Iterator[tuple[str, Tree]]:
    for key in _D3RLPY:
        if f"{key}_{e}_0" in file:
            parts = itertools.takewhile(file.__contains__, (f"{key}_{e}_{part}" for part in itertools.count()))
            yield key, [read_tree(file, name) for name in parts]
        else:
            yield key, read_tree(file, f"{key}_{e}")


def _last_done(table: Table, notes: list[str]) -> Table:
    """robomimic's `dones` may be 1 at every step at which the task is solved: the last one counts."""
    dones, rewards = table.columns.get("dones"), table.columns.get("rewards")
    if not isinstance(dones, Column) or not isinstance(rewards, Column) or dones.shape[:1] != rewards.shape[:1]:
        return table
    values = dones.values().reshape(-1)
    if values[:-1].any():
        notes[:] = [*dict.fromkeys([*notes, "dones before the last step of an episode do not end it"])]
    return Table(table.place, {**table.columns, "dones": Column(dones.place, np.array(values[-1:]))})


def plain_entry(parent: h5py.Group, key: str) -> h5py.HLObject:
    """The group, or the dataset of real numbers, `key` of `parent`, which must lie in the file itself.

    DataError: it is missing, a link, virtual, stored outside the file, or not of numbers.
    """
    place, use = place_of(parent, key), "use a file in D4RL's layout"
    link = parent.get(key, getlink=True)  # which follows nothing
    if link is None:
        found = ", ".join(ascii(name) for name in sorted(parent)[:20]) or "nothing"
        raise DataError(f"{': missing '.join(place.rsplit(':', 1))} (found: {found}); {use}")
    if not isinstance(link, h5py.HardLink):
        which = "an external link" if isinstance(link, h5py.ExternalLink) else "a soft link"
        raise DataError(f"{place} is {which}; copy the data into the file itself")
    entry = parent[key]
    if isinstance(entry, h5py.Group):
        return entry
    if not isinstance(entry, h5py.Dataset):
        raise DataError(f"{place} is a {type(entry).__name__.lower()}, not a dataset; {use}")
    if entry.is_virtual or entry.external:
        where = "a virtual dataset" if entry.is_virtual else "kept in external storage"
        raise DataError(f"{place} is {where}, so its data are in other files; copy them into the file itself")
    if entry.dtype.kind not in "biuf" or entry.shape is None:
        raise DataError(f"{place} holds {entry.dtype}, not real numbers; {use}")
    return entry


def place_of(entry: h5py.HLObject, key: str = "") -> str:
    """An entry, or `key` inside it, as a message has it: FILE:NAME."""
    return f"{entry.file.filename}:{f'{entry.name}/{key}'.strip('/')}"


def write_hdf5(path: str | os.PathLike[str], episodes: Episodes, attrs: Mapping[str, str | int | float]) -> None:
    """Write episodes in D4RL's layout, gzip-compressed, with `attrs` on the root group; complete or not at all.

    The last step of an episode is marked in `terminals` where the environment ended it, in `timeouts` where not.
    OSError: the disk is full or the folder cannot be written; nothing is left behind.
    """
    arrays: dict[str, npt.NDArray[Any]] = {key: getattr(episodes, key) for key in _D3RLPY[:3]}
    for key, ended in (("terminals", episodes.terminated), ("timeouts", ~episodes.terminated)):
        arrays[key] = np.zeros(episodes.n_steps, dtype=np.bool_)
        arrays[key][episodes.offsets[1:] - 1] = ended
    # Built in memory: a full disk then fails in a plain write, where HDF5 would fail again in every later call.
    image = io.BytesIO()
    with h5py.File(image, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array, compression="gzip", compression_opts=4)
        file.attrs.update(attrs)
        if episodes.layout is not None:
            file.attrs[_SPACE] = json.dumps(episodes.layout)
    write_whole(Path(path), image.getbuffer())
