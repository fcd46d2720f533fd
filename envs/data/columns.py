"""Columns of steps, whatever holds them: what their names mean, and their numbers read into arrays.

A source gives tables: columns by the names that it has for them, in a file or in memory. `NAMES` says what a name
means; what nobody knows is left alone, unless it may be an end or padding, which an error names (`rules`).
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...base.errors import DataError, UsageError, one_line
from ..tasks.spaces import Layout, flat_size, flatten_batch, is_vector
from ..tasks.table import ANT_D4RL_OBSERVATION_DIM, ANT_OBSERVATION_DIM, Task
from .episodes import allocate, is_far, moments, release

OBSERVATIONS, ACTIONS, REWARDS = "observations", "actions", "rewards"
UNREADABLE = "cannot be read ({}); get the file again, or make it again"
CONVERT = "aaren_rl.Episodes.from_arrays and .from_trajectories take arrays and lists (docs/howto/own-data.md)"

# What an entry may be called, by what it means. The first name is ours; others are of Gymnasium's loops and of other
# packages. Every flag has a value for each step. In the field's files:
#     D4RL            terminals: the environment ended the episode; timeouts: a time limit did
#     Gymnasium       terminations or terminated, truncations or truncated
#     Gym before 0.26 dones: either of both
#     d3rlpy          terminals; episode_terminals: the last step of every episode
#     OGBench         terminals: the last step of every trajectory; masks: 0 where the environment would end it
#     RLDS            is_first; is_terminal; is_last: a row behind the last step, which holds an observation alone
#     LeRobot         observation.state, action, next.reward, next.done, episode_index, frame_index
NAMES: dict[str, tuple[str, ...]] = {
    OBSERVATIONS: ("observations", "observation", "obs", "observation.state"),
    ACTIONS: ("actions", "action", "acts", "act"),
    REWARDS: ("rewards", "reward", "rews", "next.reward"),
    "terminated": (
        "terminals", "terminal", "terminations", "termination", "terminated", "terminateds", "is_terminal"
    ),
    "truncated": (
        "timeouts", "timeout", "truncations", "truncation", "truncated", "truncateds", "is_truncated", "next.truncated"
    ),
    "done": ("dones", "done", "dones_float", "next.done"),
    "last": ("episode_terminals", "episode_ends", "episode_end", "ends", "end"),
    "behind": ("is_last",),
    "goes_on": ("masks",),
    "first": ("is_first", "is_start", "episode_starts"),
    "number": ("episode_ids", "episode_id", "episode_index", "episode_idx", "episode_number", "episode_num", "episode",
               "eps_id", "ep_id", "ep_index", "ep_idx", "traj_id", "traj_ids", "traj_index", "traj_idx",
               "trajectory_id", "trajectory_ids", "trajectory_index"),
    "step": ("timestep", "timesteps", "frame_index", "step", "steps", "step_index", "step_id", "step_idx", "time_step",
             "elapsed_steps", "t"),
    "length": ("lengths", "length", "seq_len", "seq_lens", "seq_length", "sequence_length", "traj_lengths", "traj_len",
               "traj_length", "episode_lengths", "episode_length", "episode_len", "ep_len", "ep_lens", "path_lengths",
               "valid_length", "n_steps"),
    "valid": ("mask", "attention_mask", "valid", "is_valid", "valid_mask", "pad_mask", "padding_mask", "loss_mask",
              "traj_mask", "traj_masks", "filled"),
    "padding": ("is_pad", "is_padding", "padding", "pad", "action_is_pad", "padded"),
}  # fmt: skip
STEP_NAMES = (OBSERVATIONS, ACTIONS, REWARDS)
END_FLAGS = ("terminated", "truncated", "done", "last")
MEANING = {name: role for role, names in NAMES.items() for name in names}
UNUSED = ("next_", "next.", "info", "metadata", "observation.image", "observation.depth")  # what names begin with

Flags: TypeAlias = npt.NDArray[np.bool_]

_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")  # between those of episodeId
_NUMBERED = re.compile(r"(.*\D)(\d{1,6})\]?")
_BLOCK_BYTES = 2**25
_FIRST_ROWS = 65536  # enough to see whether a column of float64 moves
_LARGEST = np.finfo(np.float32).max


@dataclass(frozen=True)
class Column:
    """A row of numbers for every step: `data` has a `shape`, a `dtype` and slices, as arrays and HDF5's datasets.

    `place` names it in messages, as FILE:NAME. Its numbers are read on demand.
    """

    place: str
    data: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """That of its array."""
        return tuple(self.data.shape)

    @property
    def parts(self) -> "list[Column]":
        """The columns that it is read from."""
        return [self]

    @property
    def name(self) -> str:
        """Its name without its file and group."""
        return re.split("[:/ ]", self.place)[-1]

    @property
    def width(self) -> int:
        """Numbers of a step."""
        return math.prod(self.shape[1:])

    @property
    def is_discrete(self) -> bool:
        """Whether it holds integers, one for every step: (N,) or (N, 1)."""
        return self.data.dtype.kind in "biu" and self.shape[1:] in ((), (1,))

    def read(self, rows: Any = ()) -> npt.NDArray[Any]:
        """Its numbers, or some rows of them, in their own type; DataError: the file is damaged there."""
        try:
            return np.asarray(self.data[rows])
        except MemoryError:
            raise
        except Exception as error:  # what libraries raise on a damaged file depends on where the damage is
            raise DataError(f"{self.place}: {UNREADABLE.format(one_line(error, 150))}") from error

    def is_each(self, steps: int) -> bool:
        """Whether it has one number for each of so many steps."""
        return self.shape[:1] == (steps,) and self.width == 1

    def blocks(self, steps: int) -> Iterator[slice]:
        """Slices of the first steps that need little memory, of whole chunks of a file."""
        widest = max(self.parts, key=lambda part: part.width)
        chunk = (getattr(widest.data, "chunks", None) or (1,))[0]
        rows = chunk * max(1, _BLOCK_BYTES // (chunk * max(1, widest.width * widest.data.dtype.itemsize)))
        return (slice(start, min(start + rows, steps)) for start in range(0, steps, rows))


# Observations may be a dict or a list of columns, nested.
Tree: TypeAlias = "Column | Mapping[str, Tree] | Sequence[Tree]"
Found: TypeAlias = "Tree | DataError"  # what could not be read is an error, raised where it is used


def changed(tree: Tree, change: Callable[[Column], Any]) -> Any:
    """The tree of what `change` makes of its columns."""
    if isinstance(tree, Mapping):
        return {key: changed(part, change) for key, part in tree.items()}
    return change(tree) if isinstance(tree, Column) else tuple(changed(part, change) for part in tree)


def columns_of(tree: Tree) -> list[Column]:
    """The columns of observations in the order of Gymnasium's `flatten`: a dict's by their sorted keys."""
    if isinstance(tree, Column):
        return [tree]
    parts = [tree[key] for key in sorted(tree)] if isinstance(tree, Mapping) else tree
    return [column for part in parts for column in columns_of(part)]


@dataclass(frozen=True)
class Flat(Column):
    """Observations of several columns, or of a layout, as one column: flattened where they are read.

    `data` is their tree.
    """

    layout: Layout | None

    @property
    def parts(self) -> list[Column]:
        return columns_of(self.data)

    @property
    def width(self) -> int:
        return sum(part.width for part in self.parts) if self.layout is None else flat_size(self.layout)

    def read(self, rows: Any = ()) -> npt.NDArray[Any]:
        """Their numbers (N, O) in float64; DataError: a part is missing, of another shape or not in its space."""
        try:
            return flatten_batch(self.layout, changed(self.data, lambda part: part.read(rows)), self.place, np.float64)
        except ValueError as error:  # which says what to do
            raise DataError(str(error)) from error


class Table(NamedTuple):
    """Columns of as many steps, by the names that their source has; `place` names the file, or the part of it."""

    place: str
    columns: Mapping[str, Found]

    def of(self, name: str) -> Tree:
        if isinstance(found := self.columns[name], DataError):
            raise found
        return found


class Part(NamedTuple):
    """A table by what its columns mean; `marks` are those of ends, numbers and padding by meaning and name."""

    place: str
    observations: Tree
    actions: Column
    rewards: Column
    marks: dict[str, dict[str, Column]]
    others: dict[str, Column]

    def flat(self, layout: Layout | None) -> Column:
        """Observations as one column; those that are vectors as they are."""
        seen, place = self.observations, f"{self.place}:{OBSERVATIONS}"
        if not isinstance(seen, Column):
            return Flat(place, seen, layout)
        return seen if layout is None or is_vector(layout) else Flat(seen.place, seen, layout)

    @property
    def steps(self) -> int:
        return self.rewards.shape[0] if self.rewards.shape else 0

    @property
    def sizes(self) -> str:
        observed, acted = sum(column.width for column in columns_of(self.observations)), self.actions.width
        kind = "integers as actions" if self.actions.is_discrete else f"{acted} columns of actions"
        return f"{observed} observation columns and {kind}"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What data are held to: the sizes and the actions of their environment; None: any.

    `layout` is the space of observations, by which they are flattened. Bounds are numbers or (A,). `n_actions` insists
    on integers from `action_start` on, `action_dim` alone on others, and so does `actions`, "discrete" or "continuous".
    Episodes end after `max_episode_steps` at the latest; of several files (`one_of_several`), one without ends is one.
    Actions out of bounds are an error unless `clip_actions`. With `memory_map` observations and actions are mapped from
    the disk, as those of large data are. `columns` says which entries are what, {"observations": ["x", "y"],
    "actions": "u"}, in place of `NAMES`; `observation_keys` which parts of observations that are dicts are used.
    """

    layout: Layout | None = None
    observation_dim: int | None = None
    action_dim: int | None = None
    action_low: npt.ArrayLike = -1.0
    action_high: npt.ArrayLike = 1.0
    n_actions: int | None = None
    action_start: int = 0
    actions: str | None = None
    max_episode_steps: int | None = None
    one_of_several: bool = False
    clip_actions: bool = False
    memory_map: bool = False
    columns: Any = ()
    observation_keys: Any = ()

    def __post_init__(self) -> None:
        """Raises UsageError where a value is none that is possible."""
        if self.max_episode_steps is not None and self.max_episode_steps < 1:
            raise UsageError(f"max_episode_steps is {self.max_episode_steps}; give 1 or more (--max-episode-steps)")
        if self.actions not in (None, "discrete", "continuous"):
            raise UsageError(f"--actions {self.actions}: give discrete or continuous")
        object.__setattr__(self, "observation_keys", [str(key) for key in _words(self.observation_keys)])
        object.__setattr__(self, "columns", _meanings(self.columns))


