"""From a name and a source to a task and its episodes: what a source means, and whether its data fit."""

import difflib
import glob
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..base.errors import DataError, SimulationError, UsageError
from .data.columns import SIZES, Limits, hold, sizes
from .data.download import ADDRESS, fetch
from .data.episodes import Episodes, join
from .data.files import SUFFIXES, read
from .data.minari import Described, check_minari_id, installed, minari_data_dir, minari_id, read_minari, split_version
from .data.rules import ONE_EPISODE
from .local.behavior import LEAST_STEPS, local_levels, local_path, make_local, recipe_of
from .simulation import begin, play_episode
from .tasks import table
from .tasks.environment import close_env, make_env, own_task
from .tasks.spaces import MOST, parts_of, rearranged
from .tasks.table import BUILT_IN, D4RL_SERVER, TASKS, D4RLTask, LocalTask, Reference, Task, find_task, get_task

Source: TypeAlias = str | os.PathLike[str] | Sequence[str]

MINARI = "minari:"
OF_THE_TABLE = ("auto", "d4rl", "local")
SHOWN = 10  # sources whose sizes are printed one by one
MARGIN = 0.05  # of the range of an action in the data, on either side
LEAST_LIMIT = 1000  # steps that are played where there is no time limit; or twice the longest episode of the data
_RESETS, _PLAYED, _ROWS = 5, 200, 10_000  # first states, steps and rows of data by which units are compared
_FAR_APART, _NAMED = 30, 8  # times; columns that the note names


# What a source means


def each(source: Source) -> list[str]:
    """A source, or several, as a list."""
    return [os.fspath(one) for one in ([source] if isinstance(source, str | os.PathLike) else source)]


def expand(source: Source) -> str | list[str]:
    """The sources that `source` names, with a pattern such as "logs/*.hdf5" as the sorted files that it matches.

    UsageError: a pattern matches no file, or a source is there twice.
    """
    found: list[str] = []
    for one in each(source):
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
        names = [default_name(one) for one in each(source)]
        return os.path.commonprefix(names).strip("-._") or names[0]  # noqa: RUF071  of characters
    plain = source.removeprefix(MINARI) if source.startswith(MINARI) else Path(os.path.abspath(source)).stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-._") or "data"


def is_file(source: str) -> bool:
    """Whether a source is a file's path; UsageError: it is a word that is none of the known ones."""
    if source in (*OF_THE_TABLE, "minari") or source.startswith(MINARI):
        return False
    if not (os.path.exists(source) or {os.sep, os.altsep} & {*source} or source.endswith(SUFFIXES)):
        raise UsageError(f"unknown source {source!r}; use auto, d4rl, local, minari, minari:ID or the path of a file")
    return True


def is_own(source: Source, env_id: str | None, name: str = "") -> bool:
    """Whether these arguments of `load_task` mean data outside the table: files are its own under its names only."""
    if env_id is not None or any(one.startswith(MINARI) for one in each(source)):
        return True
    return not {*OF_THE_TABLE, "minari"} & {*each(source)} and find_task(name) is None


def task_name(name: str, source: Source, env_id: str | None) -> str:
    """The name to file a task under, which is safe as a part of a path; for the arguments of `load_task`.

    UsageError: a name that must be the table's is not, or one of your own is the table's or not fit for a path.
    """
    if not is_own(source, env_id, name):
        return get_task(name).name
    of_table = f"{MINARI}{minari_id(name)}" if name in TASKS and env_id is None else None
    versions = of_table is not None and all(split_version(one)[0] == of_table for one in each(source))
    return name if versions else table.check_own_name(name)  # versions of what "minari" means for the name


# Loading


@dataclass(frozen=True, kw_only=True)
class Reading(Limits):
    """What a user says of data, wherever they are from, and of their environment."""

    env_id: str | None = None
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    reference: Reference | None = None
    local_steps: int | None = None
    progress: bool = True


