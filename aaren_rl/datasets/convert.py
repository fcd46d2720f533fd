"""Between D4RL's HDF5 layout and Minari's: the same numbers, bit for bit."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ..envs import Episodes, get_task
from ..envs.data.hdf5.d4rl import write_hdf5
from ..envs.data.load import Origin, Reading
from ..envs.data.minari.read import read_minari
from ..envs.data.minari.write import new_minari_folder, write_minari
from ..envs.files import writing
from ..errors import UsageError
from .names import load


def convert(
    source: Origin, target: Origin, reading: Reading, env_id: str | None, description: str | None
) -> tuple[Path, Episodes]:
    """Write the data set `source` as `target`, which must not exist; one is a Minari id, the other a file or a task.

    Returns what was written, a folder or a file, and its episodes.

    Raises:
        UsageError: not one of each kind, the target is there, or a file's environment is not known.
        EnvsError: as the readers and `write_minari`.
    """
    if source.kind == "minari" and target.kind == "file":
        return _to_file(source.name, Path(target.name), reading)
    if source.kind == "minari" or target.kind != "minari":
        raise UsageError(f"cannot convert {source} to {target}; give FILE.hdf5 minari:ID, or minari:ID FILE.hdf5")
    new_minari_folder(target.name)  # before a long read
    episodes, reference = load(source, "auto", reading, env_id)
    env_id = env_id or (episodes.env_id if source.kind == "file" else get_task(source.name).env_id)
    if env_id is None:
        raise UsageError(f"{source}: does not name its environment; name it with --env-id, for example Hopper-v4")
    origin = "; ".join([f"converted from {Path(episodes.path).name}", *episodes.notes])
    written = write_minari(
        target.name,
        episodes,
        env_id=env_id,
        description=description or origin,
        reference_returns=None if reference is None else (reference.low, reference.high),
    )
    return written, episodes


def _to_file(dataset_id: str, path: Path, reading: Reading) -> tuple[Path, Episodes]:
    if path.exists() or not path.parent.is_dir():
        what = "is there already; choose another name" if path.exists() else "its folder does not exist; make it first"
        raise UsageError(f"{path}: {what}")
    reading.check_kind("minari")
    data = read_minari(dataset_id, clip_actions=reading.clip_actions)
    attributes = {"origin": f"converted from minari:{dataset_id}"}
    if data.episodes.env_id is not None:
        attributes["env_id"] = data.episodes.env_id
    if data.spec.env_kwargs:
        attributes["env_kwargs"] = json.dumps(data.spec.env_kwargs)
        print(f"note: the environment's arguments are in {path}, in env_kwargs, which nothing reads", file=sys.stderr)
    with writing(path, "choose another folder"):
        write_hdf5(path, data.episodes, attributes)
    return path, data.episodes
