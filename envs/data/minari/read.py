"""Minari datasets to episodes: the HDF5 file is read here, after the checks that any foreign file goes through."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from ...errors import DataError
from ...tasks.table import get_task
from ..checks import hold_to_bounds, not_finite
from ..download import verify_pin
from ..episodes import Episodes
from ..hdf5.guard import try_file
from ..hdf5.opening import check_size, claimed_bytes, open_hdf5, plain_dataset, plain_group
from .fetch import fetch_minari
from .spec import MinariSpec, minari_data_dir, read_spec

# Of Minari's mujoco/* datasets; "simple" has no counterpart in D4RL's table.
MINARI_LEVELS = ("simple", "medium", "expert")

_LAYOUT = "Minari's layout"
_ARRAYS = ("observations", "actions", "rewards")
_FLAGS = ("terminations", "truncations")


class MinariData(NamedTuple):
    """A Minari dataset: its episodes, and what it says of itself and of the environment they were recorded on."""

    episodes: Episodes
    spec: MinariSpec


def minari_id(name: str) -> str:
    """The Minari dataset of a task: "hopper-medium" is "mujoco/hopper/medium-v0".

    These were recorded on the -v5 environments by other policies than D4RL's: scores are not comparable with D4RL's.

    Raises:
        UnknownTaskError: no such task.
        DataError: Minari has no dataset of the task's level.
    """
    task = get_task(name)
    if task.level not in MINARI_LEVELS:
        have = ", ".join(f"mujoco/{task.family}/{level}-v0" for level in MINARI_LEVELS)
        raise DataError(f"{task.name}: Minari has no {task.level} dataset; it has {have}")
    return f"mujoco/{task.family}/{task.level}-v0"


def read_minari(
    dataset_id: str, *, download: bool = True, progress: bool = True, clip_actions: bool = False
) -> MinariData:
    """Read a Minari dataset, e.g. "mujoco/hopper/medium-v0", fetching it where it is not on this machine.

    It is looked for in `$MINARI_DATASETS_PATH`, else `~/.minari/datasets`; with `download` the `minari` package fetches
    it from its remote (`$MINARI_REMOTE`, by default Hugging Face), with a line on stderr that says so. Numbers become
    float32. Minari stores T + 1 observations of an episode of T steps; row t pairs observation t with action t and
    reward t, and the last observation is left out. An unfinished last episode is left out, with a note. Actions must
    lie in the dataset's own action space. `progress` shows a bar on stderr for what takes long.

    Raises:
        UsageError: not a Minari id.
        DataError: the dataset is not there and cannot be fetched; is damaged, changed since it was fetched or not in
            Minari's HDF5 layout; has spaces that are not vectors, an environment that Gymnasium does not know or other
            faults of its description (see `read_spec`), which is never imported; or holds NaN, infinity, actions out of
            bounds (unless `clip_actions`) or no complete episode.
    """
    folder = minari_data_dir(dataset_id)
    if download and not folder.exists():
        fetch_minari(dataset_id, check=lambda data: _check(dataset_id, data, progress), progress=progress)
    if not folder.exists():
        raise DataError(
            f"{folder}: does not exist; fetch it with `python -m aaren_rl.datasets download {dataset_id} --source "
            "minari`, or set MINARI_DATASETS_PATH to the folder that has it"
        )
    if not verify_pin(folder / "main_data.hdf5"):
        try_file(folder / "main_data.hdf5")
    return _read(dataset_id, folder, progress, clip_actions)


def _check(dataset_id: str, folder: Path, progress: bool) -> None:
    try_file(folder / "main_data.hdf5")
    _read(dataset_id, folder, progress, True)


def _read(dataset_id: str, folder: Path, progress: bool, clip_actions: bool) -> MinariData:
    """Read the dataset in `folder`, its `data` folder, wherever that is."""
    spec = read_spec(folder / "metadata.json")
    path = folder / "main_data.hdf5"
    notes = list(spec.notes)
    with open_hdf5(path) as file:
        episodes = _episodes(file, path, spec, dataset_id, progress)
    _check_finite(path, episodes)
    if spec.action_low is not None and spec.action_high is not None:
        bounds = np.array(spec.action_low, np.float32), np.array(spec.action_high, np.float32)
        hold_to_bounds(path, episodes.actions, bounds, clip_actions, notes)
    episodes = _without_unfinished(path, episodes, notes)
    return MinariData(
        Episodes(
            episodes.observations,
            episodes.actions,
            episodes.rewards,
            episodes.offsets,
            episodes.ends == _TERMINATED,
            dataset=dataset_id,
            source="minari",
            path=str(path),
            env_id=spec.env_id,
            notes=tuple(notes),
        ),
        spec,
    )


_OPEN, _TRUNCATED, _TERMINATED = range(3)


@dataclass(frozen=True)
class _Raw:
    """What the file holds; `ends` (E,) says how each episode ends."""

    observations: npt.NDArray[np.float32]
    actions: npt.NDArray[np.float32]
    rewards: npt.NDArray[np.float32]
    offsets: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int8]


def _episodes(file: h5py.File, path: Path, spec: MinariSpec, dataset_id: str, progress: bool) -> _Raw:
    """Read every episode straight into the arrays of all of them, whose sizes are checked before they are made."""
    lengths = _lengths(file, path, spec)
    first = _parts(file, path, 0)
    described = {"observations": spec.observation_dim, "actions": spec.action_dim}
    columns = {key: _columns(path, first[key], wanted) for key, wanted in described.items()}
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    n_steps = int(offsets[-1])
    shapes = f"{n_steps:,} steps of {columns['observations']} observation and {columns['actions']} action columns"
    check_size(path, n_steps * 4 * (sum(columns.values()) + 1), shapes)
    raw = _Raw(
        np.empty((n_steps, columns["observations"]), np.float32),
        np.empty((n_steps, columns["actions"]), np.float32),
        np.empty(n_steps, np.float32),
        offsets,
        np.zeros(len(lengths), np.int8),
    )
    claimed = 0
    # No bar for what takes less than a second.
    every = range(len(lengths))
    for e in tqdm(every, dataset_id, unit="episode", delay=1, mininterval=1, leave=False, disable=not progress):
        parts = _parts(file, path, e)
        claimed += sum(map(claimed_bytes, parts.values()))
        check_size(path, claimed, f"{e + 1} of {len(lengths)} episodes")
        _read_episode(path, raw, e, parts)
    return raw


def _lengths(file: h5py.File, path: Path, spec: MinariSpec) -> npt.NDArray[np.int64]:
    """Steps of each episode, (E,), after a check that the episodes are those that the metadata count."""
    if len(file) != spec.total_episodes:
        raise DataError(
            f"{path}: has {len(file):,} entries, metadata.json counts {spec.total_episodes:,} episodes; the dataset is "
            "damaged, get it again"
        )
    lengths = np.empty(spec.total_episodes, np.int64)
    for e in range(len(lengths)):
        rewards = plain_dataset(_group(file, path, e), path, "rewards", _LAYOUT)
        if rewards.ndim != 1 or len(rewards) == 0:
            raise DataError(f"{path}:{_name(rewards)} has shape {rewards.shape}, not one axis with steps; get it again")
        lengths[e] = len(rewards)
    if lengths.sum() != spec.total_steps:
        raise DataError(
            f"{path}: has {lengths.sum():,} steps, metadata.json counts {spec.total_steps:,}; the dataset is damaged, "
            "get it again"
        )
    return lengths


def _group(file: h5py.File, path: Path, episode: int) -> h5py.Group:
    return plain_group(file, path, f"episode_{episode}", _LAYOUT)


def _parts(file: h5py.File, path: Path, episode: int) -> dict[str, h5py.Dataset]:
    group = _group(file, path, episode)
    return {key: plain_dataset(group, path, key, _LAYOUT) for key in (*_ARRAYS, *_FLAGS)}


def _name(data: h5py.Dataset) -> str:
    return str(data.name).lstrip("/")


def _columns(path: Path, data: h5py.Dataset, wanted: int | None) -> int:
    if data.ndim != 2 or data.shape[1] == 0:
        raise DataError(f"{path}:{_name(data)} has shape {data.shape}, not two axes; only vectors can be learnt from")
    if wanted is not None and data.shape[1] != wanted:
        raise DataError(
            f"{path}:{_name(data)} has {data.shape[1]} columns, its space in metadata.json {wanted}; the dataset is "
            "damaged, get it again"
        )
    return int(data.shape[1])


def _read_episode(path: Path, raw: _Raw, episode: int, parts: dict[str, h5py.Dataset]) -> None:
    start, end = raw.offsets[episode : episode + 2]
    n_steps = int(end - start)
    for key, rows in (("observations", n_steps + 1), *((key, n_steps) for key in ("actions", "rewards", *_FLAGS))):
        columns = getattr(raw, key).shape[1:] if key in _ARRAYS else ()
        if parts[key].shape != (rows, *columns):
            raise DataError(
                f"{path}:{_name(parts[key])} has shape {parts[key].shape}, {n_steps:,} rewards go with "
                f"{(rows, *columns)}; the dataset is damaged, get it again"
            )
    for key in _ARRAYS:
        # HDF5 converts to float32 as it goes. The observation behind the last step has no action: it stays behind.
        parts[key].read_direct(getattr(raw, key), source_sel=np.s_[:n_steps], dest_sel=np.s_[start:end])
    terminated, truncated = (_ends(path, parts[key]) for key in _FLAGS)
    raw.ends[episode] = _TERMINATED if terminated else _TRUNCATED if truncated else _OPEN


def _ends(path: Path, data: h5py.Dataset) -> bool:
    """Whether a flag is set at the last step, after a check that it is nowhere else."""
    values = data[()]
    if not np.all((values == 0) | (values == 1)):
        raise DataError(f"{path}:{_name(data)} has values other than 0 and 1; the dataset is damaged, get it again")
    if values[:-1].any():
        step = int(values.argmax())
        raise DataError(
            f"{path}:{_name(data)} is set at step {step}, before the episode's last step {len(values) - 1}; split the "
            "episode there"
        )
    return bool(values[-1])


def _check_finite(path: Path, raw: _Raw) -> None:
    for key in _ARRAYS:
        array: npt.NDArray[np.float32] = getattr(raw, key)
        if (found := not_finite(array)) is None:
            continue
        bad, first, value = found
        episode = int(np.searchsorted(raw.offsets, first[0], side="right")) - 1
        where = f"step {first[0] - raw.offsets[episode]}" + (f", column {first[1]}" if len(first) == 2 else "")
        raise DataError(
            f"{path}:episode_{episode}/{key} is where the first of {bad:,} values that are not finite is ({value}) at "
            f"{where}; repair the dataset or get it again"
        )


def _without_unfinished(path: Path, raw: _Raw, notes: list[str]) -> _Raw:
    """Leave out a last episode that has no end; an earlier one ended where the next began, like at a time limit."""
    keep = len(raw.ends) - (raw.ends[-1] == _OPEN)
    if keep == 0:
        raise DataError(f"{path}: its only episode is unfinished: neither terminated nor truncated; use more data")
    n_steps = int(raw.offsets[keep])
    if n_steps < len(raw.rewards):
        notes.append(f"dropped {len(raw.rewards) - n_steps:,} steps of an unfinished last episode")
    if n_open := int((raw.ends[:keep] == _OPEN).sum()):
        notes.append(f"took {n_open:,} episodes without a mark at their end for cut by a time limit")
    return _Raw(
        raw.observations[:n_steps],
        raw.actions[:n_steps],
        raw.rewards[:n_steps],
        raw.offsets[: keep + 1],
        raw.ends[:keep],
    )
