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
from ...system import require_memory
from ...tasks.table import ANT_D4RL_OBSERVATION_DIM, ANT_OBSERVATION_DIM, D4RL_SERVER, D4RLTask
from ..download import file_url
from ..episodes import Episodes
from .opening import (
    check_kind,
    check_shapes,
    check_size,
    hold_to_bounds,
    hold_to_choices,
    open_hdf5,
    place_of,
    plain_entry,
    read_actions,
    read_flags,
    read_float32,
    shape_of_actions,
)

_REQUIRED = ("observations", "actions", "rewards")
_FLAGS = ("terminals", "timeouts")
_LAYOUT = "D4RL's layout"


def d4rl_dataset_dir() -> Path:
    """Where D4RL keeps its files: `$D4RL_DATASET_DIR`, else `~/.d4rl/datasets`, as the d4rl package does."""
    return Path(os.environ.get("D4RL_DATASET_DIR") or Path.home() / ".d4rl" / "datasets")


def d4rl_url(task: D4RLTask) -> str:
    """Where a task's file is fetched from: `gym_mujoco_v2/FILE` of D4RL's server, or of the mirror `$D4RL_BASE_URL`.

    The mirror may be a pattern, as in `file_url`, of {file} and {family}; UsageError: it is neither that nor a base.
    """
    return file_url("D4RL_BASE_URL", D4RL_SERVER, "gym_mujoco_v2/{file}", file=task.d4rl_file, family=task.family)


def read_hdf5(
    path: str | os.PathLike[str],
    *,
    dataset: str | None = None,
    observation_dim: int | None = None,
    action_dim: int | None = None,
    action_low: npt.ArrayLike = -1.0,
    action_high: npt.ArrayLike = 1.0,
    n_actions: int | None = None,
    action_start: int = 0,
    max_episode_steps: int | None = None,
    clip_actions: bool = False,
) -> Episodes:
    """Read a file in D4RL's layout: observations (N, O), actions (N, A), rewards, terminals and timeouts (N,).

    Integers as actions, (N,) or (N, 1), are discrete. `n_actions` insists on them, and on those from `action_start` on,
    `action_dim` alone on others.

    Real numbers become float32. Episodes end where terminals or timeouts is set, and after `max_episode_steps` at the
    latest; an unfinished last one is left out, with a note. So are the 84 zero columns of D4RL's Ant where
    `observation_dim` is 27. `observation_dim` and `action_dim` insist on a size; bounds are numbers or (A,).

    Raises:
        DataError: the file is missing, damaged, of another layout or size, or holds NaN, infinity, actions of another
            kind, out of bounds (unless `clip_actions`) or not among the integers, or no complete episode.
        UsageError: `max_episode_steps` is less than 1.
    """
    if max_episode_steps is not None and max_episode_steps < 1:
        raise UsageError(f"max_episode_steps is {max_episode_steps}; give 1 or more (--max-episode-steps)")
    path = Path(path)
    notes: list[str] = []
    with open_hdf5(path) as file:
        keys = [*_REQUIRED, *(key for key in _FLAGS if key in set(file))]  # `in file` leaves broken links out
        found = {key: plain_entry(file, key, h5py.Dataset, _LAYOUT) for key in keys}
        require_memory(check_size(found.values()), str(path), "use a smaller file")
        n_steps = found["rewards"].size
        if n_actions is not None or action_dim is not None:
            check_kind(found["actions"], n_actions is not None)
        _check_layout(found, n_steps)
        observations, rewards = (read_float32(found[key], n_steps) for key in ("observations", "rewards"))
        actions = read_actions(found["actions"], n_steps)
        none = np.zeros(n_steps, np.bool_)
        terminals, timeouts = (read_flags(found[key]) if key in found else none for key in _FLAGS)
        env_id = _text_attribute(file, "env_id")
        provenance = {name: _text_attribute(file, name) for name in ("origin", "policy")}
    ours, theirs = ANT_OBSERVATION_DIM, ANT_D4RL_OBSERVATION_DIM
    if (observation_dim, observations.shape[1]) == (ours, theirs):
        if observations[:, ours:].any():
            raise DataError(
                f"{path}:observations has {theirs} columns, and those behind Ant-v4's {ours} are not all zero; use "
                "D4RL's file"
            )
        notes.append(f"dropped {theirs - ours} all-zero observation columns (contact forces)")
        observations = observations[:, :ours].copy()
    for key, array, wanted in (("observations", observations, observation_dim), ("actions", actions, action_dim)):
        if array.ndim > 1 and wanted not in (None, columns := array.shape[1]):
            raise DataError(
                f"{path}:{key} has {columns} columns, the environment has {wanted}; choose the task it was made for"
            )
    if n_actions is not None:
        hold_to_choices(path, actions, n_actions, action_start)
    elif actions.ndim > 1:
        bounds = np.asarray(action_low, dtype=np.float32), np.asarray(action_high, dtype=np.float32)
        hold_to_bounds(path, actions, bounds, clip_actions, notes)
    ends = _episode_ends(path, terminals | timeouts, max_episode_steps, notes)
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
        dataset=dataset or path.stem,
        path=str(path),
        env_id=env_id,
        notes=tuple(notes),
    )


def _check_layout(found: Mapping[str, h5py.Dataset], steps: int) -> None:
    observations = found["observations"]
    if observations.ndim == 1 and observations.dtype.kind in "biu":
        raise DataError(f"{place_of(observations)} are integers; store them one-hot, as FlattenObservation gives them")
    shapes: dict[str, tuple[int | None, ...]] = dict.fromkeys(found, (steps,))
    shapes |= {"observations": (steps, None), "actions": shape_of_actions(found["actions"], steps, None)}
    check_shapes(found.values(), shapes.values(), steps)


def _episode_ends(
    path: Path, ended: npt.NDArray[np.bool_], max_episode_steps: int | None, notes: list[str]
) -> npt.NDArray[np.int64]:
    """One past the last row of each complete episode, (E,); a note has the number of those that the file lacks."""
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
    if cut := int((~ended[ends - 1]).sum()):
        notes.append(f"ended {cut:,} episodes after {max_episode_steps} steps, where the file has no end")
    return ends


def read_env_id(path: Path) -> str | None:
    """The environment that a file names; raises DataError if it cannot be read."""
    with open_hdf5(path) as file:
        return _text_attribute(file, "env_id")


def _text_attribute(file: h5py.File, name: str) -> str | None:
    value = file.attrs.get(name)
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    # It ends up in messages.
    return one_line(value) if isinstance(value, str) else None


def write_hdf5(path: str | os.PathLike[str], episodes: Episodes, attrs: Mapping[str, str | int | float]) -> None:
    """Write episodes in D4RL's layout, gzip-compressed, with `attrs` on the root group; complete or not at all.

    The last step of an episode is marked in `terminals` where the environment ended it, in `timeouts` where not.
    OSError: the disk is full or the folder cannot be written; nothing is left behind.
    """
    arrays = {key: getattr(episodes, key) for key in _REQUIRED}
    for key, ended in zip(_FLAGS, (episodes.terminated, ~episodes.terminated), strict=True):
        arrays[key] = np.zeros(episodes.n_steps, dtype=np.bool_)
        arrays[key][episodes.offsets[1:] - 1] = ended
    # Built in memory: a full disk then fails in a plain write, where HDF5 would fail again in every later call.
    image = io.BytesIO()
    with h5py.File(image, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array, compression="gzip", compression_opts=4)
        file.attrs.update(attrs)
    write_whole(Path(path), image.getbuffer())