def load_episodes(name: str, source: Source = "auto", **options: Any) -> Episodes:
    """Load the dataset of task `name`, e.g. "hopper-medium", or your own data from a file, under a name of your own.

    `source` is "d4rl" (D4RL's file in `$D4RL_DATASET_DIR`, else `~/.d4rl/datasets`, fetched from D4RL's server or the
    mirror `$D4RL_BASE_URL` if need be), "local" (a set made here from behavior policies that ship with the package), a
    file, several or a pattern, "minari" or "minari:ID", or "auto": D4RL's file if it is there, otherwise the local set,
    or D4RL's server where no policy ships, with a line on stderr. A fetched file is held to its SHA-256 in
    `FILE.sha256`; for one of your own, `sha256sum FILE > FILE.sha256` does the same. `options` are `load_task`'s.

    Raises:
        UsageError: no such task or source, or an option does not fit.
        DataError: the data are missing and cannot be fetched, damaged, changed, or of another environment.
        SimulationError: the local set could not be made.
    """
    return load_task(name, source, **options)[1]


def load_task(
    name: str, source: Source = "auto", *, env_kwargs: str | Mapping[str, Any] | None = None, **options: Any
) -> tuple[Task, Episodes]:
    """A task and its data, of one source or of several that are one dataset, with their sizes on stderr.

    A source is one of `load_episodes`': for a name of the table, what is listed there; "minari": Minari's dataset for
    that name, scored in the environment that it was recorded on; "minari:ID": any Minari dataset, under a name of your
    own; or the path of a file that was recorded in your own environment `env_id`, made with `env_kwargs`, a mapping or
    JSON; without one, its spaces are the data's, and its task has an empty `env_id`. Of your own, `reference` gives the
    returns that score 0 and 100 (default: the Minari dataset's, if any), and the target return is the data's best.

    `columns` says which entries are what, {"observations": ["x", "y"], "actions": "u"} or "observations=x,y actions=u".
    `clip_actions` and `max_episode_steps` are for files whose actions leave their bounds or whose ends are not marked,
    `actions` says that they are "discrete" or "continuous", and `observation_keys` which parts of observations that are
    dicts are used, in the data and in the environment. `memory_map` maps observations and actions from the disk.
    `local_steps` is the size of a local set, 1,000 at least (default: 200,000, fewer for some). `progress` shows bars.

    Raises:
        UsageError: as `expand`, or an option does not fit.
        DataError: the sources are of different environments.
        AarenRLError: as `load_episodes`, `read_minari` and `own_task`.
    """
    reading = Reading(env_kwargs=table.env_kwargs(env_kwargs), **options)
    sources = each(expand(source))
    reading = replace(reading, one_of_several=len(sources) > 1 or sources != each(source))  # a pattern, too
    found = [load_one(name, one, reading) for one in sources]
    (task, episodes), others = found[0], found[1:]
    whole = [one for one, (_, part) in zip(sources, found, strict=True) if ONE_EPISODE in part.notes]
    for one, (of, part) in zip(sources if others else (), found, strict=False):
        if len(found) <= SHOWN:
            print(f"{one}: {len(part):,} episodes, {part.n_steps:,} steps", file=sys.stderr)
        if whole and one not in whole and len(part) > 1:
            told = f"{whole[0]}: marks no end, and {one} has the ends of {len(part):,} episodes"
            raise DataError(f"{told}; set timeouts to 1 at the last step of each episode, or leave one out")
        for key in ("env_id", *SIZES):
            if (there := getattr(of, key)) != (first := getattr(task, key)):
                raise DataError(f"{one}: {key} is {there}, that of {sources[0]} is {first}; give one environment's")
    if len(found) > SHOWN:
        sums = sum(len(part) for _, part in found), sum(part.n_steps for _, part in found)
        print("{:,} sources: {:,} episodes, {:,} steps".format(len(found), *sums), file=sys.stderr)
    if others:
        if len(task.target_returns) == 1:  # the data's best
            task = replace(task, target_returns=(max(target for of, _ in found for target in of.target_returns),))
        parts = [part for _, part in found]
        joined = join(parts, dataset=name, path=", ".join(part.path for part in parts), notes=_notes_of(parts))
        kind = episodes.source if len({part.source for part in parts}) == 1 else "file"
        episodes = replace(joined, source=kind, env_id=episodes.env_id, layout=episodes.layout)
    if task.env_id and is_own(source, reading.env_id, name):
        episodes = replace(episodes, notes=(*episodes.notes, *_other_units(task, episodes)))
    return _settled(task, episodes)


def _notes_of(parts: Sequence[Episodes]) -> tuple[str, ...]:
    """The notes of several sources, each once, with the name of the first that has it and the number of the others."""
    of_note: dict[str, list[str]] = {}
    for part in parts:
        for note in part.notes:
            of_note.setdefault(note, []).append(os.path.basename(part.path))
    more = {1: "", 2: " and 1 other"}
    others = {note: more.get(len(names), f" and {len(names) - 1} others") for note, names in of_note.items()}
    return tuple(f"{names[0]}{others[note]}: {note}" for note, names in of_note.items())


