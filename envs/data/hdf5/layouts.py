"""The layouts of HDF5 files: D4RL's flat one, d3rlpy's, and groups of one episode each, as robomimic's and Minari's."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import h5py
import numpy as np

from ....base.errors import AarenRLError, DataError
from ..assemble import KNOWN_NAMES, OBSERVATIONS, STEP_NAMES, UNUSED_PREFIXES, Table
from ..columns import ArrayColumn, Column, Tree
from .opening import Hdf5Column, place_of, plain_entry

_D3RLPY = ("observations", "actions", "rewards", "terminated")
_NUMBERED = re.compile(r"(\D*?)_?(\d{1,9})")
_INDEXED = re.compile(r"_index_(\d{1,9})")  # Minari's name for a part of a tuple


def read_tables(file: h5py.File, notes: list[str]) -> tuple[list[Table], bool]:
    """The tables of a file, and whether each is an episode; DataError: a column is a link or not of numbers."""
    if f"{_D3RLPY[0]}_0" in file or f"{_D3RLPY[0]}_0_0" in file:
        return _d3rlpy(file), True
    for parent in (file, file.get("data") if file.get("data", getclass=True) is h5py.Group else None):
        if parent is not None and (names := _episode_groups(parent)):
            groups = [plain_entry(parent, name, h5py.Group) for name in names]
            return [_last_done(_table(group), notes) for group in groups], True
    return [_table(file)], False


def _episode_groups(parent: h5py.Group) -> list[str]:
    """The names of groups of one episode each, in the order of their numbers; empty where there are none."""
    found = {name: match for name in parent if (match := _NUMBERED.fullmatch(name))}
    groups = [name for name in found if parent.get(name, getclass=True) is h5py.Group]
    if not any(key in parent[name] for name in groups[:1] for key in STEP_NAMES["actions"]):
        return []
    return sorted(groups, key=lambda name: (found[name][1], int(found[name][2])))


def _table(group: h5py.Group) -> Table:
    place, columns = place_of(group).rstrip(":"), dict[str, Tree]()
    for name in sorted(group):
        if name in STEP_NAMES[OBSERVATIONS]:
            columns[name] = read_tree(group, name)
        elif name in KNOWN_NAMES:
            columns[name] = Hdf5Column(plain_entry(group, name, h5py.Dataset, "D4RL's layout"))
        elif not name.startswith(UNUSED_PREFIXES):
            columns |= _other(group, name)
    return Table(place, columns)


def read_tree(parent: h5py.Group, name: str) -> Tree:
    """The columns of an entry, a dataset or nested groups; DataError: one is a link or not of numbers."""
    entry = plain_entry(parent, name, h5py.HLObject, "D4RL's layout")
    if isinstance(entry, h5py.Dataset):
        return Hdf5Column(entry)
    numbers = {key: match for key in entry if (match := _INDEXED.fullmatch(key))}
    if len(numbers) == len(entry):
        return [read_tree(entry, key) for key in sorted(numbers, key=lambda key: int(numbers[key][1]))]
    return {key: read_tree(entry, key) for key in entry}


def _other(group: h5py.Group, name: str) -> dict[str, Tree]:
    """A column that has no known name; {}: it cannot be one."""
    try:
        entry = plain_entry(group, name, h5py.HLObject)
    except AarenRLError:
        return {name: {}}  # it is not looked at, but the message has its name
    small = isinstance(entry, h5py.Dataset) and math.prod(entry.chunks or (1,)) <= max(entry.size, 2**16)
    return {name: Hdf5Column(entry) if small else {}}


def _d3rlpy(file: h5py.File) -> list[Table]:
    """d3rlpy's replay buffer, version 2: NAME_E of episode E, and NAME_E_K of part K of a tuple."""
    return [Table(place_of(file) + f"episode {e}", dict(_d3rlpy_columns(file, e))) for e in _episodes(file)]


def _episodes(file: h5py.File) -> range:
    claimed = file["num_episodes"][()] if "num_episodes" in file else 0
    known = sum(name.startswith("rewards_") for name in file)
    if claimed != known:
        raise DataError(f"{file.filename}: has {known:,} episodes, num_episodes counts {claimed}; dump it again")
    return range(known)


def _d3rlpy_columns(file: h5py.File, e: int) -> Iterator[tuple[str, Tree]]:
    for key in _D3RLPY:
        if f"{key}_{e}_0" in file:
            parts = itertools.takewhile(file.__contains__, (f"{key}_{e}_{part}" for part in itertools.count()))
            yield key, [Hdf5Column(plain_entry(file, name, h5py.Dataset)) for name in parts]
        else:
            yield key, Hdf5Column(plain_entry(file, f"{key}_{e}", h5py.Dataset, "d3rlpy's layout"))


def _last_done(table: Table, notes: list[str]) -> Table:
    """robomimic's `dones` may be 1 at every step at which the task is solved: the last one counts."""
    dones = table.columns.get("dones")
    if dones is None or isinstance(dones, Mapping | Sequence):
        return table
    values = dones.values().reshape(-1)
    if values[:-1].any() and not notes:
        notes.append("dones before the last step of an episode do not end it")
    last: Column = ArrayColumn(dones.place, np.array(values[-1:]))
    return Table(table.place, {**table.columns, "dones": last})
