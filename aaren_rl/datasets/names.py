"""From what a user types to a data set: a task's name, `minari:ID`, or the path of an HDF5 file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..envs import DataError, Episodes, Reference, get_task
from ..envs.data.hdf5.d4rl import read_hdf5
from ..envs.data.hdf5.opening import check_file
from ..envs.data.load import Origin, Reading, data_files, is_own, load_of_table, resolve
from ..envs.data.minari.read import minari_id, read_minari
from ..envs.data.minari.spec import minari_data_file
from ..envs.tasks.environment import own_task
from ..errors import UsageError


def parse_name(text: str) -> Origin:
    """Tell the three kinds of names apart; a task is `auto`. All are safe as parts of a path.

    Raises:
        UnknownTaskError: neither a Minari id behind `minari:`, nor a path that ends in .hdf5 or .h5, nor a task.
        UsageError: what stands behind `minari:` is not an id.
    """
    if text.endswith((".hdf5", ".h5")) or is_own(text, None):
        return resolve("", text)
    return resolve(text)


def load(
    name: Origin, source: str, reading: Reading, env_id: str | None = None, *, any_actions: bool = True
) -> tuple[Episodes, Reference | None]:
    """A data set, fetched or made where it is not there, and the returns that score 0 and 100.

    `source` is where a task's data come from: auto, d4rl, local, minari, `minari:ID` or a path. `env_id` is the
    environment of a file that is nobody's task; without it its actions are taken as they are, or must lie in [-1, 1]
    where not `any_actions`.

    Raises:
        EnvsError: as `load_episodes`, `read_minari` and `read_hdf5`.
        UsageError: an option does not go with the name.
    """
    origin = resolve(name.name, source) if name.kind == "auto" else name
    reading.check_kind(origin.kind)
    if name.kind == "file":
        return _read_file(Path(name.name), reading, env_id, any_actions), None
    if env_id is not None:
        raise UsageError(f"--env-id {env_id} goes with the path of a file; leave it out")
    if origin.kind != "minari":
        task = get_task(name.name)
        return load_of_table(task, origin, reading), task.reference
    if reading.max_episode_steps is not None:
        raise UsageError("--max-episode-steps is for HDF5 files; Minari's data sets have their episodes apart")
    data = read_minari(origin.name, clip_actions=reading.clip_actions)
    returns = data.spec.reference_returns
    return data.episodes, None if returns is None else Reference("Minari", *returns)


def _read_file(path: Path, reading: Reading, env_id: str | None, any_actions: bool) -> Episodes:
    """A file in D4RL's layout, held to its pin and to the sizes and bounds of `env_id`."""
    check_file(path)
    bound = np.inf if any_actions and not reading.clip_actions else 1.0
    options: dict[str, Any] = {"action_low": -bound, "action_high": bound}
    if env_id is not None:
        own = own_task("data", env_id)
        options = {key: getattr(own, key) for key in ("observation_dim", "action_dim", "action_low", "action_high")}
    episodes = read_hdf5(
        path, clip_actions=reading.clip_actions, max_episode_steps=reading.max_episode_steps, **options
    )
    return replace(episodes, env_id=episodes.env_id or env_id)


def on_disk(name: Origin, source: str, reading: Reading) -> dict[str, Path]:
    """The data sets of a name that lie on this machine: the file of each source for `load`; a path is taken as it is.

    `source` is the one to look for, or "auto" for all of a task's, of which `reading.local_steps` leaves the local set.

    Raises:
        DataError: there is none.
        UsageError: the name has no local set to ask for steps of.
    """
    reading.check_kind(name.kind)
    if name.kind == "file":
        return {"file": Path(name.name)}
    if name.kind == "minari" or source == "minari":  # minari_id raises an error where Minari has none
        places = {"minari": minari_data_file(name.name if name.kind == "minari" else minari_id(name.name))}
    else:
        wanted = "local" if source == "auto" and reading.local_steps is not None else source
        files = data_files(get_task(name.name), reading.local_steps)
        places = {kind: path for kind, path in files.items() if wanted in (kind, "auto")}
    found = {kind: path for kind, path in places.items() if path.is_file()}
    if not found:
        searched = ", ".join(map(str, places.values()))
        text = f"{name.name} --source minari" if name.kind == "minari" else name.name
        raise DataError(
            f"{name}: not on this machine ({searched}); fetch it with python -m aaren_rl.datasets download {text}"
        )
    return found