def _words(given: Any) -> list[Any]:
    return given.split() if isinstance(given, str) else [*given] if isinstance(given, Iterable) else [given]


def _meanings(given: Any) -> dict[str, list[str]]:
    """The names of the entries by what they mean; UsageError: a word is none, or a meaning is unknown."""
    if not isinstance(given, Mapping):
        words = [(word, *word.partition("=")) for word in _words(given)]
        if odd := [word for word, role, _, names in words if not role or not names.strip(",")]:
            raise UsageError(f"--columns {odd[0]}: write MEANING=NAME,NAME such as observations=x,y or actions=u")
        given = {role: list(filter(None, names.split(","))) for _, role, _, names in words}
    if unknown := [role for role in given if role not in NAMES and role not in MEANING]:
        raise UsageError(f"names: {unknown[0]!r} is no meaning of a column; known are {', '.join(NAMES)}")
    return {role: [names] if isinstance(names, str) else list(map(str, _words(names))) for role, names in given.items()}


SIZES = ("layout", "observation_dim", "action_dim", "action_low", "action_high", "n_actions", "action_start")


def sizes(task: Task) -> dict[str, Any]:
    """The fields of `Limits` that data of a task are held to."""
    return {name: getattr(task, name) for name in SIZES}


def hold(path: str, steps: dict[str, npt.NDArray[Any]], limits: Limits, notes: list[str]) -> None:
    """Holds observations and actions to an environment's sizes, choices and bounds; changes `steps` where it must.

    D4RL's Ant has columns of contact forces, all zero, which Ant-v4 does not have: they are left out, with a note.
    """
    observations, actions = steps["observations"], steps["actions"]
    choices, wanted = actions.ndim == 1, limits.n_actions is not None
    if choices != wanted and limits.action_dim is not None:
        kinds = ["discrete" if discrete else "continuous" for discrete in (choices, wanted)]
        raise DataError(f"{path}:actions are {kinds[0]}, the environment's {kinds[1]}; choose another environment")
    ours, theirs = ANT_OBSERVATION_DIM, ANT_D4RL_OBSERVATION_DIM
    if (limits.observation_dim, observations.shape[1]) == (ours, theirs) and not observations[:, ours:].any():
        notes.append(f"dropped {theirs - ours} all-zero observation columns (contact forces)")
        steps["observations"] = observations = observations[:, :ours].copy()
    both = (OBSERVATIONS, observations, limits.observation_dim), (ACTIONS, actions, limits.action_dim)
    for key, array, dim in both:
        if array.ndim > 1 and dim not in (None, columns := array.shape[1]):
            raise DataError(f"{path}:{key} has {columns} columns, the environment has {dim}; choose another task")
    if actions.ndim > 1 or limits.n_actions is not None:
        _hold_actions(path, actions, limits, notes)