def load_one(name: str, source: str, reading: Reading, *, plays: bool = True) -> tuple[Task, Episodes]:
    """The data of one source and their task, in which `load_task` fills in what only data say.

    Where nothing `plays`, the environment of a Minari dataset need not be one that can be made here.
    """
    name = task_name(name, source, reading.env_id)
    own = is_own(source, reading.env_id, name) or source == "minari"
    if not own and (reading.reference is not None or reading.env_kwargs):
        given = "reference returns" if reading.reference is not None else "--env-kwargs"
        raise UsageError(f"{name} is simulated and scored as D4RL's is; give {given} with --env-id or a Minari dataset")
    if reading.env_id is not None and source in OF_THE_TABLE:
        raise UsageError(f"--env-id {reading.env_id} needs a dataset: --source PATH of a file")
    if (steps := reading.local_steps) is not None and (source not in ("auto", "local") or steps < LEAST_STEPS):
        raise UsageError(f"--local-steps {steps} is for --source local and at least {LEAST_STEPS:,}; correct it")
    file = Path(source) if is_file(source) else None
    if not own:
        known = get_task(name)
        return known, _of_table(known, source, reading) if file is None else _read_for(known, file, reading)
    if file is None:
        task, episodes = _of_minari(name, source, reading, plays)
    elif reading.env_id is not None:
        task = _own_task(name, reading.env_id, reading)
        episodes = _read_for(task, file, reading)
    else:
        if reading.clip_actions:
            raise UsageError("--clip-actions: without an environment actions have no bounds; add --env-id ID")
        episodes = read(file, replace(reading, action_low=-np.inf, action_high=np.inf), name)
        task = _unplayed(name, episodes, reading)
    targets = TASKS[name].target_returns if name in TASKS else (float(episodes.returns.max()),)
    return replace(task, target_returns=targets), episodes


def _own_task(name: str, env_id: str, reading: Reading, of_data: Described | None = None) -> Task:
    """The task of `env_id`, as `own_task`; its data may describe its arguments and its time limit, too."""
    kwargs = {**(of_data.env_kwargs if of_data else {}), **reading.env_kwargs, **_keys(reading)}
    limit = reading.max_episode_steps or (of_data.max_episode_steps if of_data else None)
    return own_task(name, env_id, reference=reading.reference, env_kwargs=kwargs, max_episode_steps=limit)


def _keys(reading: Reading) -> dict[str, Any]:
    """The argument of an environment that shows some parts of its observations alone."""
    return {"observation_keys": keys} if (keys := reading.observation_keys) else {}


def _unplayed(name: str, episodes: Episodes, reading: Reading) -> Task:
    """The task of data without an environment, open; UsageError: what goes with one is given."""
    if reading.env_kwargs:
        raise UsageError("--env-kwargs: no environment is named to make with them; add --env-id ID")
    table.check_reference(reading.reference)
    open_ended = () if episodes.discrete else (np.inf,) * episodes.action_dim
    return Task(
        name=name,
        env_id="",
        observation_dim=episodes.observation_dim,
        action_dim=episodes.action_dim,
        n_actions=1 if episodes.discrete else None,
        horizon=0,
        action_low=tuple(-bound for bound in open_ended),
        action_high=open_ended,
        env_kwargs=_keys(reading),
        reference=reading.reference,
        layout=episodes.layout,
    )


