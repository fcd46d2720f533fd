"""From a name and a source to a task and its episodes: what a source means, and whether its data fit."""

import difflib
import glob
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..base.errors import AarenRLError, DataError, UsageError
from ..base.files import sha256
from .data.assemble import hold_to_bounds, hold_to_choices
from .data.download import fetch, pin_path, write_pin
from .data.episodes import Episodes
from .data.files import SUFFIXES, read_env_id, read_file
from .data.hdf5 import d4rl_dataset_dir, d4rl_url
from .data.minari import Described, check_minari_id, installed, minari_data_dir, minari_id, read_minari, split_version
from .data.storage import allocate
from .local.sets import LEAST_STEPS, local_levels, local_path, make_local, recipe_of
from .tasks import arguments
from .tasks.built_in import BUILT_IN, LocalTask
from .tasks.environment import check_own_name, check_reference, own_task, same_dynamics, unversioned
from .tasks.names import find_task, get_task
from .tasks.spaces import MOST, parts_of
from .tasks.table import TASKS, D4RLTask, Reference, Task

Source: TypeAlias = str | os.PathLike[str] | Sequence[str]

MINARI = "minari:"
OF_THE_TABLE = ("auto", "d4rl", "local")
MARGIN = 0.05  # of the range of an action in the data, on either side
LEAST_LIMIT = 1000  # steps that are played where there is no time limit; or twice the longest episode of the data
_SIZES = ("layout", "observation_dim", "action_dim", "action_low", "action_high", "n_actions", "action_start")
_STEPS = ("observations", "actions", "rewards", "terminated")
_SAME = ("env_id", "observation_dim", "layout", "action_dim", "n_actions", "action_start", "action_low", "action_high")


# What a source means


