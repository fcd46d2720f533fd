"""Minari datasets: fetched and written by minari, read as any HDF5 file after a check of what they say of themselves.

`minari.load_dataset` makes the environment that the metadata name where these lack a space, and so imports any module
they name. Here metadata are plain JSON, and an environment is believed only if Gymnasium's registry in this process has
it.
"""

import copy
import json
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import WrapperSpec

from ...base.errors import DataError, UsageError, one_line
from ...base.files import alone, sha256, sync, writing
from ..tasks.environment import close_env, entry_point_name, is_plain_argument, make_env
from ..tasks.names import get_task
from ..tasks.spaces import Layout, checked_layout, flat_size, is_vector
from ..tasks.table import D4RLTask, Reference
from .assemble import Limits, assemble, hold_to_bounds, hold_to_choices
from .columns import Column, Table
from .download import verify_pin, write_pin
from .episodes import Episodes
from .hdf5 import open_hdf5, read_episode

WAY_OUT = "set MINARI_DATASETS_PATH to another folder"  # where the folder of datasets cannot be written
_AGAIN = "get the dataset again"
_KEYS = ("rewards", "observations", "actions", "terminations", "truncations")
_ID = re.compile(r"(?:[A-Za-z0-9_-]+/)*[A-Za-z0-9_-]+")  # minari's own, without the letters of other alphabets
_MAX_ID, _MOST_SHOWN, _MOST_FOUND = 200, 20, 2000
_REPEATED = "the observation behind each episode's last step was not recorded: it repeats the one before"

# Wrappers that change neither what an environment returns nor when it ends, so leaving them out changes no score.
_WATCHING = {"Monitor", "RecordEpisodeStatistics", "RecordVideo", "OrderEnforcing", "PassiveEnvChecker"}
_WATCHING |= {"DataCollector", "HumanRendering", "RenderCollection", "ObstructView", "AddWhiteNoise"}
_WATCHING |= {"DtypeObservation", "ClipAction"}
_KNOWN = _WATCHING | {"FlattenObservation", "TimeLimit"}  # the latter are made again where they change something


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


def installed(name: str) -> list[str]:
    """The versions on this machine of a Minari id that has none, the latest first."""
    parent, _, last = name.rpartition("/")
    folders = [data.parent.name for data in (minari_dataset_dir() / parent).glob(f"{last}-v*/data")]
    versions = [f"{parent}/{folder}".lstrip("/") for folder in folders if split_version(folder)[0] == last]
    return sorted(versions, key=_version, reverse=True)


def _version(dataset_id: str) -> int:
    return split_version(dataset_id)[1] or 0


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
    here, remote = installed(name), os.environ.get("MINARI_REMOTE") or "Hugging Face"
    try:
        latest, found = _latest(name)
        if latest is not None:
            return max([latest, *here], key=_version)
        if any(split_version(one)[0] == name for one in found):
            reason = f"{remote} has no version of it that can be read here"
        else:
            near = [one for one in found if one.startswith(f"{name.rpartition('/')[0]}/")] or found
            more = f" and {len(near) - _MOST_SHOWN} more" if len(near) > _MOST_SHOWN else ""
            has = ", ".join(near[:_MOST_SHOWN]) or f"nothing that begins with {name.split('/')[0]}"
            reason = f"{remote} has no dataset of that name; it has {has}{more}"
        way_out = "give one that it has, as --source minari:ID, or name another remote in MINARI_REMOTE"
    except Exception as error:  # the clients of minari's remotes raise errors of their own
        reason = f"{remote} cannot be asked for its versions ({_cause(error)})"
        way_out = (
            "check the network, name another remote in MINARI_REMOTE, or put the dataset's folder at "
            f"{minari_dataset_dir() / name}-v0"
        )
    if here:
        print(f"{name}: using {here[0]}, which is on this machine, because {reason}", file=sys.stderr)
        return here[0]
    raise DataError(f"minari:{name}: {reason}; {way_out}")