def _of_minari(name: str, source: str, reading: Reading, plays: bool) -> tuple[Task, Episodes]:
    """A Minari dataset in the environment that the user names, else in its eval_env_spec, else in its env_spec."""
    dataset_id = minari_id(name) if source == "minari" else check_minari_id(source.removeprefix(MINARI))
    if reading.columns:
        raise UsageError(f"--columns: {dataset_id} has Minari's names; leave it out")
    episodes, spec = read_minari(dataset_id, replace(reading, max_episode_steps=None))
    reading = replace(reading, reference=reading.reference or spec.reference)
    played, notes = spec.evaluated or spec.recorded, list[str]()
    if (chosen := reading.env_id) is not None:
        known = [one for one in (spec.recorded, spec.evaluated) if one and one.env_id == chosen]
        if spec.recorded is not None and not known:
            notes.append(f"{dataset_id} was recorded on {spec.recorded.env_id}; {chosen}, of --env-id, is played")
        played = known[0] if known and known[0].problem is None else Described(chosen)
    if played is None or not plays:
        if reading.max_episode_steps is not None:
            raise UsageError(f"--max-episode-steps: episodes of {dataset_id} stay as recorded; leave it out")
        described = spec.acted if episodes.discrete == ("n_actions" in spec.acted) else {}
        return replace(_unplayed(name, episodes, reading), **described), episodes
    if played.problem is not None:
        raise DataError(played.problem)
    if played is spec.evaluated:
        shown = ", ".join(f"{key}={value!r}" for key, value in played.env_kwargs.items())
        notes += [f"evaluated in the dataset's eval_env_spec, {played.env_id}({shown})", *played.notes]
    task = _own_task(name, played.env_id, reading, played)
    episodes = _arranged(task, replace(episodes, notes=(*episodes.notes, *notes)))
    clips, clip = list[str](), reading.clip_actions or (spec.recorded is not None and spec.recorded.clips)
    # A copy where clipping changes it.
    actions = episodes.actions.copy() if clip and not episodes.discrete else episodes.actions
    steps: dict[str, Any] = {"observations": episodes.observations, "actions": actions}
    hold(episodes.path, steps, Limits(**sizes(task), clip_actions=clip), clips)
    episodes = replace(episodes, **steps, notes=(*episodes.notes, *clips))
    return task, episodes if played is spec.evaluated else _held_to_horizon(task, episodes)


# Data of the table


def data_files(task: D4RLTask | LocalTask) -> dict[str, Path]:
    """The file of each source that a task has ("d4rl", "local"), there or not, and of "minari:ID" if it is there."""
    local = {"local": local_path(task)}
    if not isinstance(task, D4RLTask):
        return local
    return {"d4rl": d4rl_dataset_dir() / task.d4rl_file, **local, **minari_files(minari_id(task.name))}


def minari_files(dataset_id: str) -> dict[str, Path]:
    """The file of "minari:ID", with its version, of the latest on this machine; empty if there is none."""
    return {f"{MINARI}{one}": minari_data_dir(one) / "main_data.hdf5" for one in installed(dataset_id)[:1]}


def d4rl_dataset_dir() -> Path:
    """Where D4RL keeps its files: `$D4RL_DATASET_DIR`, else `~/.d4rl/datasets`, as the d4rl package does."""
    return Path(os.environ.get("D4RL_DATASET_DIR") or os.path.expanduser("~/.d4rl/datasets"))


def d4rl_url(task: D4RLTask) -> str:
    """Where a task's file is fetched from: `gym_mujoco_v2/FILE` of D4RL's server, or of the mirror `$D4RL_BASE_URL`.

    UsageError: the mirror is no http or https address.
    """
    url = f"{(os.environ.get('D4RL_BASE_URL') or D4RL_SERVER).rstrip('/')}/gym_mujoco_v2/{task.d4rl_file}"
    if not ADDRESS.fullmatch(url):
        raise UsageError(f"{url!r} is not an http or https address; correct D4RL_BASE_URL")
    return url


def _of_table(task: D4RLTask | LocalTask, source: str, reading: Reading) -> Episodes:
    """The data of a task of the table, D4RL's file or the local set, which are fetched or made."""
    steps, of_d4rl = reading.local_steps, isinstance(task, D4RLTask)
    if source == "d4rl" and not of_d4rl:
        raise UsageError(f"{task.name}: D4RL has no such data, because they are made locally; leave --source out")
    if source == "auto":
        source = _first_source(task, steps) if isinstance(task, D4RLTask) else "local"
    if source == "local" or not isinstance(task, D4RLTask):
        path = make_local(task, steps, progress=reading.progress)
    elif not (path := d4rl_dataset_dir() / task.d4rl_file).is_file():
        _fetch(task, path, reading.progress)
    return replace(_read_for(task, path, reading), source=source)


def _first_source(task: D4RLTask, steps: int | None) -> str:
    path = d4rl_dataset_dir() / task.d4rl_file
    if steps is not None and path.is_file():
        raise UsageError(f"--local-steps {steps}: {path} exists and takes precedence; add --source local")
    if steps is None and (path.is_file() or task.level not in local_levels(task.family)):
        return "d4rl"
    recipe_of(task)  # raises DataError if no behavior policy ships for the task
    of_policies = f"{task.name}: using the local dataset of the shipped behavior policies; it is not D4RL's file"
    print(f"{of_policies} ({path} does not exist; --source d4rl downloads it)", file=sys.stderr)
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
        way_out = f"or set D4RL_DATASET_DIR to a folder that has {path.name} or D4RL_BASE_URL to a mirror"
        raise DataError(f"{error}, {way_out}, {local}or give the path of an HDF5 file as the source") from error


