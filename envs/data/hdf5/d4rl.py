"""D4RL's HDF5 layout: reading it into episodes, with every fault named, and writing it."""

import io
import os
from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt

from ...errors import DataError, UsageError, one_line
from ...files import write_whole
from ...tasks.table import ANT_D4RL_OBSERVATION_DIM, ANT_OBSERVATION_DIM, D4RL_SERVER, D4RLTask
from ..checks import hold_to_bounds, not_finite
from ..episodes import Episodes, row_blocks
from .opening import checked_datasets, open_hdf5

_REQUIRED = ("observations", "actions", "rewards")
_OPTIONAL = ("terminals", "timeouts")


def d4rl_dataset_dir() -> Path:
    """Where D4RL keeps its files: `$D4RL_DATASET_DIR`, else `~/.d4rl/datasets`, as the d4rl package does."""
    return Path(os.environ.get("D4RL_DATASET_DIR") or Path.home() / ".d4rl" / "datasets")


def d4rl_url(task: D4RLTask) -> str:
    """Where a task's file is fetched from: D4RL's server, or the mirror `$D4RL_BASE_URL`.

    The variable replaces `http://rail.eecs.berkeley.edu/datasets/offline_rl`; `gym_mujoco_v2/FILE` follows.
    """
    base = os.environ.get("D4RL_BASE_URL") or D4RL_SERVER
    return base.rstrip("/") + task.d4rl_url.removeprefix(D4RL_SERVER)


def read_hdf5(
    path: str | os.PathLike[str],
    *,
    dataset: str | None = None,
    observation_dim: int | None = None,
    action_dim: int | None = None,
    action_low: npt.ArrayLike = -1.0,
    action_high: npt.ArrayLike = 1.0,
    max_episode_steps: int | None = None,
    clip_actions: bool = False,
) -> Episodes:
    """Read a file in D4RL's layout: observations (N, O), actions (N, A), rewards, terminals and timeouts (N,).

    Numbers of any real type become float32. Episodes end where terminals or timeouts is set and, if
    `max_episode_steps` is given, after that many steps at the latest. Steps behind the last end belong to an
    unfinished episode and are left out, with a note. `observation_dim` and `action_dim` are the sizes to insist on;
    where 27 observations are wanted and the file has D4RL Ant's 111, the 84 columns behind are left out after a check
    that they are all zero. Actions must lie within `action_low` and `action_high`, numbers or (A,). `dataset` names
    the result (default: the file's stem).

    Raises:
        DataError: the file is missing, damaged, not in this layout, of other sizes, or holds NaN, infinity, actions
            out of bounds (unless `clip_actions`) or no complete episode.
        UsageError: `max_episode_steps` is less than 1.
    """
    if max_episode_steps is not None and max_episode_steps < 1:
        raise UsageError(f"max_episode_steps is {max_episode_steps}; give 1 or more (--max-episode-steps)")
    path = Path(path)
    notes: list[str] = []
    with open_hdf5(path) as file:
        found = checked_datasets(file, path, _REQUIRED, _OPTIONAL)
        _check_shapes(path, found)
        columns = _observation_columns(path, found["observations"], observation_dim, notes)
        _check_columns(path, "actions", found["actions"].shape[1], action_dim)
        observations = _read_float32(path, found["observations"], columns)
        actions = _read_float32(path, found["actions"], found["actions"].shape[1])
        rewards = _read_float32(path, found["rewards"], None)
        terminals = _read_flags(path, found, "terminals", len(rewards))
        timeouts = _read_flags(path, found, "timeouts", len(rewards))
        env_id = _text_attribute(file, "env_id")
        provenance = {name: _text_attribute(file, name) for name in ("origin", "policy")}
    bounds = np.asarray(action_low, dtype=np.float32), np.asarray(action_high, dtype=np.float32)
    hold_to_bounds(path, actions, bounds, clip_actions, notes)
    ends = _episode_ends(path, terminals | timeouts, max_episode_steps)
    n_steps = int(ends[-1])
    if n_steps < len(rewards):
        notes.append(f"dropped {len(rewards) - n_steps:,} steps of an unfinished last episode")
    notes += [f"{name}: {text}" for name, text in provenance.items() if text is not None]
    return Episodes(
        observations=observations[:n_steps],
        actions=actions[:n_steps],
        rewards=rewards[:n_steps],
        offsets=np.concatenate(([0], ends)),
        terminated=terminals[ends - 1],
        dataset=dataset if dataset is not None else path.stem,
        source="file",
        path=str(path),
        env_id=env_id,
        notes=tuple(notes),
    )


def _check_shapes(path: Path, found: Mapping[str, h5py.Dataset]) -> None:
    n_steps = found["rewards"].shape[0] if found["rewards"].ndim else 0
    for key, data in found.items():
        wanted = 2 if key in ("observations", "actions") else 1
        if data.ndim != wanted:
            raise DataError(f"{path}:{key} has shape {data.shape}, not {wanted} axes; use a file in D4RL's layout")
        if len(data) != n_steps:
            raise DataError(
                f"{path}:{key} has {len(data):,} rows, rewards has {n_steps:,}; the file is damaged, get it again"
            )
        if 0 in data.shape:
            raise DataError(f"{path}:{key} has shape {data.shape}, so there are no steps; use a file with data")