class Origin(NamedTuple):
    """Where data are from: `kind` is "auto", "d4rl" or "local" for the task `name` of the table, "minari" for its id
    `name`, or "file" for the path `name`.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        """As it can be typed again."""
        return f"{MINARI}{self.name}" if self.kind == "minari" else self.name


def each(source: Source) -> list[str | os.PathLike[str]]:
    """A source, or several, as a list."""
    return [source] if isinstance(source, str | os.PathLike) else list(source)


def expand(source: Source) -> str | list[str]:
    """The sources that `source` names, with a pattern such as "logs/*.hdf5" as the sorted files that it matches.

    UsageError: a pattern matches no file, or a source is there twice.
    """
    found: list[str] = []
    for one in [os.fspath(word) for word in each(source)]:
        pattern = glob.has_magic(one) and "\0" not in one and not os.path.exists(one)
        if pattern and not (files := sorted(glob.glob(one))):
            raise UsageError(f"--source {one}: no file matches; correct the pattern")
        found += files if pattern else [one]
    twice = [one for i, one in enumerate(found) if os.path.normpath(one) in map(os.path.normpath, found[:i])]
    if twice:
        raise UsageError(f"--source {twice[0]}: is given twice, and its episodes would count twice; give it once")
    if not found:
        raise UsageError("--source: there is none; give a file or minari:ID")
    return found[0] if len(found) == 1 else found


def default_name(source: Source) -> str:
    """A name for the data of `source`: a file's name without its suffix, an id with dashes for slashes.

    Of several, it is what their names begin with in common, or else the first one's.
    """
    if not isinstance(source, str):
        names = [default_name(os.fspath(one)) for one in each(source)]
        return os.path.commonprefix(names).strip("-._") or names[0]  # noqa: RUF071  of characters
    plain = source.removeprefix(MINARI) if source.startswith(MINARI) else PurePath(source).stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-._") or "data"


def resolve(name: str, source: str | os.PathLike[str] = "auto") -> Origin:
    """What the task `name` and a source mean: auto, d4rl, local, minari, minari:ID, or a file's path.

    Raises:
        UsageError: no such task or source, or not a Minari id.
    """
    text = os.fspath(source)
    if source in OF_THE_TABLE:
        if source == "d4rl" and not isinstance(get_task(name), D4RLTask):
            raise UsageError(f"{name}: D4RL has no such data, because they are made locally; leave --source out")
        return Origin(text, get_task(name).name)
    if source == "minari":
        return Origin("minari", minari_id(name))
    if isinstance(source, str) and source.startswith(MINARI):
        return Origin("minari", check_minari_id(source.removeprefix(MINARI)))
    word = isinstance(source, str) and not {os.sep, os.altsep} & {*source} and not source.endswith(SUFFIXES)
    if word and not os.path.exists(source):
        raise UsageError(f"unknown source {text!r}; use auto, d4rl, local, minari, minari:ID or the path of a file")
    return Origin("file", text)


def is_own(source: Source, env_id: str | None, name: str = "") -> bool:
    """Whether these arguments of `load_task` mean data outside the table: files are its own under its names only."""
    sources = each(source)
    if env_id is not None or any(os.fspath(one).startswith(MINARI) for one in sources):
        return True
    return not {*OF_THE_TABLE, "minari"} & {*sources} and find_task(name) is None


def task_name(name: str, source: Source, env_id: str | None) -> str:
    """The name to file a task under, which is safe as a part of a path; for the arguments of `load_task`.

    UsageError: a name that must be the table's is not, or one of your own is the table's or not fit for a path.
    """
    versions = env_id is None and all(_is_version(name, os.fspath(one)) for one in each(source))
    own = is_own(source, env_id, name) and not versions
    return check_own_name(name) if own else get_task(name).name


def _is_version(name: str, source: str) -> bool:
    """Whether `source` names a version of the data that "minari" means for the task `name`."""
    return name in TASKS and source.startswith(MINARI) and split_version(source)[0] == f"{MINARI}{minari_id(name)}"


# Loading


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How data are read, wherever they are from, and what a user says of their environment: `load_task`'s options."""

    env_id: str | None = None
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    reference: Reference | None = None
    clip_actions: bool = False
    max_episode_steps: int | None = None
    local_steps: int | None = None
    progress: bool = True
    memory_map: bool = False
    actions: str | None = None
    columns: str | Sequence[str] | Mapping[str, str | Sequence[str]] = ()

    def limits(self, **sizes: Any) -> dict[str, Any]:  # noqa: ANN401
        """The fields of `assemble.Limits` for a file."""
        told = {"clip_actions": self.clip_actions, "max_episode_steps": self.max_episode_steps}
        return {**told, "memory_map": self.memory_map, "actions": self.actions, "names": named(self.columns), **sizes}

    def check_kind(self, kind: str) -> None:
        """Raises UsageError where data of this kind (`Origin.kind`) have no number of steps to ask for, or of fewer."""
        steps = self.local_steps
        if steps is not None and kind not in ("auto", "local"):
            raise UsageError(f"--local-steps {steps} is for local datasets; leave it out, or use --source local")
        if steps is not None and steps < LEAST_STEPS:
            raise UsageError(f"--local-steps {steps}: too few for a local dataset; give at least {LEAST_STEPS:,}")

    def task(self, name: str, env_id: str, **options: Any) -> Task:  # noqa: ANN401
        """The task of `env_id`, as `own_task`."""
        given = {"env_kwargs": self.env_kwargs, "max_episode_steps": self.max_episode_steps, **options}
        return own_task(name, env_id, reference=self.reference, **given)

    def without(self, name: str, episodes: Episodes, **space: Any) -> Task:  # noqa: ANN401
        """The task of data without an environment, open; UsageError: what goes with one is given."""
        if self.env_kwargs:
            raise UsageError("--env-kwargs: no environment is named to make with them; add --env-id ID")
        check_reference(self.reference)
        any_bound = () if episodes.discrete else (np.inf,) * episodes.action_dim
        task = Task(
            name=name,
            env_id="",
            observation_dim=episodes.observation_dim,
            action_dim=episodes.action_dim,
            n_actions=1 if episodes.discrete else None,
            horizon=0,
            action_low=tuple(-bound for bound in any_bound),
            action_high=any_bound,
            reference=self.reference,
            layout=episodes.layout,
        )
        return replace(task, **space)


