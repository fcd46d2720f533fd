"""Minari datasets to episodes: fetched by minari's client, read here after the checks of any foreign file."""

import math
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from ....base.errors import DataError
from ....base.files import alone, sha256
from ....base.system import require_memory, sync
from ...tasks.spaces import Layout, flat_size, is_vector
from .. import columns
from ..assemble import fill_observations, width_of
from ..columns import Column, Tree
from ..download import write_pin
from ..episodes import Episode, Episodes, join
from ..hdf5 import opening
from ..hdf5.layouts import read_tree
from ..hdf5.opening import Hdf5Column
from ..observations import read_observations
from .remote import cause_of, choose_version, remote_name
from .spec import WAY_OUT, MinariSpec, minari_data_dir, read_spec

_LAYOUT = "Minari's layout"
_AGAIN = "the dataset is damaged, get it again"


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
    notes, claimed, read, ended = list(spec.notes), 0, list[Episode](), list[bool]()
    observed, flat = list[_Parts](), spec.layout is None or is_vector(spec.layout)
    layout = None if flat else spec.layout
    wanted = (
        flat_size(spec.layout) if spec.layout is not None and flat else None,
        None if spec.action_low is None else len(spec.action_low),
    )
    discrete = None if spec.action_low is None and spec.n_actions is None else spec.n_actions is not None
    with opening.open_hdf5(path) as file:
        # No bar for what takes less than a second.
        every = range(len(file))
        for e in tqdm(every, dataset_id, unit="episode", delay=1, mininterval=1, leave=False, disable=not progress):
            parts = _parts(opening.plain_entry(file, f"episode_{e}", h5py.Group, _LAYOUT))
            claimed = columns.check_size(parts.columns, path, claimed)
            _check_parts(parts, wanted, discrete, flat)
            episode, has_end = _read_episode(parts)
            read.append(episode)
            observed.append(parts)
            ended.append(has_end)
            if e == 0:
                discrete = columns.is_discrete(parts.actions)
                wanted = found = width_of(parts.observations, layout), 1 if discrete else episode.actions.shape[1]
                require_memory(4 * spec.total_steps * (sum(found) + 1), str(path), "use a smaller dataset")
        if (total := sum(map(len, read))) != spec.total_steps:
            raise DataError(f"{path}: has {total:,} steps, metadata.json counts {spec.total_steps:,}; {_AGAIN}")
        observations = _observations(observed, layout)
    if not ended.pop():
        notes.append(f"dropped {len(read.pop()):,} steps of an unfinished last episode")
    if not read:
        raise DataError(f"{path}: its only episode is unfinished: neither terminated nor truncated; use more data")
    if n_open := ended.count(False):  # it ended where the next one began
        notes.append(f"treated {n_open:,} episodes without a mark at their end as truncated")
    episodes = join(read, dataset=dataset_id, source="minari", path=str(path), env_id=spec.env_id)
    episodes = replace(episodes, observations=observations[: episodes.n_steps], layout=layout)
    if spec.n_actions is not None:
        columns.hold_to_choices(path, episodes.actions, spec.n_actions, spec.action_start)
    if spec.action_low is not None and spec.action_high is not None:
        bounds = np.array(spec.action_low, np.float32), np.array(spec.action_high, np.float32)
        columns.hold_to_bounds(path, episodes.actions, bounds, clip_actions, notes)
    return MinariData(replace(episodes, notes=tuple(notes)), spec)


class _Parts(NamedTuple):
    """The arrays of an episode."""

    rewards: Column
    observations: Tree
    actions: Column
    terminations: Column
    truncations: Column

    @property
    def columns(self) -> list[Column]:
        return [self.rewards, *columns.columns_of(self.observations), *self[2:]]


def _parts(group: h5py.Group) -> _Parts:
    found: dict[str, Any] = {}
    for key in _Parts._fields:
        if key == "observations" and group.get(key, getclass=True) is h5py.Group:  # a dict or a tuple of arrays
            found[key] = read_tree(group, key)
        else:
            found[key] = Hdf5Column(opening.plain_entry(group, key, h5py.Dataset, _LAYOUT))
    return _Parts(**found)


