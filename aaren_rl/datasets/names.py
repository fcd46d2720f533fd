"""The data set that a user names, by a task, `minari:ID`, or a file, and the same in another layout."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..base.errors import UsageError
from ..base.files import writing
from ..envs import TASKS, DataError, Episodes, LocalTask, Reference, get_task
from ..envs.data.files import SUFFIXES, read_env_id, read_file
from ..envs.data.hdf5 import write_hdf5
from ..envs.data.minari import (
    MinariSpec,
    installed,
    minari_data_dir,
    minari_dataset_dir,
    minari_id,
    new_minari_folder,
    read_minari,
    split_version,
    write_minari,
)
from ..envs.load import MINARI, Origin, Reading, data_files, load_file, load_one, own_bounds, resolve
from ..envs.local.sets import recipe_of
from ..envs.tasks.environment import same_dynamics, unversioned


def parse_name(text: str) -> Origin:
    """Tells the three kinds of names apart; a task is `auto`. All are safe as parts of a path.

    Raises UnknownTaskError where it is no task either, UsageError where no id follows `minari:`.
    """
    return resolve("", text) if text.endswith(SUFFIXES) or text.startswith(MINARI) else resolve(text)


def load(
    name: Origin, source: str, reading: Reading, *, any_actions: bool = True
) -> tuple[Episodes, Reference | None, MinariSpec | None]:
    """A data set, fetched or made where it is not there, the returns that score 0 and 100, and what Minari says of it.

    `source` is where a task's data come from: auto, d4rl, local, minari, `minari:ID` or a path. `reading.env_id` is a
    file's environment; without one its actions are taken as they are. Where not `any_actions`, or where they are
    clipped, they are held to the environment that the file names, or to [-1, 1]. Raises as `load_episodes`,
    `read_minari` and `read_file`, and UsageError where an option does not go with the name.
    """
    origin = resolve(name.name, source) if name.kind == "auto" or source.startswith(MINARI) else name
    reading.check_kind(origin.kind)
    if name.kind == "file":
        path = Path(name.name)
        if reading.env_id is None and (reading.clip_actions or not any_actions):
            return read_file(path, **reading.limits(**own_bounds(path))), None, None
        if (there := read_env_id(path)) is not None and reading.env_id is not None:
            robots = {unversioned(task.env_id) for task in TASKS.values()}
            if (
                there not in same_dynamics(reading.env_id)
                and {unversioned(there), unversioned(reading.env_id)} <= robots
            ):
                raise UsageError(f"--env-id {reading.env_id}: {path} was recorded on {there}; leave --env-id out")
        episodes = load_file(path.stem if reading.env_id is None else "data", path, reading)[1]
        return replace(episodes, env_id=episodes.env_id or reading.env_id), None, None
    if reading.env_id is not None:
        raise UsageError(f"--env-id {reading.env_id} goes with the path of a file; leave it out")
    if origin.kind != "minari":
        task, episodes = load_one(name.name, origin.name if origin.kind == "file" else origin.kind, reading)
        return episodes, task.reference, None
    if reading.max_episode_steps is not None:
        raise UsageError("--max-episode-steps is for files; Minari's data sets have their episodes apart")
    data = read_minari(origin.name, clip_actions=reading.clip_actions, plays=False)
    return data.episodes, data.spec.reference, data.spec


def on_disk(name: Origin, source: str, reading: Reading) -> dict[str, Path]:
    """The data sets of a name that lie on this machine: the file of each source for `load`; a path is taken as it is.

    A Minari id without a version is the latest on this machine.

    `source` is the one to look for, or "auto" for all of a task's, of which `reading.local_steps` leaves the local set.
    Raises DataError where there is none, UsageError where the name has no local set to ask for steps of.
    """
    reading.check_kind(name.kind)
    if name.kind == "file":
        return {"file": Path(name.name)}
    if name.kind == "minari" or source == "minari":  # minari_id raises an error where the data are made locally
        dataset = name.name if name.kind == "minari" else minari_id(name.name)
        if split_version(dataset)[1] is None:
            dataset = next(iter(installed(dataset)), f"{dataset}-v0")
        places = {"minari": minari_data_dir(dataset) / "main_data.hdf5"}
    else:
        wanted = "local" if source == "auto" and reading.local_steps is not None else source
        files = data_files(get_task(name.name), reading.local_steps)
        places = {kind: path for kind, path in files.items() if wanted in (kind, "auto")}
        if not places:
            resolve(name.name, wanted)  # raises: there are no such data
    found = {kind: path for kind, path in places.items() if path.is_file()}
    if not found:
        searched = ", ".join(map(str, places.values()))
        get = f"fetch it with aaren-rl datasets download {name.name}"
        if list(places) == ["minari"]:
            get += " --source minari"
        elif list(places) == ["local"] and name.name in TASKS:
            recipe_of(TASKS[name.name])  # raises: no policy ships for the task
            steps = "" if reading.local_steps is None else f" --local-steps {reading.local_steps}"
            get = f"make it with aaren-rl datasets info {name.name} --source local{steps}"
        raise DataError(f"{name}: not on this machine ({searched}); {get}")
    if path := found.pop("minari", None):  # with its version
        found[f"minari:{path.parent.parent.relative_to(minari_dataset_dir()).as_posix()}"] = path
    return found


def convert(source: Origin, target: Origin, reading: Reading, description: str | None) -> tuple[Path, Episodes]:
    """Writes the data set `source` as `target`: a file or a task as a Minari id, another file or a Minari id as HDF5.

    Returns the folder or file written, and its episodes: the same numbers, bit for bit. Raises UsageError unless the
    target is new and the environment of a file to Minari known; AarenRLError as the readers.
    """
    if target.kind == "file" and source.kind != "auto" and not source.name.endswith((".hdf5", ".h5")):
        return _to_file(source, Path(target.name), reading, description)
    if source.kind == "minari" or target.kind != "minari":
        raise UsageError(
            f"cannot convert {source} to {target}; give FILE minari:ID, minari:ID FILE.hdf5 or FILE.npz FILE.hdf5"
        )
    new_minari_folder(target.name)  # before a long read
    episodes, reference, _ = load(source, "auto", reading)
    env_id, limit, env_kwargs = reading.env_id or episodes.env_id, reading.max_episode_steps, dict[str, Any]()
    if source.kind != "file":
        task = get_task(source.name)
        if isinstance(task, LocalTask):  # whose data may be those of another
            task = get_task(task.dataset)
        env_id, env_kwargs, limit = task.env_id, dict(task.env_kwargs), limit or task.horizon
    if limit is not None:
        env_kwargs["max_episode_steps"] = limit
    if env_id is None:
        raise UsageError(f"{source}: does not name its environment; name it with --env-id, for example Hopper-v4")
    description = description or "; ".join([f"converted from {Path(episodes.path).name}", *episodes.notes])
    returns = None if reference is None else (reference.low, reference.high)
    options: dict[str, Any] = {"env_id": env_id, "env_kwargs": env_kwargs, "description": description}
    return write_minari(target.name, episodes, reference_returns=returns, **options), episodes


def _to_file(source: Origin, path: Path, reading: Reading, description: str | None) -> tuple[Path, Episodes]:
    if path.exists():
        raise UsageError(f"{path}: already exists; choose another name")
    if path.suffix not in (".hdf5", ".h5"):
        raise UsageError(f"{path}: only HDF5 is written; let the name end in .hdf5")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: its folder does not exist; create it first")
    of_files = (reading.env_id, reading.max_episode_steps) != (None, None)
    if description is not None or (source.kind == "minari" and of_files):
        told = "" if source.kind == "file" else ", --env-id and --max-episode-steps for files"
        raise UsageError(f"--description is for Minari{told}; leave them out")
    episodes, _, spec = load(source, "auto", reading)
    attributes = {"origin": f"converted from {source}"}
    if spec is not None and spec.recorded is not None and spec.recorded.env_kwargs:
        attributes["env_kwargs"] = json.dumps(spec.recorded.env_kwargs)
        print(f"note: the environment's arguments are in {path}, in env_kwargs, which nothing reads", file=sys.stderr)
    if episodes.env_id is not None:
        attributes["env_id"] = episodes.env_id
    with writing(path, "choose another folder"):
        write_hdf5(path, episodes, attributes)
    return path, episodes