def _hold_actions(path: str, actions: npt.NDArray[Any], limits: Limits, notes: list[str]) -> None:
    """Raises DataError where an action, (N, A) or (N,), is out of bounds or no choice; `clip_actions` changes it."""
    if (n := limits.n_actions) is not None:
        first, last = limits.action_start, limits.action_start + n - 1
        if (odd := np.flatnonzero((actions < first) | (actions > last))).size:
            told = f"has {actions[odd[0]]} at step {odd[0]}, but the environment takes {first} to {last}"
            way_out = "choose the environment it was recorded on, or renumber its actions"
            raise DataError(f"{path}:actions {told}; {way_out}")
        return
    low, high = (np.asarray(bound, dtype=np.float32) for bound in (limits.action_low, limits.action_high))
    least, most = actions.min(axis=0), actions.max(axis=0)
    if np.all(least >= low) and np.all(most <= high):
        return
    found, allowed = (f"[{a.min():.6g}, {b.max():.6g}]" for a, b in ((least, most), (low, high)))
    if not limits.clip_actions:
        raise DataError(f"{path}:actions range over {found}, outside {allowed}; pass --clip-actions to clip them")
    np.clip(actions, low, high, out=actions)
    notes.append(f"clipped actions from {found} to {allowed}")


# Names


