"""Minari datasets: fetched and written by minari, read as any HDF5 file after a check of what they say of themselves.

`minari.load_dataset` makes the environment that the metadata name where these lack a space, and so imports any module
they name. Here metadata are plain JSON, and an environment is believed only if Gymnasium's registry in this process has
it.
"""

import copy
import errno
import json
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from ...base.errors import DataError, UsageError, one_line
from ...base.files import alone, sha256, sync, write_folder, writing
from ..tasks.environment import close_env, entry_point_name, make_env, own_task
from ..tasks.spaces import Layout, checked_layout, flat_size, is_vector
from ..tasks.table import D4RLTask, Reference, get_task, is_plain_argument
from .columns import Limits, hold, sizes
from .episodes import Episodes
from .files import read, write_pin

WAY_OUT = "set MINARI_DATASETS_PATH to another folder"  # where the folder of datasets cannot be written
_AGAIN = "get the dataset again"
_WAYS = "name another remote in MINARI_REMOTE, or put the dataset's folder at {}"
_ID = re.compile(r"(?:[A-Za-z0-9_-]+/)*[A-Za-z0-9_-]+")  # minari's own, without the letters of other alphabets
_MAX_ID = 200
_REPEATED = "the observation behind each episode's last step was not recorded: it repeats the one before"

# Wrappers that change neither what an environment returns nor when it ends, so leaving them out changes no score.
_WATCHING = {"Monitor", "RecordEpisodeStatistics", "RecordVideo", "OrderEnforcing", "PassiveEnvChecker"}
_WATCHING |= {"DataCollector", "HumanRendering", "RenderCollection", "ObstructView", "AddWhiteNoise"}
_WATCHING |= {"DtypeObservation", "ClipAction", "FlattenObservation", "TimeLimit"}  # made again where they matter


# Names and places


def minari_dataset_dir() -> Path:
    """Where Minari keeps its datasets: `$MINARI_DATASETS_PATH`, else `~/.minari/datasets`, as the package does."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or os.path.expanduser("~/.minari/datasets"))


def check_minari_id(dataset_id: str) -> str:
    """A Minari id, which may become part of a path, with a version or without one; UsageError: it is not one."""
    if len(dataset_id) > _MAX_ID or not _ID.fullmatch(dataset_id):
        like = "write it like mujoco/hopper/medium-v0 (letters, digits, '_' and '-')"
        raise UsageError(f"{dataset_id[:60]!a} is not a Minari id; {like}")
    return dataset_id


def split_version(dataset_id: str) -> tuple[str, int | None]:
    """A Minari id's name and version: "mujoco/hopper/medium-v0" is ("mujoco/hopper/medium", 0); None: it has none."""
    match = re.fullmatch(r"(.*[^/])-v([0-9]{1,9})", dataset_id)
    return (match[1], int(match[2])) if match else (dataset_id, None)


def minari_data_dir(dataset_id: str) -> Path:
    """The folder of a dataset's `metadata.json` and `main_data.hdf5`; UsageError: no id with a version."""
    if split_version(check_minari_id(dataset_id))[1] is None:
        raise UsageError(f"the Minari id {dataset_id!r} has no version; write {dataset_id}-v0")
    return minari_dataset_dir() / dataset_id / "data"


def minari_id(name: str) -> str:
    """The Minari id of a task's data, without a version: "mujoco/hopper/medium" of "hopper-medium".

    These were recorded on the -v5 environments by other policies than D4RL's: scores are not comparable with D4RL's.
    UsageError: no such task, or one whose data are made here.
    """
    task = get_task(name)
    if not isinstance(task, D4RLTask):
        raise UsageError(f"{name}: Minari has no such data, because they are made locally; leave --source out")
    return f"mujoco/{task.family}/{task.level}"


def installed(dataset_id: str) -> list[str]:
    """The versions on this machine of a Minari id, the latest first; of one with a version itself, if it is there."""
    name, version = split_version(dataset_id)
    parent, _, last = name.rpartition("/")
    folders = [data.parent.name for data in (minari_dataset_dir() / parent).glob(f"{last}-v*/data")]
    found = [f"{parent}/{folder}".lstrip("/") for folder in folders if split_version(folder)[0] == last]
    return sorted((one for one in found if version in (None, split_version(one)[1])), key=split_version, reverse=True)


