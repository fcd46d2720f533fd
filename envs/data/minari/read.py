"""Minari datasets to episodes: fetched by minari's client, read here after the checks of any foreign file."""

import math
import os
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from tqdm import tqdm

from ....base.errors import DataError
from ....base.files import alone, sha256
from ....base.system import sync
from ...tasks.spaces import flat_size, is_vector
from .. import columns
from ..assemble import Limits, Table, assemble
from ..columns import Tree, columns_of
from ..download import write_pin
from ..episodes import Episodes
from ..hdf5 import opening
from ..hdf5.layouts import read_tree
from ..hdf5.opening import Hdf5Column
from .remote import cause_of, choose_version, remote_name
from .spec import WAY_OUT, MinariSpec, minari_data_dir, read_spec

_LAYOUT = "Minari's layout"
_AGAIN = "the dataset is damaged, get it again"
_FLAGS = ("terminations", "truncations")
_KEYS = ("rewards", "observations", "actions", *_FLAGS)


class MinariData(NamedTuple):
    """A Minari dataset: its episodes, and what it says of itself and of their environment."""

    episodes: Episodes
    spec: MinariSpec


def read_minari(
    dataset_id: str, *, progress: bool = True, clip_actions: bool = False, plays: bool = True
) -> MinariData:
    """Read a Minari dataset, e.g. "mujoco/hopper/medium-v0"; without a version the latest, as in `choose_version`.

    Where it is not in `$MINARI_DATASETS_PATH`, else `~/.minari/datasets`, `minari` fetches it from its remote
    (`$MINARI_REMOTE`, by default Hugging Face). Numbers become float32. Of the T + 1 observations of an episode of T
    steps the last is left out, as is an unfinished last episode, with a note. Actions must lie in the dataset's own
    action space. `progress` shows bars. What it names is never imported; where its environment cannot be played here
    that is an error only if it `plays`.

    Raises:
        UsageError: not a Minari id.
        DataError: the dataset is not there and cannot be fetched; is damaged, changed or not in Minari's HDF5 layout;
            describes what `read_spec` refuses; or holds NaN, infinity, actions out of bounds (unless `clip_actions`)
            or no complete episode.
    """
    dataset_id = choose_version(dataset_id)
    folder = minari_data_dir(dataset_id)
    if not folder.exists():
        _fetch(dataset_id, folder.parent, progress)
    data = _read(dataset_id, folder, progress, clip_actions)
    if plays and data.spec.recorded is not None and data.spec.recorded.problem is not None:
        raise DataError(data.spec.recorded.problem)
    return data


def _fetch(dataset_id: str, target: Path, progress: bool) -> None:
    """Fetch a dataset, by one process at a time: beside its place, where a later call goes on after a break; checked,
    pinned in `main_data.hdf5.sha256`, and only then renamed.
    """
    with alone(target, "downloading", WAY_OUT):
        if target.exists():  # another process has fetched it meanwhile
            return
        print(f"{dataset_id}: downloading from {remote_name()} to {target}", file=sys.stderr)
        # Minari does not list hidden folders.
        staging = target.with_name(f".{target.name}.part")
        data = staging / dataset_id / "data"
        if reason := _download(dataset_id, staging, progress):
            raise DataError(
                f"{dataset_id}: minari could not download it ({reason}); check the id and the network, name another "
                f"remote in MINARI_REMOTE, or put the dataset's folder at {target}"
            )
        file = data / "main_data.hdf5"
        try:
            _read(dataset_id, data, progress, clip_actions=True)
        except DataError as error:
            shutil.rmtree(staging)
            reason = str(error).replace(str(data.parent), target.name)
            raise DataError(f"{dataset_id}: the downloaded dataset was deleted: {reason}") from error
        sync(file)
        write_pin(file, sha256(file))
        os.replace(data.parent, target)
        sync(target.parent)
        shutil.rmtree(staging)


def _download(dataset_id: str, folder: Path, progress: bool) -> str | None:
    """Have minari's client put a dataset into `folder`; it loads nothing. Returns why that failed."""
    from huggingface_hub import utils  # on demand, as it takes half a second
    from minari.storage.remotes import get_cloud_storage

    hub: Any = utils  # its functions are not exported by name
    shown, level = not hub.are_progress_bars_disabled(), hub.logging.get_verbosity()
    hub.logging.set_verbosity_error()
    if not progress:
        hub.disable_progress_bars()
    try:
        get_cloud_storage().download_dataset(dataset_id, folder)
    except Exception as error:  # the clients of minari's remotes raise errors of their own
        return cause_of(error)
    finally:
        hub.logging.set_verbosity(level)
        if shown:
            hub.enable_progress_bars()
    return None if (folder / dataset_id).exists() else "the remote has no such dataset"


