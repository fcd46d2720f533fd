"""From what a user types to a data set: a task's name, `minari:ID`, or the path of an HDF5 file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..envs import DataError, Episodes, Reference, get_task, load_episodes
from ..envs.behaviour.local_sets import local_path
from ..envs.data.download.pins import verify_pin
from ..envs.data.hdf5.d4rl import d4rl_dataset_dir, read_hdf5
from ..envs.data.hdf5.guard import try_file
from ..envs.data.minari.read import MINARI_LEVELS, minari_id, read_minari
from ..envs.data.minari.spec import check_minari_id, minari_data_dir
from ..envs.tasks.own import own_task
from ..errors import UsageError

MINARI = "minari:"


@dataclass(frozen=True)
class Options:
    """How to read: the environment of a file that is nobody's task, and what to mend."""

    env_id: str | None = None
    clip_actions: bool = False
    max_episode_steps: int | None = None


@dataclass(frozen=True)
class Name:
    """A data set as it was named: exactly one of the three is not None. All are safe as parts of a path."""

    task: str | None = None
    minari: str | None = None
    file: Path | None = None

    def __str__(self) -> str:
        """As it can be typed again."""
        return str(self.task or self.file or f"{MINARI}{self.minari}")


def parse_name(text: str) -> Name:
    """Tell the three kinds of names apart.

    Raises:
        UnknownTaskError: neither a Minari id behind `minari:`, nor a path that ends in .hdf5 or .h5, nor a task.
        UsageError: what stands behind `minari:` is not an id.
    """
    if text.startswith(MINARI):
        return Name(minari=check_minari_id(text.removeprefix(MINARI)))
    if text.endswith((".hdf5", ".h5")):
        return Name(file=Path(text))
    return Name(task=get_task(text).name)


def load(name: Name, source: str, options: Options) -> tuple[Episodes, Reference | None]:
    """A data set, fetched or made where it is not there, and the returns that score 0 and 100.

    `source` is where a task's data come from: auto, d4rl, local, minari, `minari:ID` or a path. Actions of a file
    without `env_id` are taken as they are.

    Raises:
        EnvsError: as `load_episodes`, `read_minari` and `read_hdf5`.
        UsageError: an option does not go with the name.
    """
    if name.file is not None:
        return read_file(name.file, options, any_actions=True), None
    if options.env_id is not None:
        raise UsageError(f"--env-id {options.env_id} goes with the path of a file; leave it out")
    chosen = name.minari or (source.removeprefix(MINARI) if source.startswith(MINARI) else None)
    if chosen is None and source == "minari":
        assert name.task is not None
        chosen = minari_id(name.task)
    if chosen is not None:
        return _minari(chosen, options)
    assert name.task is not None
    task = get_task(name.task)
    episodes = load_episodes(
        task.name, source, clip_actions=options.clip_actions, max_episode_steps=options.max_episode_steps
    )
    return episodes, task.reference


def read_file(path: Path, options: Options, *, any_actions: bool) -> Episodes:
    """A file in D4RL's layout, held to its pin and to the sizes and bounds of `options.env_id`.

    Without that environment actions must lie in [-1, 1], unless `any_actions`.
    """
    if not verify_pin(path):
        try_file(path)
    bound = np.inf if any_actions and not options.clip_actions else 1.0
    own = None if options.env_id is None else own_task("data", options.env_id)
    return read_hdf5(
        path,
        observation_dim=None if own is None else own.observation_dim,
        action_dim=None if own is None else own.action_dim,
        action_low=-bound if own is None else own.action_low,
        action_high=bound if own is None else own.action_high,
        clip_actions=options.clip_actions,
        max_episode_steps=options.max_episode_steps,
    )


def _minari(dataset_id: str, options: Options) -> tuple[Episodes, Reference | None]:
    if options.max_episode_steps is not None:
        raise UsageError("--max-episode-steps is for HDF5 files; Minari's data sets have their episodes apart")
    data = read_minari(dataset_id, clip_actions=options.clip_actions)
    reference = None if data.reference_returns is None else Reference("Minari", *data.reference_returns)
    return data.episodes, reference


def on_disk(name: Name, source: str) -> dict[str, Path]:
    """The data sets of a name that lie on this machine: the file of each source for `load`; a path is taken as it is.

    `source` is the one to look for, or "auto" for all of a task's.

    Raises:
        DataError: there is none.
    """
    if name.file is not None:
        return {"file": name.file}
    places = _places(name, source)
    found = {kind: path for kind, path in places.items() if path.is_file()}
    if not found:
        searched = ", ".join(map(str, places.values()))
        text = f"{name.minari} --source minari" if name.task is None else name.task
        raise DataError(
            f"{name}: not on this machine ({searched}); fetch it with python -m aaren_rl.datasets download {text}"
        )
    return found


def _places(name: Name, source: str) -> dict[str, Path]:
    if name.minari is not None:
        return {"minari": minari_data_dir(name.minari) / "main_data.hdf5"}
    assert name.task is not None
    task = get_task(name.task)
    places = {"d4rl": d4rl_dataset_dir() / task.d4rl_file, "local": local_path(task)}
    if source == "minari" or task.level in MINARI_LEVELS:
        places["minari"] = minari_data_dir(minari_id(task.name)) / "main_data.hdf5"
    return {kind: path for kind, path in places.items() if source in (kind, "auto")}