def choose_version(dataset_id: str) -> str:
    """A Minari id with its version: without one the latest that the remote or this machine has and minari can read.

    Where the remote cannot be asked or has none, it is the latest on this machine, with a line on stderr.

    Raises:
        UsageError: not a Minari id.
        DataError: this machine has none, and the remote has none that can be read or cannot be asked.
    """
    name, version = split_version(check_minari_id(dataset_id))
    if version is not None:
        return dataset_id
    from huggingface_hub.utils import logging  # on demand, as they take half a second
    from minari.storage.hosting import list_remote_datasets

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    here, remote = installed(name), os.environ.get("MINARI_REMOTE") or "Hugging Face"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = list_remote_datasets(prefix=name, latest_version=True, compatible_minari_version=True)
        latest = [check_minari_id(one) for one in found if split_version(one)[0] == name]
        reason = f"{remote} has no version of it that can be read here"
    except Exception as error:  # the clients of minari's remotes raise errors of their own
        latest, reason = [], f"{remote} cannot be asked for its versions ({_cause(error)})"
    if latest:
        return max([*latest, *here], key=split_version)
    if here:
        print(f"{name}: using {here[0]}, which is on this machine, because {reason}", file=sys.stderr)
        return here[0]
    way_out = _WAYS.format(f"{minari_dataset_dir() / name}-v0")
    raise DataError(f"minari:{name}: {reason}; check the name and the network, {way_out}")