def named(table: Table, limits: Limits) -> Part:
    """The columns of a table by their meaning; DataError: one is missing, or is there twice with other numbers."""
    chosen = {MEANING.get(role, role): names for role, names in limits.columns.items()}
    meaning = {name: role for name, role in MEANING.items() if role not in chosen}
    meaning |= {name: role for role, names in chosen.items() for name in names}
    if missing := [name for names in chosen.values() for name in names if name not in table.columns]:
        raise _missing(table, missing[0])
    observations, actions, rewards = (_step_column(table, role, chosen.get(role)) for role in STEP_NAMES)
    if keys := limits.observation_keys:
        parts = observations if isinstance(observations, Mapping) else {}
        if absent := [key for key in keys if key not in parts]:
            has = ", ".join(parts) or "they are one array"
            raise DataError(f"{table.place}: observations have no {absent[0]} ({has}); correct it")
        observations = {key: parts[key] for key in keys}
    marks: dict[str, dict[str, Column]] = {}
    others: dict[str, Column] = {}
    for name, column in table.columns.items():
        role = meaning.get(name) or meaning.get(_WORDS.sub("_", name).lower() if len(name) > 1 else "")
        if role in STEP_NAMES or _numbered(name)[0] in STEP_NAMES:
            continue
        if role is not None and isinstance(found := table.of(name), Column):
            marks.setdefault(role, {})[name] = found
        elif isinstance(column, Column) and not name.startswith(UNUSED):
            others[name] = column
    return Part(table.place, observations, _one(table, actions), _one(table, rewards), marks, others)