def _check_parts(parts: _Parts, sizes: tuple[int | None, int | None], discrete: bool | None, flat: bool) -> None:
    """All checks of the arrays of an episode but those of their numbers; None: actions may be of either kind."""
    rewards, actions = parts.rewards, parts.actions
    steps = math.prod(rewards.shape)
    if not steps:
        columns.wrong_shape(rewards, 0, "nothing")
    for column in (rewards, parts.terminations, parts.truncations):
        if column.shape[:1] != (steps,) or not columns.is_vector(column):
            columns.wrong_shape(column, steps, f"({steps},)")
    _check_actions(actions, steps, sizes[1], discrete)
    # The last of T + 1 observations is not read, so T serve as well.
    observed, rows = columns.columns_of(parts.observations), (steps + 1, steps)
    if flat and len(observed) == 1:
        _check_rows(observed[0], steps, rows, sizes[0])
    for column in observed:
        if column.shape[:1] not in ((steps,), (steps + 1,)):
            columns.wrong_shape(column, steps, f"({steps + 1}, ...)")


def _check_actions(actions: Column, steps: int, size: int | None, discrete: bool | None) -> None:
    if discrete is not None:
        columns.check_kind(actions, discrete)
    if columns.is_discrete(actions):
        if len(actions.shape) and actions.shape[0] != steps:
            columns.wrong_shape(actions, steps, f"({steps},)")
    elif len(actions.shape) < 3 or actions.shape[0] != steps or size not in (None, math.prod(actions.shape[1:])):
        _check_rows(actions, steps, (steps,), size)


def _check_rows(column: Column, steps: int, rows: tuple[int, ...], size: int | None) -> None:
    wanted = "any number" if size is None else size
    fits = len(column.shape) == 2 and column.shape[0] in rows and size in (None, column.shape[1]) and column.shape[1]
    if not fits:
        columns.wrong_shape(column, steps, f"({rows[0]}, {wanted})")


def _observations(episodes: list[_Parts], layout: Layout | None) -> npt.NDArray[Any]:
    """The observations of episodes but their last, one episode after another, (N, O)."""
    lengths = [episode.rewards.shape[0] for episode in episodes]

    def fill(out: npt.NDArray[Any]) -> None:
        start = 0
        for parts, steps in zip(episodes, lengths, strict=True):
            if len(rows := out[start : start + steps]):
                place = parts.rewards.place.replace("rewards", "observations")
                fill_observations(parts.observations, layout, place, rows)
            start += steps

    stored = {column.dtype for parts in episodes for column in columns.columns_of(parts.observations)}
    shape = sum(lengths), width_of(episodes[0].observations, layout)
    return read_observations(fill, shape, np.result_type(*stored))


def _read_episode(parts: _Parts) -> tuple[Episode, bool]:
    """An episode without its observations, and whether there is a mark at its end."""
    rewards, actions = parts.rewards, parts.actions
    steps = rewards.shape[0]
    acted: Any
    if columns.is_discrete(actions):
        acted = actions.values().reshape(-1).astype(np.int64)
    else:
        acted = columns.read_finite(actions, np.empty((steps, math.prod(actions.shape[1:])), np.float32))
    terminated, truncated = map(columns.read_flags, (parts.terminations, parts.truncations))
    if (early := np.flatnonzero((terminated | truncated)[:-1])).size:
        raise DataError(
            f"{rewards.place.removesuffix('/rewards')} has its end marked at step {early[0]}, before its last step "
            f"{steps - 1}; split the episode there"
        )
    observed = np.empty((steps, 0), np.float32)
    read = columns.read_finite(rewards, np.empty(steps, np.float32))
    return Episode(observed, acted, read, bool(terminated[-1])), bool(terminated[-1] or truncated[-1])