def named(columns: str | Sequence[str] | Mapping[str, str | Sequence[str]]) -> dict[str, str | Sequence[str]]:
    """Which entries are what, of "observations=x,y actions=u" or such words; UsageError: a word is none."""
    if isinstance(columns, Mapping):
        return dict(columns)
    found: dict[str, str | Sequence[str]] = {}
    for word in columns.split() if isinstance(columns, str) else columns:
        role, equals, names = word.partition("=")
        if not equals or not role or not names.strip(","):
            raise UsageError(f"--columns {word}: write MEANING=NAME,NAME such as observations=x,y or actions=u")
        found[role] = [name for name in names.split(",") if name]
    return found


def load_episodes(
    name: str,
    source: Source = "auto",
    *,
    clip_actions: bool = False,
    max_episode_steps: int | None = None,
    local_steps: int | None = None,
    progress: bool = True,
    **options: Any,  # noqa: ANN401  the other ones of `load_task`
) -> Episodes:
    """Load the dataset of task `name`, e.g. "hopper-medium", or your own data from a file, under a name of your own.

    `source` is "d4rl" (D4RL's file in `$D4RL_DATASET_DIR`, else `~/.d4rl/datasets`, fetched from D4RL's server or the
    mirror `$D4RL_BASE_URL` if need be), "local" (a set made here from behavior policies that ship with the package), a
    file, several or a pattern, "minari" or "minari:ID", or "auto": D4RL's file if it is there, otherwise the local set,
    or D4RL's server where no policy ships, with a line on stderr. A fetched file is held to its SHA-256 in
    `FILE.sha256`; for one of your own, `sha256sum FILE > FILE.sha256` does the same.

    `clip_actions` and `max_episode_steps` are for files whose actions leave [-1, 1] or whose ends are not marked.
    `local_steps` is the size of a local set, 1,000 at least (default: 200,000, fewer for some). `progress` shows bars.

    Raises:
        UsageError: no such task or source, or an option does not fit.
        DataError: the data are missing and cannot be fetched, damaged, changed, or of another environment.
        SimulationError: the local set could not be made.
    """
    _, episodes = load_task(
        name,
        source,
        clip_actions=clip_actions,
        max_episode_steps=max_episode_steps,
        local_steps=local_steps,
        progress=progress,
        **options,
    )
    return episodes


def load_task(
    name: str,
    source: Source = "auto",
    *,
    env_kwargs: str | Mapping[str, Any] | None = None,
    **options: Any,  # noqa: ANN401
) -> tuple[Task, Episodes]:
    """A task and its data, of one source or of several that are one dataset, with their sizes on stderr.

    A source is one of `load_episodes`': for a name of the table, what is listed there; "minari": Minari's dataset for
    that name, scored in the environment that it was recorded on; "minari:ID": any Minari dataset, under a name of your
    own; or the path of a file that was recorded in your own environment `env_id`, made with `env_kwargs`, a mapping or
    JSON; without one, its spaces are the data's, and its task has an empty `env_id`. Of your own, `reference` gives the
    returns that score 0 and 100 (default: the Minari dataset's, if any), and the target return is the data's best.
    `memory_map` maps observations and actions from the disk; `actions` says that they are "discrete" or "continuous",
    `columns` which entries are what, {"observations": ["x", "y"], "actions": "u"} or "observations=x,y actions=u".
    Other options are those of `load_episodes`.

    Raises:
        UsageError: as `expand`; or `env_id` without a file, `reference` or `env_kwargs` for a task of the table, or
            `env_kwargs` without an environment.
        DataError: the sources are of different environments.
        AarenRLError: as `load_episodes`, `read_minari` and `own_task`.
    """
    try:
        reading = Reading(env_kwargs=arguments.env_kwargs(env_kwargs), **options)
    except ValueError as error:
        raise UsageError(f"--env-kwargs: {error}") from error
    sources = source if isinstance(source, os.PathLike) else expand(source)
    if isinstance(sources, str | os.PathLike):
        return _settled(*load_one(name, sources, reading))
    tasks: list[Task] = []
    parts: list[Episodes] = []
    for one in sources:
        task, episodes = load_one(name, one, reading)
        print(f"{one}: {len(episodes):,} episodes, {episodes.n_steps:,} steps", file=sys.stderr)
        for key in _SAME:
            if tasks and (found := getattr(task, key)) != (first := getattr(tasks[0], key)):
                raise DataError(
                    f"{one}: {key} is {found}, that of {sources[0]} is {first}; give sources of one environment"
                )
        tasks.append(task)
        parts.append(episodes)
    targets = tasks[0].target_returns
    if len(targets) == 1:  # the data's best
        targets = (max(target for task in tasks for target in task.target_returns),)
    return _settled(replace(tasks[0], target_returns=targets), _joined(name, parts))