def _latest(name: str) -> tuple[str | None, list[str]]:
    """The latest version of a name that the remote has and minari can read, if any, and all ids that begin like it."""
    import minari  # on demand, as it takes a quarter of a second
    from minari.storage.remotes import get_cloud_storage

    remote = get_cloud_storage()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        listed = islice(remote.list_datasets(prefix=name.split("/")[0]), _MOST_FOUND)
        found = sorted({one for one in listed if split_version(check_minari_id(one))[1] is not None})
    for one in sorted((one for one in found if split_version(one)[0] == name), key=_version, reverse=True):
        try:
            written = str(remote.get_dataset_metadata(one).get("minari_version"))
        except Exception as error:  # the clients of minari's remotes raise errors of their own
            print(f"{one}: left out, because its metadata cannot be read ({_cause(error)})", file=sys.stderr)
            continue
        if written in minari.supported_dataset_versions:
            return one, found
        told = f"Minari {one_line(written, 20)} wrote it, which Minari {minari.__version__} here cannot read"
        print(f"{one}: left out, because {told}", file=sys.stderr)
    return None, found


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
    `layout`, actions the bounds `action_low` and `action_high` (A,), or they are `n_actions` integers from
    `action_start` on; `reference_returns` score 0 and 100.
    """

    recorded: Described | None
    evaluated: Described | None
    reference_returns: tuple[float, float] | None
    layout: Layout | None
    action_low: tuple[float, ...] | None
    action_high: tuple[float, ...] | None
    n_actions: int | None
    action_start: int
    total_episodes: int
    total_steps: int
    notes: tuple[str, ...]

    @property
    def env_id(self) -> str | None:
        """The environment it was recorded on."""
        return None if self.recorded is None else self.recorded.env_id

    @property
    def unflat(self) -> Layout | None:
        """The layout of observations that are no vectors by themselves."""
        return None if self.layout is None or is_vector(self.layout) else self.layout

    @property
    def reference(self) -> Reference | None:
        """The returns that score 0 and 100, under a name."""
        returns = self.reference_returns
        return None if returns is None else Reference("Minari's reference returns", *returns)


def read_spec(path: Path) -> MinariSpec:
    """Read a dataset's `metadata.json`; nothing is imported.

    DataError: it is missing or damaged; the data are not in HDF5; observations cannot be flattened, or actions are
    neither vectors nor integers; or the environment cannot be one.
    """
    try:
        metadata = _object(str(path), path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({one_line(error)}); {_AGAIN}") from error
    if (kind := metadata.get("data_format", "hdf5")) != "hdf5":
        raise DataError(f"{path}:data_format is {_shown(kind)}; only hdf5 is read, convert it with minari")
    notes: list[str] = []
    recorded, evaluated = (_described(path, metadata, key) for key in ("env_spec", "eval_env_spec"))
    notes += () if recorded is None else recorded.notes
    try:
        space = _space(path, metadata, "observation_space")
        layout = None if space is None else checked_layout(space)
    except ValueError as error:
        raise DataError(f"{path}:observation_space: observations {error}") from error
    described = [(key, metadata.get(key)) for key in ("algorithm_name", "description")]
    notes += [f"{key}: {one_line(text)}" for key, text in described if text and isinstance(text, str)]
    return MinariSpec(
        recorded=recorded,
        evaluated=evaluated,
        reference_returns=_reference_returns(metadata, notes),
        layout=layout,
        **_actions(path, _space(path, metadata, "action_space")),
        total_episodes=_count(path, metadata, "total_episodes"),
        total_steps=_count(path, metadata, "total_steps"),
        notes=tuple(notes),
    )


def _shown(value: object) -> str:
    return ascii(value)[:80]


def _object(where: str, text: Any) -> dict[str, Any]:  # noqa: ANN401  what JSON holds; Minari keeps JSON inside JSON
    try:
        value = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{where}: is not JSON ({one_line(error)}); {_AGAIN}") from error
    if not isinstance(value, dict):
        raise DataError(f"{where}: is not a JSON object; {_AGAIN}")
    return value


def _space(path: Path, metadata: dict[str, Any], key: str) -> dict[str, Any] | None:
    return None if metadata.get(key) is None else _object(f"{path}:{key}", metadata[key])


def _count(path: Path, values: dict[str, Any], key: str) -> int:
    value = values.get(key)
    if not isinstance(value, int) or not 0 < value < 2**53:
        raise DataError(f"{path}:{key} is {_shown(value)}, not a number of at least 1; use a dataset with data")
    return value


def _actions(path: Path, space: dict[str, Any] | None) -> dict[str, Any]:
    """The bounds of actions, (A,), or their number and the first one; None where they are not described."""
    found = dict.fromkeys(("action_low", "action_high", "n_actions")) | {"action_start": 0}
    if space is None:
        return found
    if space.get("type") == "Discrete":
        if not isinstance(start := space.get("start", 0), int) or abs(start) >= 2**53:
            raise DataError(f"{path}:action_space.start is {_shown(start)}, not a whole number; {_AGAIN}")
        return found | {"n_actions": _count(path, space, "n"), "action_start": start}
    shape = space.get("shape")
    if space.get("type") != "Box" or not isinstance(shape, list):
        raise DataError(
            f"{path}:action_space is {_shown(space.get('type'))}; only Box (real numbers) and Discrete actions can be "
            "learned from; number the combinations, numpy.ravel_multi_index(actions.T, nvec), and give them to "
            "aaren_rl.Episodes.from_trajectories"
        )
    try:
        bounds = np.array([space["low"], space["high"]], np.float64)
    except (KeyError, ValueError, TypeError, OverflowError):
        bounds = np.zeros(0)
    if bounds.shape != (2, *shape) or not np.all(bounds[0] <= bounds[1]):
        raise DataError(f"{path}:action_space has no bounds that fit its shape {_shown(shape)}; {_AGAIN}")
    return found | {"action_low": tuple(bounds[0].ravel().tolist()), "action_high": tuple(bounds[1].ravel().tolist())}


def _reference_returns(metadata: dict[str, Any], notes: list[str]) -> tuple[float, float] | None:
    low, high = metadata.get("ref_min_score"), metadata.get("ref_max_score")
    if low is None and high is None:
        return None
    if isinstance(low, int | float) and isinstance(high, int | float) and -1e300 < low < high < 1e300:
        return float(low), float(high)
    notes.append(f"left out reference scores that do not rise from one number to another: {_shown([low, high])}")
    return None


# The environment that it was recorded on


def _described(path: Path, metadata: dict[str, Any], key: str) -> Described | None:
    if metadata.get(key) is None:
        return None
    try:
        return _environment(f"{path}:{key}", _object(f"{path}:{key}", metadata[key]))
    except ValueError as error:
        raise DataError(f"{error}; {_AGAIN}") from error


def _environment(where: str, spec: dict[str, Any]) -> Described:
    """The environment of a description in JSON, `where` in messages; ValueError: it cannot be one."""
    env_id, entry = spec.get("id"), spec.get("entry_point")
    given = f"{where} gives {_shown(env_id)} the entry point {_shown(entry)} (not imported)"
    if not isinstance(env_id, str) or ":" in env_id:
        raise ValueError(f"{given}, which is no environment's id")
    if env_id not in gym.registry:
        way_out = "--register MODULE imports what registers it, --env-id ID names another"
        return Described(env_id, problem=f"{given}, Gymnasium knows no such environment; {way_out}")
    wrappers, kwargs = spec.get("additional_wrappers") or [], spec.get("kwargs") or {}
    if not isinstance(wrappers, list) or not isinstance(kwargs, dict):
        raise ValueError(f"{where}.kwargs or additional_wrappers have no names")
    notes, added = list[str](), _added(env_id, wrappers)
    if _of_ours(entry) != _of_ours(known := entry_point_name(env_id)):
        notes.append(f"{given}; Gymnasium has {known} here, which is used")
    own = json.loads(json.dumps(gym.registry[env_id].kwargs, default=str))
    # What the registry passes on itself is not the file's doing, and may name the environment's own files.
    kwargs = {key: value for key, value in kwargs.items() if key not in own or value != own[key]}
    if kwargs.pop("render_mode", None) is not None:
        notes.append("left out the environment's render_mode")
    names = [str(wrapper.get("name")) for wrapper in added]
    if watching := [name for name in names if name in _WATCHING]:
        notes.append(f"left out wrappers that only watch: {', '.join(watching)}")
    if foreign := [name for name in names if name not in _KNOWN]:
        notes.append(
            f"recorded through wrappers of other packages, which are left out ({_shown(foreign)}; not imported): if "
            f"they change observations, rewards or ends, register the wrapped environment and name it with --env-id"
        )
    problem = _problem(where, env_id, added, kwargs)
    return Described(env_id, kwargs, _limit(spec, added), "ClipAction" in names, tuple(notes), problem)


def _problem(where: str, env_id: str, added: list[dict[str, Any]], kwargs: dict[str, Any]) -> str | None:
    ours = [wrapper for wrapper in added if str(wrapper.get("entry_point")).startswith(("gymnasium.", "aaren_rl."))]
    if changing := [name for wrapper in ours if (name := str(wrapper.get("name"))) not in _KNOWN]:
        return (
            f"{where} was recorded through wrappers ({_shown(changing)}; not imported), without which {env_id} is "
            f"another task; register the wrapped environment and name it with --env-id"
        )
    for key, value in kwargs.items():
        if not is_plain_argument(key, value):
            return (
                f"{where}.kwargs has {_shown(key)} = {_shown(value)}; only finite numbers, words and lists of them are "
                "passed on to an environment, and nothing that names files or modules; register the environment with "
                "it and name that with --env-id"
            )
    return None


def _limit(spec: dict[str, Any], added: list[dict[str, Any]]) -> int | None:
    """The least time limit of a description and its wrappers; ValueError: one is none."""
    timed = [wrapper.get("kwargs") or {} for wrapper in added if wrapper.get("name") == "TimeLimit"]
    limits = [spec.get("max_episode_steps"), *(kwargs.get("max_episode_steps") for kwargs in timed)]
    known = [limit for limit in limits if limit is not None]
    if any(type(limit) is not int or not 0 < limit < 2**53 for limit in known):
        raise ValueError(f"max_episode_steps is {_shown(known)}, not a number of at least 1")
    return min(known, default=None)


def _added(env_id: str, wrappers: list[Any]) -> list[dict[str, Any]]:
    """A description's wrappers, without those that the environment is registered with."""
    shown = [wrapper if isinstance(wrapper, dict) else {"name": wrapper} for wrapper in wrappers]
    own = gym.registry[env_id].additional_wrappers
    return shown[len(own) :] if len(own) <= len(shown) and all(map(_is_wrapper, shown, own)) else shown