def _cause(error: BaseException) -> str:
    """What happened at first, in one line; the hub's client wraps that into advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(f"{type(error).__name__}: {error}")


# What a dataset says of itself


@dataclass(frozen=True)
class Described:
    """An environment of a dataset's metadata; `problem` says why it cannot be played as described, and what to do.

    `clips`: actions were clipped to its bounds. `notes` list what differs here.
    """

    env_id: str
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    clips: bool = False
    notes: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class MinariSpec:
    """A dataset's metadata after all checks; None where it has none.

    It was recorded on the environment `recorded`, and is to be evaluated in `evaluated`. Observations have the
    `layout`; `acted` are the fields of `columns.Limits` of its actions: their bounds (A,), or their number and the
    first; `reference` has the returns that score 0 and 100.
    """

    recorded: Described | None
    evaluated: Described | None
    reference: Reference | None
    layout: Layout | None
    acted: dict[str, Any]
    total_episodes: int
    total_steps: int
    notes: tuple[str, ...]


def read_spec(path: Path) -> MinariSpec:
    """Read a dataset's `metadata.json`; nothing is imported.

    DataError: it is missing or damaged; the data are not in HDF5; observations cannot be flattened, or actions are
    neither vectors nor integers; or the environment cannot be one.
    """
    try:
        return _spec(path, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        said = one_line(str(error).replace(str(path), path.name), 300)  # a long path must not push the reason out
        raise DataError(f"{path}: cannot be used ({said}); {_AGAIN}") from error


def _spec(path: Path, metadata: dict[str, Any]) -> MinariSpec:
    if (kind := metadata.get("data_format", "hdf5")) != "hdf5":
        raise DataError(f"{path}:data_format is {_shown(kind)}; only hdf5 is read, convert it with minari")

    def part(key: str, read: Callable[[Any], Any]) -> Any:
        return read(json.loads(metadata[key])) if metadata.get(key) else None

    recorded, evaluated = (part(key, partial(_environment, f"{path}:{key}")) for key in ("env_spec", "eval_env_spec"))
    notes = [*(() if recorded is None else recorded.notes)]
    notes += [f"{key}: {one_line(metadata[key])}" for key in ("algorithm_name", "description") if metadata.get(key)]
    scores: tuple[Any, Any] = metadata.get("ref_min_score"), metadata.get("ref_max_score")
    low, high = scores
    rise = all(isinstance(end, int | float) for end in (low, high)) and -1e300 < low < high < 1e300
    if not rise and (low, high) != (None, None):
        notes.append(f"left out reference scores that do not rise from one number to another: {_shown([low, high])}")
    reference = Reference("Minari's reference returns", float(low), float(high)) if rise else None
    layout, acted = part("observation_space", checked_layout), part("action_space", _actions) or {}
    totals = int(metadata["total_episodes"]), int(metadata["total_steps"])
    return MinariSpec(recorded, evaluated, reference, layout, acted, *totals, tuple(notes))


def _shown(value: object) -> str:
    return ascii(value)[:80]


def _actions(space: dict[str, Any]) -> dict[str, Any]:
    """`MinariSpec.acted` of a space; ValueError: actions are neither vectors nor integers."""
    if space["type"] == "Discrete":
        if not 0 < (n := int(space["n"])) < 2**53 or abs(start := int(space.get("start", 0))) >= 2**53:
            raise ValueError(f"action_space has {n} choices from {_shown(space.get('start'))} on")
        return {"n_actions": n, "action_start": start}
    if space["type"] != "Box":
        told = f"action_space is {_shown(space['type'])}; only Box (real numbers) and Discrete can be learned from"
        way_out = "number the combinations, numpy.ravel_multi_index(actions.T, nvec), for Episodes.from_trajectories"
        raise ValueError(f"{told}; {way_out}")
    bounds = np.array([space["low"], space["high"]], np.float64)
    if bounds.shape != (2, *space["shape"]) or not np.all(bounds[0] <= bounds[1]):
        raise ValueError(f"action_space has no bounds that fit its shape {_shown(space['shape'])}")
    low, high = (tuple(side.ravel().tolist()) for side in bounds)
    return {"action_dim": len(low), "action_low": low, "action_high": high}


def _environment(where: str, spec: dict[str, Any]) -> Described:
    """The environment of a description in JSON, `where` in messages; ValueError: it cannot be one."""
    env_id, entry = spec["id"], spec.get("entry_point")
    given = f"{where} gives {_shown(env_id)} the entry point {_shown(entry)} (not imported)"
    if not isinstance(env_id, str) or ":" in env_id:
        raise ValueError(f"{given}, which is no environment's id")
    if env_id not in gym.registry:
        way_out = "--register MODULE imports what registers it, --env-id ID names another"
        return Described(env_id, problem=f"{given}, Gymnasium knows no such environment; {way_out}")
    registered = gym.registry[env_id]
    # What the registry passes on itself is not the file's doing, and may name the environment's own files.
    wrapped = [asdict(wrapper) for wrapper in registered.additional_wrappers]
    own, around = json.loads(json.dumps([registered.kwargs, wrapped], default=str))
    kwargs = {key: value for key, value in (spec.get("kwargs") or {}).items() if own.get(key, [own]) != value}
    notes = [] if kwargs.pop("render_mode", None) is None else ["left out the environment's render_mode"]
    wrappers = spec.get("additional_wrappers") or []
    added = wrappers[len(around) :] if wrappers[: len(around)] == around else wrappers
    names = [str(wrapper["name"]) for wrapper in added]
    if watching := [name for name in names if name in _WATCHING - {"TimeLimit", "FlattenObservation"}]:
        notes.append(f"left out wrappers that only watch: {', '.join(watching)}")
    if entry != (known := entry_point_name(env_id)):
        notes.append(f"{given}; Gymnasium has {known} here, which is used")
    timed = [wrapper["kwargs"]["max_episode_steps"] for wrapper in added if wrapper["name"] == "TimeLimit"]
    limits = [limit for limit in (spec.get("max_episode_steps"), *timed) if limit is not None]
    if any(type(limit) is not int or not 0 < limit < 2**53 for limit in limits):
        raise ValueError(f"max_episode_steps is {_shown(limits)}, not a number of at least 1")
    problem, register = None, "register the environment with them and name it with --env-id"
    if changing := [name for name in names if name not in _WATCHING]:
        problem = f"{where} was recorded through wrappers ({_shown(changing)}; not imported); {register}"
    if odd := [key for key, value in kwargs.items() if not is_plain_argument(key, value)]:
        problem = f"{where}.kwargs has {_shown(odd)}, which may name files or modules, or are not plain; {register}"
    return Described(env_id, kwargs, min(limits, default=None), "ClipAction" in names, tuple(notes), problem)


# Reading


class MinariData(NamedTuple):
    """A Minari dataset: its episodes, and what it says of itself and of their environment."""

    episodes: Episodes
    spec: MinariSpec


def read_minari(dataset_id: str, limits: Limits | None = None) -> MinariData:
    """Read a Minari dataset, e.g. "mujoco/hopper/medium-v0"; without a version the latest, as in `choose_version`.

    Where it is not in `$MINARI_DATASETS_PATH`, else `~/.minari/datasets`, `minari` fetches it from its remote
    (`$MINARI_REMOTE`, by default Hugging Face). Numbers become float32. Of the T + 1 observations of an episode of T
    steps the last is left out. Actions must lie in the dataset's own action space. What it names is never imported;
    `Described.problem` says why its environment cannot be played here. In the `limits` the dataset's own spaces take
    the place of sizes and bounds.

    Raises:
        UsageError: not a Minari id.
        DataError: the dataset is not there and cannot be fetched; is damaged, changed or not in Minari's HDF5 layout;
            describes what `read_spec` refuses; or holds NaN, infinity, or actions out of bounds.
    """
    dataset_id = choose_version(dataset_id)
    folder = minari_data_dir(dataset_id)
    if not folder.exists():
        _fetch(dataset_id, folder.parent)
    return _read(dataset_id, folder, limits or Limits())


def _fetch(dataset_id: str, target: Path) -> None:
    """Fetch a dataset, by one process at a time: beside its place, where a later call goes on after a break; checked,
    pinned in `main_data.hdf5.sha256`, and only then renamed.
    """
    from huggingface_hub import utils  # on demand, as it takes half a second
    from minari.storage.remotes import get_cloud_storage

    hub: Any = utils  # its functions are not exported by name
    with alone(target, "downloading", WAY_OUT):
        if target.exists():  # another process has fetched it meanwhile
            return
        remote = os.environ.get("MINARI_REMOTE") or "Hugging Face"
        print(f"{dataset_id}: downloading from {remote} to {target}", file=sys.stderr)
        staging = target.with_name(f".{target.name}.part")  # Minari does not list hidden folders
        data = staging / dataset_id / "data"
        hub.logging.set_verbosity_error()
        try:
            get_cloud_storage().download_dataset(dataset_id, staging)
            if not data.exists():
                raise FileNotFoundError("the remote has no such dataset")
        except Exception as error:  # the clients of minari's remotes raise errors of their own
            way_out = f"check the id and the network, {_WAYS.format(target)}"
            raise DataError(f"{dataset_id}: minari could not download it ({_cause(error)}); {way_out}") from error
        try:
            _read(dataset_id, data, Limits(clip_actions=True))
        except DataError as error:
            shutil.rmtree(staging)
            reason = str(error).replace(str(data.parent), target.name)
            raise DataError(f"{dataset_id}: the downloaded dataset was deleted: {reason}") from error
        write_pin(data / "main_data.hdf5", sha256(data / "main_data.hdf5"))
        os.replace(data.parent, target)
        sync(target.parent)
        shutil.rmtree(staging)


def _read(dataset_id: str, folder: Path, limits: Limits) -> MinariData:
    path, spec = folder / "main_data.hdf5", read_spec(folder / "metadata.json")
    own: dict[str, Any] = {"action_low": -np.inf, "action_high": np.inf}
    # The user may know better than the spaces.
    if limits.actions in (None, "discrete" if "n_actions" in spec.acted else "continuous"):
        own |= spec.acted
    if spec.layout is not None and not limits.observation_keys:
        own |= {"layout": spec.layout, "observation_dim": flat_size(spec.layout)}
    episodes = read(path, replace(limits, **own), dataset_id)
    if episodes.n_steps != spec.total_steps:
        raise DataError(f"{path}: has {episodes.n_steps:,} steps, metadata.json counts {spec.total_steps:,}; {_AGAIN}")
    env_id, notes = None if spec.recorded is None else spec.recorded.env_id, (*spec.notes, *episodes.notes)
    if len(episodes) != spec.total_episodes:
        notes = (*notes, f"has {len(episodes):,} episodes, metadata.json counts {spec.total_episodes:,}")
    layout = episodes.layout or (None if spec.layout is None or is_vector(spec.layout) else spec.layout)
    return MinariData(replace(episodes, source="minari", env_id=env_id, notes=notes, layout=layout), spec)


# Writing


def write_minari(
    dataset_id: str,
    episodes: Episodes,
    *,
    env_id: str | None,
    env_kwargs: Mapping[str, Any] | None = None,
    description: str | None = None,
    reference_returns: tuple[float, float] | None = None,
) -> Path:
    """Write episodes as the Minari dataset `dataset_id` in `$MINARI_DATASETS_PATH`, else `~/.minari/datasets`.

    They were recorded on the registered environment `env_id` (None: unknown) made with `env_kwargs`. Minari stores
    T + 1 observations of an episode of T steps: the last is the one before, and the description says so.
    `reference_returns` score 0 and 100. Returns the folder.

    Raises:
        UsageError: not a Minari id, the dataset already exists, or an argument does not fit.
        SimulationError: the environment cannot be made.
        DataError: the episodes do not fit the environment, the dataset could not be read again, or the folder cannot
            be written; nothing is left behind.
    """
    from minari import __version__  # on demand, as it takes a quarter of a second
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    target = new_minari_folder(dataset_id)
    description = "; ".join(filter(None, (_REPEATED, description)))
    env_spec, action_space = _recorded_on(episodes, env_id, env_kwargs or {})
    low, high = (None, None) if reference_returns is None else map(float, reference_returns)
    about = {"description": description, "env_spec": env_spec, "ref_min_score": low, "ref_max_score": high}
    about |= {"dataset_id": dataset_id, "minari_version": __version__}
    buffers = []
    for e, episode in enumerate(episodes):
        seen = np.concatenate([episode.observations, episode.observations[-1:]])
        last = np.arange(1, len(episode) + 1) == len(episode)
        ends = {"terminations": last & episode.terminated, "truncations": last & (not episode.terminated)}
        buffers.append(EpisodeBuffer(e, None, None, seen, episode.actions, episode.rewards, **ends))

    def fill(folder: Path) -> None:
        data, size = folder / "data", sum(buffer.observations.nbytes + buffer.actions.nbytes for buffer in buffers)
        if shutil.disk_usage(folder).free < size:  # h5py's errors on a full disk end in a crash
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        data.mkdir()
        observed = gym.spaces.Box(-np.inf, np.inf, (episodes.observation_dim,), episodes.observations.dtype.type)
        storage = MinariStorage.new(data, observed, action_space)
        storage.update_metadata({key: value for key, value in about.items() if value is not None})
        storage.update_episodes(buffers)
        recorded = read_spec(data / "metadata.json").recorded
        if recorded is not None and recorded.problem is not None:
            raise DataError(f"minari:{dataset_id}: not written: {recorded.problem.replace(str(folder), '')}")
        for file in data.iterdir():
            sync(file)
        new_minari_folder(dataset_id)  # nobody has made it meanwhile

    with writing(target, WAY_OUT):
        write_folder(target, fill)
    return target


def new_minari_folder(dataset_id: str) -> Path:
    """The folder of a dataset to write; UsageError: not a Minari id, or the dataset already exists."""
    target = minari_data_dir(dataset_id).parent
    if target.exists():
        raise UsageError(f"{target}: already exists; choose another id, or delete that folder")
    return target


def _recorded_on(
    episodes: Episodes, env_id: str | None, env_kwargs: Mapping[str, Any]
) -> tuple[str | None, gym.Space[Any]]:
    """The environment's description as JSON, and its action space.

    Of an unknown one the space is [-1, 1], or further where the actions go; discrete actions begin at 0 there.
    """
    if env_id is None and episodes.discrete:
        first, last = min(0, int(episodes.actions.min())), int(episodes.actions.max())
        return None, gym.spaces.Discrete(last - first + 1, start=first)
    if env_id is None:
        low, high = np.minimum(-1.0, episodes.actions.min(axis=0)), np.maximum(1.0, episodes.actions.max(axis=0))
        return None, gym.spaces.Box(low.astype(np.float32), high.astype(np.float32))
    limits = Limits(**sizes(own_task("data", env_id, env_kwargs=env_kwargs)))
    hold(episodes.path, {"observations": episodes.observations, "actions": episodes.actions}, limits, [])
    env = make_env(env_id, **env_kwargs)
    close_env(env)
    described = copy.copy(env.spec)
    assert described is not None
    described.entry_point = entry_point_name(env_id)  # a class that was registered itself has no place in JSON
    try:
        return described.to_json(), env.action_space
    except (TypeError, ValueError) as error:
        raise UsageError(f"{env_id}: its arguments cannot be written as JSON ({error}); use plain values") from error