def _missing(table: Table, name: str, way_out: str = "") -> DataError:
    found = ", ".join(ascii(name) for name in sorted(table.columns)[:20]) or "nothing"
    return DataError(f"{table.place}: missing {name} (found: {found}); {way_out}{CONVERT}")


def _step_column(table: Table, role: str, chosen: Sequence[str] | None) -> Tree:
    columns = table.columns
    present = [name for name in chosen or NAMES[role] if name in columns]
    if not present:  # obs_0, obs_1, ...
        present = sorted((name for name in columns if _numbered(name)[0] == role), key=lambda name: _numbered(name)[1])
        chosen = present
    if not present:  # rewards may be absent, as in data of play
        raise _missing(table, role, "add one for each step, zeros if you train --agent bc; " * (role == REWARDS))
    if chosen and len(present) > 1:
        values = [_one(table, table.of(name)).read() for name in present]
        if len({array.shape[:1] for array in values}) > 1:
            raise DataError(f"{table.place}: {', '.join(present)} have unequal numbers of rows; give as many in each")
        beside = np.concatenate([array.reshape(len(array), -1) for array in values], axis=1)
        return Column(f"{table.place}:{role}", beside)
    for other in present[1:]:
        one, two = ([column.read() for column in columns_of(table.of(name))] for name in (present[0], other))
        if len(one) != len(two) or not all(map(partial(np.array_equal, equal_nan=True), one, two)):
            which = f"--columns {role}={present[0]}, names={{'{role}': '{present[0]}'}}"
            both = f"{present[0]} and {other} both are {role}, and differ"
            raise DataError(f"{table.place}: {both}; leave one out, or say which, {which}")
    return table.of(present[0])


def _numbered(name: str) -> tuple[str | None, int]:
    """What a name such as obs_3 means, and its number."""
    match = _NUMBERED.fullmatch(name)
    return (MEANING.get(match[1].rstrip("_.[- ")), int(match[2])) if match else (None, 0)


def _one(table: Table, column: Tree) -> Column:
    if not isinstance(column, Column):
        raise DataError(f"{table.place}: actions or rewards are a group of columns, not one; {CONVERT}")
    return column