def _is_wrapper(described: dict[str, Any], own: WrapperSpec) -> bool:
    # Arguments are None where the wrapper does not record them.
    same = (described.get("name"), _of_ours(described.get("entry_point"))) == (own.name, _of_ours(own.entry_point))
    return same and described.get("kwargs") in (None, json.loads(json.dumps(own.kwargs, default=str)))


def _of_ours(entry_point: object) -> object:
    """An entry point without the module of this project that it is in, which other versions have elsewhere."""
    return re.sub(r"^aaren_rl\.[\w.]+:", "aaren_rl:", entry_point) if isinstance(entry_point, str) else entry_point


# Reading


class MinariData(NamedTuple):
    """A Minari dataset: its episodes, and what it says of itself and of their environment."""

    episodes: Episodes
    spec: MinariSpec


def read_minari(
    dataset_id: str,
    *,
    progress: bool = True,
    clip_actions: bool = False,
    plays: bool = True,
    **options: Any,  # noqa: ANN401
) -> MinariData:
    """Read a Minari dataset, e.g. "mujoco/hopper/medium-v0"; without a version the latest, as in `choose_version`.

    Where it is not in `$MINARI_DATASETS_PATH`, else `~/.minari/datasets`, `minari` fetches it from its remote
    (`$MINARI_REMOTE`, by default Hugging Face). Numbers become float32. Of the T + 1 observations of an episode of T
    steps the last is left out, as is an unfinished last episode, with a note. Actions must lie in the dataset's own
    action space. `progress` shows bars. What it names is never imported; where its environment cannot be played here
    that is an error only if it `plays`. Other `options` are fields of `assemble.Limits`.

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
    data = _read(dataset_id, folder, clip_actions=clip_actions, **options)
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
        remote = os.environ.get("MINARI_REMOTE") or "Hugging Face"
        print(f"{dataset_id}: downloading from {remote} to {target}", file=sys.stderr)
        staging = target.with_name(f".{target.name}.part")  # Minari does not list hidden folders
        data = staging / dataset_id / "data"
        if reason := _download(dataset_id, staging, progress):
            raise DataError(
                f"{dataset_id}: minari could not download it ({reason}); check the id and the network, name another "
                f"remote in MINARI_REMOTE, or put the dataset's folder at {target}"
            )
        try:
            _read(dataset_id, data, clip_actions=True)
        except DataError as error:
            shutil.rmtree(staging)
            reason = str(error).replace(str(data.parent), target.name)
            raise DataError(f"{dataset_id}: the downloaded dataset was deleted: {reason}") from error
        file = data / "main_data.hdf5"
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
        return _cause(error)
    finally:
        hub.logging.set_verbosity(level)
        if shown:
            hub.enable_progress_bars()
    return None if (folder / dataset_id).exists() else "the remote has no such dataset"


def _read(dataset_id: str, folder: Path, **options: Any) -> MinariData:  # noqa: ANN401
    path, spec = folder / "main_data.hdf5", read_spec(folder / "metadata.json")
    verify_pin(path)
    limits = Limits(
        layout=spec.layout,
        observation_dim=None if spec.layout is None else flat_size(spec.layout),
        action_dim=len(spec.action_low) if spec.action_low is not None else None,
        action_low=-np.inf if spec.action_low is None else spec.action_low,
        action_high=np.inf if spec.action_high is None else spec.action_high,
        n_actions=spec.n_actions,
        action_start=spec.action_start,
        **options,
    )
    with open_hdf5(path) as file:
        tables = [read_episode(file, f"episode_{e}", _KEYS) for e in range(len(file))]
        ended = [_is_ended(table) for table in tables]
        unfinished = [] if not tables or ended.pop() else [tables.pop()]
        if not tables:
            raise DataError(f"{path}: its only episode is unfinished: neither terminated nor truncated; use more data")
        labels: dict[str, Any] = {"dataset": dataset_id, "source": "minari", "env_id": spec.env_id}
        fields = assemble(tables, limits, path=str(path), way_out=_AGAIN, one_each=True, **labels)
        dropped = sum(_column(table, "rewards").shape[0] for table in unfinished)
    if (total := len(fields["rewards"]) + dropped) != spec.total_steps:
        raise DataError(f"{path}: has {total:,} steps, metadata.json counts {spec.total_steps:,}; {_AGAIN}")
    notes = [*spec.notes]
    if unfinished:
        notes.append(f"dropped {dropped:,} steps of an unfinished last episode")
    if n_open := ended.count(False):  # it ended where the next one began
        notes.append(f"treated {n_open:,} episodes without a mark at their end as truncated")
    fields |= {"layout": spec.unflat, "notes": (*notes, *fields["notes"])}
    return MinariData(Episodes(**fields), spec)


def _column(table: Table, key: str) -> Column:
    column = table.columns[key]
    if not isinstance(column, Column) or len(column.shape) == 0:
        raise DataError(f"{table.place}/{key}: is not one column; {_AGAIN}")
    return column


def _is_ended(table: Table) -> bool:
    """Whether a flag marks the end of an episode."""
    return any(_column(table, key).values().reshape(-1)[-1:].any() for key in _KEYS[3:])


# Writing


def write_minari(
    dataset_id: str,
    episodes: Episodes,
    *,
    env_id: str | None,
    env_kwargs: Mapping[str, Any] | None = None,
    description: str | None = None,
    reference_returns: tuple[float, float] | None = None,
    final_observations: npt.ArrayLike | None = None,
) -> Path:
    """Write episodes as the Minari dataset `dataset_id` in `$MINARI_DATASETS_PATH`, else `~/.minari/datasets`.

    They were recorded on the registered environment `env_id` (None: unknown) made with `env_kwargs`. Minari stores
    T + 1 observations of an episode of T steps: `final_observations` (E, O) are the last ones; without them the one
    before is repeated, and the description says so. `reference_returns` score 0 and 100. Returns the folder.

    Raises:
        UsageError: not a Minari id, the dataset already exists, or an argument does not fit.
        SimulationError: the environment cannot be made.
        DataError: the episodes do not fit the environment, the dataset could not be read again, or the folder cannot
            be written; nothing is left behind.
    """
    from minari import __version__  # on demand, as it takes a quarter of a second
    from minari.dataset.minari_storage import MinariStorage

    target = new_minari_folder(dataset_id)
    # The last step of each episode, again where nothing else is known.
    finals = episodes.observations[episodes.offsets[1:] - 1]
    if final_observations is None:
        description = "; ".join(filter(None, (_REPEATED, description)))
    elif np.shape(final_observations) == finals.shape:
        finals = np.asarray(final_observations, finals.dtype)
    else:
        shape = np.shape(final_observations)
        raise UsageError(f"final_observations have shape {shape}, not {finals.shape}; give one for each episode")
    env_spec, action_space = _recorded_on(episodes, env_id, env_kwargs or {})
    observed = gym.spaces.Box(-np.inf, np.inf, (episodes.observation_dim,), finals.dtype.type)
    low, high = (None, None) if reference_returns is None else map(float, reference_returns)
    about = {"description": description, "env_spec": env_spec, "ref_min_score": low, "ref_max_score": high}
    about = {key: value for key, value in about.items() if value is not None}
    with writing(target, WAY_OUT):
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside its place, and hidden: Minari does not list hidden folders.
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as beside:
            data = Path(beside, "set", "data")
            data.mkdir(parents=True)
            storage = MinariStorage.new(data, observed, action_space)
            storage.update_metadata({"dataset_id": dataset_id, "minari_version": __version__, **about})
            storage.update_episodes(_buffers(episodes, finals))
            _check_readable(dataset_id, data / "metadata.json")
            for file in data.iterdir():
                sync(file)
            os.rename(data.parent, new_minari_folder(dataset_id))
        sync(target.parent)
    return target


def _buffers(episodes: Episodes, finals: npt.NDArray[Any]) -> Iterator[Any]:
    from minari.data_collector.episode_buffer import EpisodeBuffer

    for e, episode in enumerate(episodes):
        last = np.arange(1, len(episode) + 1) == len(episode)
        yield EpisodeBuffer(
            id=e,
            observations=np.concatenate([episode.observations, finals[e : e + 1]]),
            actions=episode.actions,
            rewards=episode.rewards,
            terminations=last & episode.terminated,
            truncations=last & (not episode.terminated),
        )


def _check_readable(dataset_id: str, file: Path) -> None:
    try:
        recorded = read_spec(file).recorded
        if recorded is not None and recorded.problem is not None:
            raise DataError(recorded.problem)
    except DataError as error:
        told = str(error).replace(f"{file}:", "")
        raise DataError(f"minari:{dataset_id}: not written, because it could not be read again: {told}") from error


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
    env = make_env(env_id, **env_kwargs)
    close_env(env)
    path = episodes.path or episodes.dataset
    for key, space in (("observations", env.observation_space), ("actions", env.action_space)):
        shape = getattr(episodes, key).shape[1:]
        if not isinstance(space, gym.spaces.Box if shape else gym.spaces.Discrete) or space.shape != shape:
            told = f"have {shape[0]} columns" if shape else "are integers"
            raise DataError(
                f"{path}: {key} {told}, those of {env_id} are {one_line(space)}; name the environment that the data "
                "were recorded on"
            )
    if isinstance(space, gym.spaces.Discrete):
        hold_to_choices(path, episodes.actions, int(space.n), int(space.start))
    elif isinstance(space, gym.spaces.Box):
        hold_to_bounds(path, episodes.actions, (space.low, space.high), False, [])
    described = copy.copy(env.spec)
    assert described is not None
    described.entry_point = entry_point_name(env_id)  # a class that was registered itself has no place in JSON
    try:
        return described.to_json(), space
    except (TypeError, ValueError) as error:
        raise UsageError(f"{env_id}: its arguments cannot be written as JSON ({error}); use plain values") from error