def load_one(name: str, source: str | os.PathLike[str], reading: Reading) -> tuple[Task, Episodes]:
    """The data of one source and their task, in which `_settled` fills in what only data say."""
    name = task_name(name, source, reading.env_id)
    own = is_own(source, reading.env_id, name) or source == "minari"
    if reading.reference is not None and not own:
        raise UsageError(f"{name} has reference returns; give others with --env-id or a Minari dataset")
    if reading.env_kwargs and not own:
        raise UsageError(f"--env-kwargs: {name} is simulated as D4RL's is; give them with --env-id or a Minari dataset")
    if reading.env_id is not None and source in OF_THE_TABLE:
        raise UsageError(f"--env-id {reading.env_id} needs a dataset: --source PATH of a file")
    origin = resolve(name, source)
    reading.check_kind(origin.kind)
    if not own:
        return get_task(name), _load_of_table(get_task(name), origin, reading)
    if origin.kind == "minari":
        task, episodes = _load_minari(name, origin.name, reading)
    else:
        task, episodes = load_file(name, Path(origin.name), reading)
    targets = TASKS[name].target_returns if name in TASKS else (float(episodes.returns.max()),)
    return replace(task, target_returns=targets), episodes


def load_file(name: str, path: Path, reading: Reading) -> tuple[Task, Episodes]:
    """A file in its environment, if one is named; else held to nothing."""
    if reading.env_id is not None:
        task = reading.task(name, reading.env_id)
        return task, _read_for(task, path, reading)
    any_actions = {"action_low": -np.inf, "action_high": np.inf}
    episodes = read_file(path, dataset=name, **reading.limits(**any_actions))
    return reading.without(name, episodes), episodes


def _load_minari(name: str, dataset_id: str, reading: Reading) -> tuple[Task, Episodes]:
    """A Minari dataset in the environment that the user names, else in its eval_env_spec, else in its env_spec."""
    named = reading.env_id
    told = {"clip_actions": reading.clip_actions, "memory_map": reading.memory_map, "progress": reading.progress}
    episodes, spec = read_minari(dataset_id, plays=False, **told)
    reading = replace(reading, reference=reading.reference or spec.reference)
    played = spec.evaluated or spec.recorded
    notes, known = list[str](), [one for one in (spec.recorded, spec.evaluated) if one and one.env_id == named]
    if named is not None:
        if spec.env_id is not None and not known:
            notes.append(f"{dataset_id} was recorded on {spec.env_id}; {named}, of --env-id, is played")
        played = known[0] if known and known[0].problem is None else Described(named)
    if played is None:
        space: dict[str, Any] = {"layout": spec.unflat, "action_start": spec.action_start}
        bounds = {key: getattr(spec, key) for key in ("n_actions", "action_low", "action_high")}
        space |= {key: value for key, value in bounds.items() if value is not None}
        return reading.without(name, episodes, **space), episodes
    if played.problem is not None:
        raise DataError(played.problem)
    if played is spec.evaluated:
        shown = ", ".join(f"{key}={value!r}" for key, value in played.env_kwargs.items())
        notes += [f"evaluated in the dataset's eval_env_spec, {played.env_id}({shown})", *played.notes]
    kwargs = {**played.env_kwargs, **reading.env_kwargs}
    limit = reading.max_episode_steps or played.max_episode_steps
    task = reading.task(name, played.env_id, env_kwargs=kwargs, max_episode_steps=limit)
    clips = reading.clip_actions or (spec.recorded is not None and spec.recorded.clips)
    episodes = _arranged(task, replace(episodes, notes=(*episodes.notes, *notes)))
    episodes = _checked_fit(task, episodes, clips)
    return task, episodes if played is spec.evaluated else _held_to_horizon(task, episodes)