def apart(part: Part) -> list[Part]:
    """The episodes of columns (E, T, ...), with a mask or lengths beside them where they are padded; else the part."""
    shape, observed = part.rewards.shape[:2], columns_of(part.observations)
    fits = len(shape) == 2 and shape[1] > 1 and part.rewards.width == shape[1] and part.actions.shape[:2] == shape
    if not fits or any(column.shape[:2] != shape or len(column.shape) < 3 for column in observed):
        return [part]
    padded = part.marks.keys() & {"valid", "padding", "length"}
    for role, of in part.marks.items():
        for column in of.values():
            if column.shape[:1] != shape[:1]:
                raise DataError(f"{column.place} has shape {column.shape}; rewards are {shape}; {CONVERT}")
            known = role in END_FLAGS and column.shape == shape and not padded
            flags = column.read() != 0 if known else np.empty((0, 2))
            if flags[:, :1].any() or (flags[:, :-1] > flags[:, 1:]).any():
                told = f"arrays are {shape[0]} episodes of {shape[1]} steps, some of which end before their last"
                way_out = "lay them end to end, x.reshape(-1, *x.shape[2:]), with timeouts at the last of each row"
                way_out += "; numpy.swapaxes(x, 0, 1) before that if the first axis is of steps"
                raise DataError(f"{column.place}: {told}; {way_out}")

    # What may tell padding: a number of each episode or of each step.
    sizes = {shape[:1], (*shape[:1], 1), shape, (*shape, 1)}
    telling = {name: of for name, of in part.others.items() if of.shape in sizes}

    def episode(e: int) -> Part:
        def row(column: Column) -> Column:
            return Column(f"{column.place}[{e}]", column.read(e))

        marks = {role: {name: row(column) for name, column in of.items()} for role, of in part.marks.items()}
        steps = changed(part.observations, row), row(part.actions), row(part.rewards)
        return Part(f"{part.place} episode {e}", *steps, marks, {name: row(of) for name, of in telling.items()})

    return [episode(e) for e in range(shape[0])]


# Numbers


def read_finite(columns: Sequence[Column], out: npt.NDArray[Any], keep: Sequence[Flags]) -> npt.NDArray[Any]:
    """Read the rows that are kept, (N,) of each column, into `out` (M, ...), up to its end; returns it.

    DataError: a value is not finite in float32; the message has its place, its column and its step.
    """
    start = 0
    for column, kept in zip(columns, keep, strict=True):
        first = start
        for rows in column.blocks(len(kept)):
            values = column.read(rows)
            values = values if kept[rows].all() else values[kept[rows]]
            stop = min(start + len(values), len(out))
            with np.errstate(over="ignore", invalid="ignore"):  # infinite then, which is reported
                out[start:stop] = values[: stop - start].reshape(stop - start, *out.shape[1:])
            _check_finite(column.place, out[start:stop], start - first)
            start = stop
            for array in (out, *(part.data for part in column.parts)):
                release(array)
            if start == len(out):
                return out
    return out


def _check_finite(place: str, out: npt.NDArray[Any], first: int) -> None:
    if out.dtype.kind != "f" or not len(out) or (out.min() >= -_LARGEST and out.max() <= _LARGEST):
        return
    bad = np.argwhere(~(np.abs(out) <= _LARGEST))
    value = "NaN" if np.isnan(out[tuple(bad[0])]) else "infinite or beyond float32"
    where = f"step {first + bad[0][0]}" + (f", column {bad[0][1]}" if out.ndim == 2 else "")
    told = f"has values that are not finite, the first ({value}) at {where}"
    raise DataError(f"{place} {told}; repair them or leave the episode out")


def read_observations(columns: Sequence[Column], keep: Sequence[Flags], mapped: bool) -> npt.NDArray[Any]:
    """Observations (N, O) as float32, flattened, or all in float64 if float32 would lose what a column is about.

    Degrees, times or ticks may lie many of their deviations from zero. DataError: as `read_finite`, or `Flat.read`.
    """
    shape = sum(int(kept.sum()) for kept in keep), columns[0].width
    found = read_finite(columns, allocate(shape, np.float32, mapped), keep)
    stored = np.result_type(*(part.data.dtype for column in columns for part in column.parts))
    if np.can_cast(stored, np.float32) or not (far := is_far(*moments(found))).any():
        return found
    first = read_finite(columns, np.empty((min(shape[0], _FIRST_ROWS), shape[1])), keep)[:, far]
    ranges = np.ptp(found[:, far], axis=0).any() or np.ptp(first, axis=0).any()
    # Constant columns stay float32.
    return read_finite(columns, allocate(shape, np.float64, mapped), keep) if ranges else found


def narrowed(observations: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Observations (N, O) in memory as `read_observations` reads them."""
    return read_observations([Column(OBSERVATIONS, observations)], [np.ones(len(observations), np.bool_)], False)
