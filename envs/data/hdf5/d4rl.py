"""D4RL's HDF5 layout: reading it into episodes, with every fault named, and writing it."""

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ....base.errors import DataError, one_line
from ....base.files import write_whole
from ...tasks.spaces import Layout, checked_layout, flat_size
from ...tasks.table import D4RL_SERVER, D4RLTask
from ..assemble import Limits, assemble
from ..columns import CONVERT
from ..download import file_url
from ..episodes import Episodes
from .layouts import read_tables
from .opening import open_hdf5

_REQUIRED = ("observations", "actions", "rewards")
_FLAGS = ("terminals", "timeouts")
_LAYOUT = "D4RL's layout"
_SPACE = "observation_space"  # attribute: the layout of observations that were dicts or tuples, as JSON


def d4rl_dataset_dir() -> Path:
    """Where D4RL keeps its files: `$D4RL_DATASET_DIR`, else `~/.d4rl/datasets`, as the d4rl package does."""
    return Path(os.environ.get("D4RL_DATASET_DIR") or Path.home() / ".d4rl" / "datasets")


def d4rl_url(task: D4RLTask) -> str:
    """Where a task's file is fetched from: `gym_mujoco_v2/FILE` of D4RL's server, or of the mirror `$D4RL_BASE_URL`.

    The mirror may be a pattern, as in `file_url`, of {file} and {family}; UsageError: it is neither that nor a base.
    """
    return file_url("D4RL_BASE_URL", D4RL_SERVER, "gym_mujoco_v2/{file}", file=task.d4rl_file, family=task.family)


def read_hdf5(path: str | os.PathLike[str], *, dataset: str | None = None, **limits: Any) -> Episodes:  # noqa: ANN401
    """Read an HDF5 file: observations (N, O), actions (N, A), rewards, terminals and timeouts (N,), as in D4RL's.

    A group of observations is laid side by side, as Gymnasium flattens a dict. Integers as actions, (N,) or (N, 1), are
    discrete. The attribute "observation_space" names the parts of flat observations that were dicts or tuples. Ends of
    episodes may have the names of `ends.END_NAMES`. Files of d3rlpy and robomimic, whose episodes are apart, are read,
    too. `limits` are the fields of `assemble.Limits`.

    Real numbers become float32. Episodes end where a flag is set, and after `max_episode_steps` at the latest. An
    unfinished last one is left out, with a note, as are D4RL Ant's 84 zero columns where `observation_dim` is 27.

    Raises:
        DataError: the file is missing, damaged, of another layout or size, or holds NaN, infinity, actions of another
            kind, out of bounds (unless `clip_actions`) or not among the integers, or no complete episode.
        UsageError: `max_episode_steps` is less than 1.
    """
    path, held = Path(path), Limits(**limits)
    with open_hdf5(path) as file:
        found = list[str]()
        tables, one_each = read_tables(file, found)
        env_id = _text_attribute(file, "env_id")
        provenance = {name: _text_attribute(file, name) for name in ("origin", "policy")}
        fields = assemble(
            tables,
            held,
            path=str(path),
            file=path,
            way_out=f"use a file in {_LAYOUT}, or convert it: {CONVERT}",
            one_each=one_each,
            dataset=dataset or path.stem,
            env_id=env_id,
            notes=(*found, *(f"{name}: {text}" for name, text in provenance.items() if text is not None)),
        )
        if _SPACE in file.attrs:
            fields["layout"] = _read_layout(path, file.attrs[_SPACE], fields["observations"].shape[1])
        return Episodes(**fields)


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
        if episodes.layout is not None:
            file.attrs[_SPACE] = json.dumps(episodes.layout)
    write_whole(Path(path), image.getbuffer())