# Whether data fit a task


def _read_for(task: Task, path: Path, reading: Reading) -> Episodes:
    """A file, held to its pin and to the task's sizes, bounds, environment and horizon."""
    dataset = task.dataset if isinstance(task, LocalTask) else task.name
    episodes = read(path, replace(reading, **sizes(task)), dataset)
    there = episodes.env_id
    if isinstance(task, D4RLTask | LocalTask):
        same = table.same_dynamics(task.env_id) if isinstance(task, D4RLTask) and there else [task.env_id]
        if there not in (None, *same):
            told = f"{path}:env_id is {there}, {task.name} is simulated on {task.env_id}"
            way_out = "choose the task the file was made for, or evaluate on another environment with --env-id"
            raise DataError(f"{told}; {way_out}")
        return _held_to_horizon(task, episodes)
    if there is not None and there != task.env_id:
        robots = {table.unversioned(there), table.unversioned(task.env_id)}  # of D4RL, of which two have the same sizes
        if len(robots) > 1 and robots <= {table.unversioned(of.env_id) for of in TASKS.values()}:
            raise UsageError(f"--env-id {task.env_id}: {path} was recorded on {there}; leave --env-id out")
        note = f"the file names the environment {there}; {task.env_id} is used, whose sizes and bounds fit"
        episodes = replace(episodes, env_id=task.env_id, notes=(*episodes.notes, note))
    return _held_to_horizon(task, _arranged(task, episodes))


def _arranged(task: Task, episodes: Episodes) -> Episodes:
    """The episodes with their observations' parts in the order of the task's, noted; DataError: it has other parts."""
    try:
        order = rearranged(episodes.layout, task.layout)
    except ValueError as error:
        where = episodes.path or episodes.dataset
        raise DataError(f"{where}: observations {error}, which are those of {task.env_id}; choose another") from error
    names = [] if task.layout is None else [name.partition("/")[2] for name in parts_of(task.layout)]
    parts = ", ".join(names)
    if order is None and (episodes.layout is not None or len(names) < 2):
        return episodes
    if order is None:
        told = f"{task.env_id} flattens {parts}; the columns of observations must be in that order: they have no names"
        return replace(episodes, notes=(*episodes.notes, told))
    notes = *episodes.notes, f"observations are in the order of {task.env_id}: {parts}"
    return replace(episodes.arranged(order, task.layout), notes=notes)


def _held_to_horizon(task: Task, episodes: Episodes) -> Episodes:
    """The episodes; DataError: one is longer than the task's, if these end."""
    longest = int(episodes.lengths.max())
    if task.horizon and longest > max(task.horizon, task.data_horizon):  # a built-in task's data may be longer
        # Minari's episodes are as they were recorded, and the option is the environment's time limit.
        steps = longest if episodes.source == "minari" else task.horizon
        told = f"has an episode of {longest:,} steps, {task.env_id} ends at {task.horizon}"
        raise DataError(f"{episodes.path}: {told}; pass --max-episode-steps {steps}")
    return episodes


def _other_units(task: Task, episodes: Episodes) -> list[str]:
    """Notes where the first episode's actions, played again, give numbers that are far from the data's in size."""
    data = episodes[0]
    actions = iter(data.actions)
    try:
        env = make_env(task.env_id, **task.env_kwargs)
        try:
            firsts = [begin(env, seed=seed)[0] for seed in range(_RESETS)]
            own = play_episode(env, lambda _: next(actions), _RESETS - 1, min(_PLAYED, len(data)))
        finally:
            close_env(env)
    except SimulationError:  # an evaluation will say it
        return []
    rows = np.append(episodes.offsets[:-1][:_RESETS], np.arange(1, len(own)))
    seen = np.concatenate([firsts, own.observations[1:]]), episodes.observations[rows]
    paid = own.rewards[:, None], episodes.rewards[:_ROWS, None]
    notes = []
    for what, pair in (("observations", seen), ("rewards", paid)):
        here, there = map(_size, pair)
        times = np.divide(here, there, out=np.ones(len(here)), where=(here > 0) & (there > 0))
        if (far := np.flatnonzero(np.abs(np.log(times)) > np.log(_FAR_APART))).size:
            columns = "" if len(far) == len(times) else f" {', '.join(map(str, far[:_NAMED]))}"
            told = ", ".join(dict.fromkeys(f"{times[column]:.2g}" for column in far[:_NAMED]))
            compared = f"{what}{columns} of the environment are about {told} times those of the data"
            notes.append(f"{compared}: other units or scaling?")
    return notes