def _end_to_end(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    rows, mapped = sum(map(len, arrays)), any(isinstance(array, np.memmap) for array in arrays)
    joined = allocate((rows, *arrays[0].shape[1:]), np.result_type(*arrays), mapped)
    return np.concatenate(arrays, out=joined)


def _joined(name: str, parts: Sequence[Episodes]) -> Episodes:
    steps: dict[str, Any] = {key: _end_to_end([getattr(part, key) for part in parts]) for key in _STEPS}
    starts = np.cumsum([0, *(part.n_steps for part in parts)])
    ends = [part.offsets[1:] + start for part, start in zip(parts, starts[:-1], strict=True)]
    kinds, env_ids = ({getattr(part, key) for part in parts} for key in ("source", "env_id"))
    return replace(
        parts[0],
        **steps,
        offsets=np.concatenate([[0], *ends]),
        dataset=name,
        source=kinds.pop() if len(kinds) == 1 else "file",
        path=", ".join(part.path for part in parts),
        env_id=env_ids.pop() if len(env_ids) == 1 else parts[0].env_id,
        notes=tuple(dict.fromkeys(f"{os.path.basename(part.path)}: {note}" for part in parts for note in part.notes)),
    )


# Data of the table


def data_files(task: D4RLTask | LocalTask, local_steps: int | None = None) -> dict[str, Path]:
    """The file of each source that a task has ("d4rl", "local"), there or not, and of "minari" if it is there."""
    if isinstance(task, LocalTask):
        return {"local": local_path(task, local_steps)}
    files = {"d4rl": d4rl_dataset_dir() / task.d4rl_file, "local": local_path(task, local_steps)}
    for dataset in installed(minari_id(task.name))[:1]:
        files["minari"] = minari_data_dir(dataset) / "main_data.hdf5"
    return files


def _load_of_table(task: D4RLTask | LocalTask, origin: Origin, reading: Reading) -> Episodes:
    kind = origin.kind
    if kind == "auto":
        kind = "local" if isinstance(task, LocalTask) else _first_source(task, reading.local_steps)
    if kind == "local":
        path = make_local(task, reading.local_steps, progress=reading.progress)
        if not pin_path(path).is_file():
            write_pin(path, sha256(path))
    elif kind == "file":
        path = Path(origin.name)
    else:
        assert isinstance(task, D4RLTask)  # `resolve` takes no "d4rl" of others
        path = data_files(task)["d4rl"]
        if not path.is_file():
            _fetch(task, path, reading.progress)
    return replace(_read_for(task, path, reading), source=kind)


def _first_source(task: D4RLTask, steps: int | None) -> str:
    path = data_files(task)["d4rl"]
    if steps is not None and path.is_file():
        raise UsageError(f"--local-steps {steps}: {path} exists and takes precedence; add --source local")
    if steps is None and (path.is_file() or task.level not in local_levels(task.family)):
        return "d4rl"
    recipe_of(task)  # raises DataError if no behavior policy ships for the task
    print(
        f"{task.name}: using the local dataset of the shipped behavior policies; it is not D4RL's file "
        f"({path} does not exist; --source d4rl downloads it)",
        file=sys.stderr,
    )
    return "local"


def _fetch(task: D4RLTask, path: Path, progress: bool) -> None:
    url = d4rl_url(task)
    print(f"{task.name}: downloading D4RL's file from {url}, because {path} does not exist", file=sys.stderr)
    # What options of the load can mend is left to the load.
    mending = Reading(clip_actions=True, max_episode_steps=task.horizon)
    try:
        fetch(url, path, check=lambda part: _read_for(task, part, mending), progress=progress)
    except DataError as error:
        local = "use --source local, " if task.level in local_levels(task.family) else ""
        raise DataError(
            f"{error}, or set D4RL_DATASET_DIR to a folder that has {path.name} or D4RL_BASE_URL to a mirror "
            f"(https://HOST/{{file}} if all its files are in one folder), {local}"
            "or give the path of an HDF5 file as the source"
        ) from error


def sizes(task: Task) -> dict[str, Any]:
    """What `read_file` holds a file of the task to."""
    return {name: getattr(task, name) for name in _SIZES}


def own_bounds(path: Path) -> dict[str, Any]:
    """The bounds of actions in a file's environment; [-1, 1] if it names none, or, with a note, one that is unknown."""
    unknown: dict[str, Any] = {"action_low": -1.0, "action_high": 1.0}
    if (env_id := read_env_id(path)) is None:
        return unknown
    try:
        task = own_task("data", env_id)
    except AarenRLError as error:
        print(f"{path}: actions are held to [-1, 1], because {error}", file=sys.stderr)
        return unknown
    if task.n_actions is not None:
        return unknown  # of no effect on integers
    return {name: getattr(task, name) for name in ("action_dim", "action_low", "action_high")}


def _read_for(task: Task, path: Path, reading: Reading) -> Episodes:
    """A file, held to its pin and to the task's sizes, bounds, environment and horizon."""
    dataset = task.dataset if isinstance(task, LocalTask) else task.name
    episodes = read_file(path, dataset=dataset, **reading.limits(**sizes(task)))
    if isinstance(task, D4RLTask | LocalTask):
        same = same_dynamics(task.env_id) if isinstance(task, D4RLTask) else [task.env_id]
        if episodes.env_id not in (None, *same):
            raise DataError(
                f"{path}:env_id is {episodes.env_id}, {task.name} is simulated on {task.env_id}; choose the task the "
                "file was made for, or evaluate on another environment with --env-id"
            )
    else:
        episodes = _arranged(task, _chosen_env_id(episodes, task.env_id))
    return _held_to_horizon(task, episodes)


# Whether data fit a task


def _arranged(task: Task, episodes: Episodes) -> Episodes:
    """The episodes with their observations' parts in the order of the task's, noted; DataError: it has other parts."""
    try:
        found = episodes.arranged(task.layout)
    except ValueError as error:
        raise DataError(
            f"{episodes.path or episodes.dataset}: observations {error}, which are those of {task.env_id}; choose the "
            "environment it was recorded on"
        ) from error
    if found is episodes:
        return episodes
    order = ", ".join(name.partition("/")[2] for name in parts_of(found.layout or {}))
    return replace(found, notes=(*found.notes, f"observations are in the order of {task.env_id}: {order}"))


def _chosen_env_id(episodes: Episodes, env_id: str) -> Episodes:
    """Data of a file whose environment the user has named, often a newer version than the file's: with a note.

    UsageError: both are robots of D4RL, of which two have the same sizes, and not the same one.
    """
    there = episodes.env_id
    if there in (None, env_id):
        return episodes
    robots = {unversioned(there), unversioned(env_id)}
    if len(robots) > 1 and robots <= {unversioned(task.env_id) for task in TASKS.values()}:
        raise UsageError(f"--env-id {env_id}: {episodes.path} was recorded on {there}; leave --env-id out")
    note = f"the file names the environment {there}; {env_id} is used, whose sizes and bounds fit"
    return replace(episodes, env_id=env_id, notes=(*episodes.notes, note))


def _held_to_horizon(task: Task, episodes: Episodes) -> Episodes:
    """The episodes; DataError: one is longer than the task's, if these end."""
    longest = int(episodes.lengths.max())
    if task.horizon and longest > max(task.horizon, task.data_horizon):  # a built-in task's data may be longer
        # Minari's episodes are as they were recorded, and the option is the environment's time limit.
        steps = longest if episodes.source == "minari" else task.horizon
        raise DataError(
            f"{episodes.path}: has an episode of {longest:,} steps, {task.env_id} ends at {task.horizon}; "
            f"pass --max-episode-steps {steps}"
        )
    return episodes


def _checked_fit(task: Task, episodes: Episodes, clip_actions: bool) -> Episodes:
    """Raises DataError where data that were read by themselves do not fit an environment."""
    path = episodes.path or episodes.dataset
    found = episodes.observation_dim, episodes.action_dim
    wanted = task.observation_dim, 1 if task.n_actions else task.action_dim
    if found != wanted or episodes.discrete != bool(task.n_actions):
        kinds = ["discrete" if discrete else "continuous" for discrete in (episodes.discrete, task.n_actions)]
        raise DataError(
            f"{path}: has {found[0]} observation and {found[1]} {kinds[0]} action columns, {task.env_id} has "
            f"{wanted[0]} and {wanted[1]} {kinds[1]}; choose the environment it was recorded on"
        )
    if task.n_actions:
        hold_to_choices(path, episodes.actions, task.n_actions, task.action_start)
        return episodes
    notes, actions = list[str](), episodes.actions.copy() if clip_actions else episodes.actions
    hold_to_bounds(path, actions, (task.action_low, task.action_high), clip_actions, notes)
    return replace(episodes, actions=actions, notes=(*episodes.notes, *notes))


# What only the data say


def _settled(task: Task, episodes: Episodes) -> tuple[Task, Episodes]:
    """A task with what its environment leaves open, by its data, which note it: bounds, the time limit, or all."""
    if not task.env_id:
        return _without_environment(task, episodes)
    notes = list[str]()
    if not task.horizon:
        horizon = max(LEAST_LIMIT, 2 * int(episodes.lengths.max()))
        task = replace(task, horizon=horizon, env_kwargs={**task.env_kwargs, "max_episode_steps": horizon})
        notes.append(
            f"{task.env_id} has no time limit: an evaluation ends episodes after {horizon:,} steps; "
            "--max-episode-steps gives another"
        )
    bounds = np.array([task.action_low, task.action_high])
    if not np.isfinite(bounds).all():
        low, high = np.where(np.isfinite(bounds), bounds, _bounds(episodes.actions))
        if (odd := np.flatnonzero(low >= high)).size:
            raise DataError(
                f"{episodes.path}: action {odd[0]} is {episodes.actions[:, odd[0]].max():g} at most, and "
                f"{task.env_id} takes {task.action_low[odd[0]]:g} to {task.action_high[odd[0]]:g}; choose the "
                "environment it was recorded on"
            )
        task = replace(task, action_low=tuple(low.tolist()), action_high=tuple(high.tolist()))
        notes.append(
            f"{task.env_id} has unbounded actions: the policy acts within the data's range and {MARGIN:.0%} more, "
            f"{_ranges(low, high)}"
        )
    return task, replace(episodes, notes=(*episodes.notes, *notes))


def _without_environment(task: Task, episodes: Episodes) -> tuple[Task, Episodes]:
    """Discrete actions are numbered from 0 on, or from the smallest."""
    if task.n_actions is not None:
        first = min(task.action_start, int(episodes.actions.min()))
        last = max(task.action_start + task.n_actions - 1, int(episodes.actions.max()))
        if last - first >= MOST:
            raise DataError(
                f"{episodes.path or episodes.dataset}: actions are {first} to {last}, and each number in between would "
                "be a choice; number those that there are from 0 on, numpy.unique(actions, return_inverse=True)"
            )
        n = last - first + 1
        task = replace(task, action_dim=n, n_actions=n, action_start=first)
        told = f"actions are {first} to {last}"
    else:
        bounds, by_data = np.array([task.action_low, task.action_high]), _bounds(episodes.actions)
        usual = (episodes.actions.min(axis=0) >= -1) & (episodes.actions.max(axis=0) <= 1)
        low, high = np.where(np.isfinite(bounds), bounds, np.where(usual, by_data.clip(-1, 1), by_data))
        task = replace(task, action_low=tuple(low.tolist()), action_high=tuple(high.tolist()))
        told = f"actions are within {_ranges(low, high)}"
    named = episodes.env_id or "ID"
    near = difflib.get_close_matches(task.name, [*TASKS, *BUILT_IN], n=1, cutoff=0.85)
    hint = f" (did you mean --env {near[0]}?)" if near else ""
    note = f"no environment is named, so nothing is played and nothing scored; --env-id {named} names one{hint}; {told}"
    task = replace(task, horizon=int(episodes.lengths.max()))
    return task, replace(episodes, notes=(*episodes.notes, note))


def _bounds(actions: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The range of every action (N, A) and a margin, (2, A)."""
    low, high = actions.min(axis=0).astype(np.float64), actions.max(axis=0).astype(np.float64)
    wide = MARGIN * np.where(high > low, high - low, np.maximum(np.abs(low), 1.0))
    return np.array([low - wide, high + wide])


def _ranges(low: npt.NDArray[np.float64], high: npt.NDArray[np.float64]) -> str:
    shown = [f"[{a:.4g}, {b:.4g}]" for a, b in zip(low[:4], high[:4], strict=True)]
    return " x ".join(shown) + (f" x ... ({len(low)} in all)" if len(low) > 4 else "")