def _read(dataset_id: str, folder: Path, progress: bool, clip_actions: bool) -> MinariData:
    path = folder / "main_data.hdf5"
    opening.check_file(path)
    spec = read_spec(folder / "metadata.json")
    bounds = (spec.action_low, spec.action_high) if spec.action_low and spec.action_high else (-np.inf, np.inf)
    limits = Limits(
        layout=spec.layout,
        action_dim=None if spec.action_low is None else len(spec.action_low),
        action_low=bounds[0],
        action_high=bounds[1],
        n_actions=spec.n_actions,
        action_start=spec.action_start,
        clip_actions=clip_actions,
    )
    with opening.open_hdf5(path) as file:
        # No bar for what takes less than a second.
        numbers = tqdm(range(len(file)), dataset_id, unit="episode", delay=1, leave=False, disable=not progress)
        tables = [_table(opening.plain_entry(file, f"episode_{e}", h5py.Group, _LAYOUT)) for e in numbers]
        columns.check_size(
            (column for table in tables for tree in table.columns.values() for column in columns_of(tree)), path
        )
        marked = [_with_flags(table) for table in tables]
        tables, ended = [table for table, _ in marked], [has_end for _, has_end in marked]
        unfinished = [] if ended.pop() else [tables.pop()]
        if not tables:
            raise DataError(f"{path}: its only episode is unfinished: neither terminated nor truncated; use more data")
        (first,) = columns_of(tables[0].columns["actions"])
        for table in tables:
            _check_widths(table, limits, discrete=columns.is_discrete(first))
        labels: dict[str, Any] = {"dataset": dataset_id, "source": "minari", "env_id": spec.env_id}
        fields = assemble(tables, limits, path=str(path), file=path, way_out=_AGAIN, one_each=True, **labels)
        dropped = sum(_steps(table) for table in unfinished)
    if (total := len(fields["rewards"]) + dropped) != spec.total_steps:
        raise DataError(f"{path}: has {total:,} steps, metadata.json counts {spec.total_steps:,}; {_AGAIN}")
    notes = [*spec.notes]
    if unfinished:
        notes.append(f"dropped {dropped:,} steps of an unfinished last episode")
    if n_open := ended.count(False):  # it ended where the next one began
        notes.append(f"treated {n_open:,} episodes without a mark at their end as truncated")
    fields |= {"layout": spec.unflat, "notes": (*notes, *fields["notes"])}
    return MinariData(Episodes(**fields), spec)


def _table(group: h5py.Group) -> Table:
    """The arrays of an episode; DataError: one is missing, a link or not of numbers."""
    found: dict[str, Tree] = {}
    for key in _KEYS:
        if key == "observations" and group.get(key, getclass=True) is h5py.Group:  # a dict or a tuple of arrays
            found[key] = read_tree(group, key)
        else:
            found[key] = Hdf5Column(opening.plain_entry(group, key, h5py.Dataset, _LAYOUT))
    return Table(opening.place_of(group), found)


def _steps(table: Table) -> int:
    return math.prod(columns_of(table.columns["rewards"])[0].shape)


def _with_flags(table: Table) -> tuple[Table, bool]:
    """An episode with its flags in memory, and whether one of them marks its end."""
    flags = {key: columns.read_flags(columns_of(table.columns[key])[0]) for key in _FLAGS}
    read = {key: columns.ArrayColumn(f"{table.place}/{key}", flag) for key, flag in flags.items()}
    return table._replace(columns={**table.columns, **read}), any(flag[-1:].any() for flag in flags.values())


def _check_widths(table: Table, limits: Limits, *, discrete: bool) -> None:
    """Raises DataError where observations or actions are of another kind or width than the dataset's own spaces."""
    steps, layout = _steps(table), limits.layout
    wanted = {"actions": limits.action_dim}
    wanted |= {"observations": None if layout is None or not is_vector(layout) else flat_size(layout)}
    for key, size in wanted.items():
        for column in columns_of(table.columns[key]) if size is not None else ():
            if math.prod(column.shape[1:]) != size:
                columns.wrong_shape(column, steps, f"({steps}, {size})")
    columns.check_kind(columns_of(table.columns["actions"])[0], discrete)