def _size(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Of each column (N, C) the median size of what is not 0, (C,)."""
    sizes = np.abs(values.astype(np.float64))
    return np.array([np.median(column[column > 0]) if (column > 0).any() else 0.0 for column in sizes.T])


# What only the data say


def _settled(task: Task, episodes: Episodes) -> tuple[Task, Episodes]:
    """A task with what its environment leaves open, or all where there is none, by its data; noted."""
    notes, longest = list[str](), int(episodes.lengths.max())
    if not task.env_id:
        near = difflib.get_close_matches(task.name, [*TASKS, *BUILT_IN], n=1, cutoff=0.85)
        hint = f" (did you mean --env {near[0]}?)" if near else ""
        named = f"--env-id {episodes.env_id or 'ID'} names one{hint}"
        notes.append(f"no environment is named, so nothing is played and nothing scored; {named}")
        task = replace(task, horizon=longest)
    elif not task.horizon:
        horizon = max(LEAST_LIMIT, 2 * longest)
        task = replace(task, horizon=horizon, env_kwargs={**task.env_kwargs, "max_episode_steps": horizon})
        told = f"{task.env_id} has no time limit: an evaluation ends episodes after {horizon:,} steps"
        notes.append(f"{told}; --max-episode-steps gives another")
    if task.n_actions is None:
        bounds = np.array([task.action_low, task.action_high])
        low, high = np.where(np.isfinite(bounds), bounds, _bounds(episodes.actions, within_1=not task.env_id))
        if (odd := np.flatnonzero(low >= high)).size:
            raise DataError(f"{episodes.path}: action {odd[0]} is out of the bounds of {task.env_id}; choose another")
        if not task.env_id:
            notes.append(f"actions are within {_ranges(low, high)}")
        elif not np.isfinite(bounds).all():
            acts = f"the policy acts within the data's range and {MARGIN:.0%} more, {_ranges(low, high)}"
            notes.append(f"{task.env_id} has unbounded actions: {acts}")
        task = replace(task, action_low=tuple(low.tolist()), action_high=tuple(high.tolist()))
    elif not task.env_id:
        task = _numbered(task, episodes)
        notes.append(f"actions are {task.action_start} to {task.action_start + task.action_dim - 1}")
    return task, replace(episodes, notes=(*episodes.notes, *notes))


def _numbered(task: Task, episodes: Episodes) -> Task:
    """Without an environment, choices are those of the data and all between, from 0 or the smallest on."""
    first = min(task.action_start, int(episodes.actions.min()))
    last = max(task.action_start + (task.n_actions or 1) - 1, int(episodes.actions.max()))
    if (count := last - first + 1) > MOST:
        told = f"actions are {first} to {last}, and each number in between would be a choice"
        way_out = "number those that there are from 0 on, numpy.unique(actions, return_inverse=True)"
        raise DataError(f"{episodes.path or episodes.dataset}: {told}; {way_out}")
    return replace(task, action_dim=count, n_actions=count, action_start=first)


def _bounds(actions: npt.NDArray[Any], within_1: bool) -> npt.NDArray[np.float64]:
    """The range of every action (N, A) and a margin, (2, A); `within_1`: within [-1, 1] where the data are."""
    low, high = actions.min(axis=0).astype(np.float64), actions.max(axis=0).astype(np.float64)
    wide = MARGIN * np.where(high > low, high - low, np.maximum(np.abs(low), 1.0))
    found = np.array([low - wide, high + wide])
    return np.where(within_1 & (low >= -1) & (high <= 1), found.clip(-1, 1), found)


def _ranges(low: npt.NDArray[np.float64], high: npt.NDArray[np.float64]) -> str:
    shown = [f"[{a:.4g}, {b:.4g}]" for a, b in zip(low[:4], high[:4], strict=True)]
    return " x ".join(shown) + (f" x ... ({len(low)} in all)" if len(low) > 4 else "")