def _check_columns(path: Path, key: str, columns: int, wanted: int | None) -> None:
    if wanted is not None and columns != wanted:
        raise DataError(
            f"{path}:{key} has {columns} columns, the environment has {wanted}; choose the task the file was made for"
        )


def _observation_columns(path: Path, data: h5py.Dataset, wanted: int | None, notes: list[str]) -> int:
    """How many of the leading columns to read, after checking the others where they may be left out."""
    columns = int(data.shape[1])
    if (wanted, columns) != (ANT_OBSERVATION_DIM, ANT_D4RL_OBSERVATION_DIM):
        _check_columns(path, "observations", columns, wanted)
        return columns
    # Whole chunks at a time: a chunk that is read in pieces is decompressed once for each of them.
    blocks = data.iter_chunks() if data.chunks else ((rows, slice(None)) for rows in row_blocks(len(data)))
    for rows, cols in blocks:
        first = max(cols.start or 0, ANT_OBSERVATION_DIM)
        last = cols.stop or columns
        if first < last and np.any(data[rows, first:last]):
            raise DataError(
                f"{path}:observations has {columns} columns and those from {ANT_OBSERVATION_DIM} on are not all zero, "
                f"so it does not fit Ant-v4's {ANT_OBSERVATION_DIM}; use D4RL's file"
            )
    notes.append(f"dropped {columns - ANT_OBSERVATION_DIM} all-zero observation columns (contact forces)")
    return ANT_OBSERVATION_DIM


def _read_float32(path: Path, data: h5py.Dataset, columns: int | None) -> npt.NDArray[np.float32]:
    """Read straight into float32 (HDF5 converts as it goes) and refuse what is not finite."""
    shape = (len(data),) if columns is None else (len(data), columns)
    array = np.empty(shape, dtype=np.float32)
    data.read_direct(array, source_sel=None if shape == data.shape else np.s_[:, :columns])
    if (found := not_finite(array)) is not None:
        bad, first, value = found
        where = f"step {first[0]}" if columns is None else f"step {first[0]}, column {first[1]}"
        raise DataError(
            f"{path}:{data.name.lstrip('/')} has {bad:,} values that are not finite, the first ({value}) at {where}; "
            "repair the file or get it again"
        )
    return array


def _read_flags(path: Path, found: Mapping[str, h5py.Dataset], key: str, n_steps: int) -> npt.NDArray[np.bool_]:
    """Terminals or timeouts as booleans; all false where the file has none."""
    if key not in found:
        return np.zeros(n_steps, dtype=np.bool_)
    values = found[key][()]
    flags: npt.NDArray[np.bool_] = values != 0
    if not np.array_equal(values, flags):
        raise DataError(f"{path}:{key} has values other than 0 and 1; the file is damaged, get it again")
    return flags


def _episode_ends(path: Path, ended: npt.NDArray[np.bool_], max_episode_steps: int | None) -> npt.NDArray[np.int64]:
    """One past the last row of each complete episode, (E,)."""
    ends = np.flatnonzero(ended).astype(np.int64) + 1
    if max_episode_steps is not None:
        starts = np.concatenate(([0], ends))
        stops = np.append(ends, len(ended))
        # b + 1: the rows behind the last end are a whole episode where their number fits exactly.
        cuts = [np.arange(a + max_episode_steps, b + 1, max_episode_steps) for a, b in zip(starts, stops, strict=True)]
        ends = np.unique(np.concatenate([ends, *cuts]))
    if len(ends) == 0:
        tried = "" if max_episode_steps is None else f" within {max_episode_steps} steps"
        raise DataError(
            f"{path}:terminals and timeouts are absent or never set: none of the {len(ended):,} steps ends an episode"
            f"{tried}; give the episodes' length with --max-episode-steps"
        )
    return ends


def _text_attribute(file: h5py.File, name: str) -> str | None:
    value = file.attrs.get(name)
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    # It ends up in messages.
    return one_line(value) if isinstance(value, str) else None


def write_hdf5(path: str | os.PathLike[str], episodes: Episodes, attrs: Mapping[str, str | int | float]) -> None:
    """Write episodes in D4RL's layout, gzip-compressed, with `attrs` on the root group.

    The last step of an episode is marked in `terminals` where the environment ended it, in `timeouts` where not. The
    file appears under its name complete or not at all: it is written beside it, flushed, synced and renamed.

    Raises:
        OSError: the disk is full or the folder cannot be written; nothing is left behind.
    """
    path = Path(path)
    last = episodes.offsets[1:] - 1
    terminals = np.zeros(episodes.n_steps, dtype=np.bool_)
    timeouts = np.zeros(episodes.n_steps, dtype=np.bool_)
    terminals[last] = episodes.terminated
    timeouts[last] = ~episodes.terminated
    arrays = {
        "observations": episodes.observations,
        "actions": episodes.actions,
        "rewards": episodes.rewards,
        "terminals": terminals,
        "timeouts": timeouts,
    }
    # Built in memory: a full disk then fails in a plain write, where HDF5 would fail again in every later call.
    image = io.BytesIO()
    with h5py.File(image, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array, compression="gzip", compression_opts=4)
        file.attrs.update(attrs)
    write_whole(path, image.getbuffer())
