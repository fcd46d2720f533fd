"""Columns to episodes, the same for every format: names, shapes, ends, bounds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...base.errors import DataError, UsageError
from ...base.system import require_memory
from ..tasks.spaces import Layout
from ..tasks.spaces import is_vector as is_flat
from ..tasks.table import ANT_D4RL_OBSERVATION_DIM, ANT_OBSERVATION_DIM
from . import columns as reading
from .columns import Column, Tree, columns_of, is_discrete, is_vector, wrong_shape
from .ends import END_NAMES, Ends, ends_of_one, episode_ends, read_ends
from .observations import fill_observations, flattened_by, read_observations, width_of
from .storage import allocate, release, should_map

OBSERVATIONS, ACTIONS, REWARDS = "observations", "actions", "rewards"
# The first name is ours; others are of Gymnasium's loops and of other packages.
STEP_NAMES = {
    OBSERVATIONS: ("observations", "observation", "obs"),
    ACTIONS: ("actions", "action", "acts"),
    REWARDS: ("rewards", "reward", "rews"),
}
KNOWN_NAMES = {name for names in STEP_NAMES.values() for name in names} | set(END_NAMES)
UNUSED_PREFIXES = ("next_", "info", "metadata")


class Table(NamedTuple):
    """Columns of as many steps, by the names that their file has; `place` names the file, or the part of it."""

    place: str
    columns: Mapping[str, Tree]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What data are held to: the sizes and the actions of their environment; None: any.

    `layout` is the space of observations, by which they are flattened. Bounds are numbers or (A,). `n_actions` insists
    on integers from `action_start` on, `action_dim` alone on others. Episodes end after `max_episode_steps` at the
    latest. Actions out of bounds are an error unless `clip_actions`. With `memory_map` observations and actions are
    mapped from the disk, as those of large data are.
    """

    layout: Layout | None = None
    observation_dim: int | None = None
    action_dim: int | None = None
    action_low: npt.ArrayLike = -1.0
    action_high: npt.ArrayLike = 1.0
    n_actions: int | None = None
    action_start: int = 0
    max_episode_steps: int | None = None
    clip_actions: bool = False
    memory_map: bool = False

    def __post_init__(self) -> None:
        """Raises UsageError where `max_episode_steps` is less than 1."""
        if self.max_episode_steps is not None and self.max_episode_steps < 1:
            raise UsageError(f"max_episode_steps is {self.max_episode_steps}; give 1 or more (--max-episode-steps)")


class _Part(NamedTuple):
    """A table whose columns have passed the checks of their shapes."""

    place: str
    steps: int
    observations: Tree
    actions: Column
    rewards: Column
    flags: dict[str, Column]
    others: dict[str, Column]

    @property
    def read(self) -> list[Column]:
        return [*columns_of(self.observations), self.actions, self.rewards, *self.flags.values()]

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of an observation before it is flattened, and of an action; -1: actions are integers."""
        actions = -1 if is_discrete(self.actions) else math.prod(self.actions.shape[1:])
        return sum(math.prod(column.shape[1:]) for column in columns_of(self.observations)), actions


def assemble(
    tables: Sequence[Table],
    limits: Limits,
    *,
    path: str,
    way_out: str,
    file: Path | None = None,
    one_each: bool = False,
    **labels: Any,  # noqa: ANN401  the other fields of `Episodes`
) -> dict[str, Any]:
    """The fields of `Episodes` of tables of steps, of which each is one where `one_each`; else flags mark the ends.

    Sizes are checked, against that of `file` too, before memory is taken. `path` names the data in messages, `way_out`
    says what to do where a column is missing. A trajectory may have one observation more than steps, the last, which is
    left out. Steps behind the last end are left out with a note.

    Raises:
        DataError: a column is missing, its shape does not fit, or it holds NaN, infinity, actions of another kind, out
            of bounds or not among the integers; or there is no complete episode.
    """
    notes: list[str] = []
    parts = [_pick(table, way_out) for table in tables]
    claims = [column for part in parts for column in part.read]
    claimed = reading.check_size(claims, file) if file else 4 * sum(column.claims for column in claims)
    mapped = limits.memory_map or should_map(claimed)
    if mapped:
        notes.append("observations and actions are mapped from the disk")
    else:
        require_memory(claimed, path, "use a smaller file")
    for part in parts:
        _check(part, limits, one_each)
        if part.sizes != parts[0].sizes:
            raise DataError(
                f"{part.place} has {_told(part)}, {parts[0].place} {_told(parts[0])}; give data of one environment"
            )
    observations, actions, rewards = _read(parts, limits.layout, mapped, notes)
    observations = _without_contact_forces(path, observations, limits.observation_dim, notes)
    _hold(path, observations, actions, limits, notes)
    starts = np.cumsum([0, *(part.steps for part in parts)])
    if one_each:
        marked = Ends(np.zeros(starts[-1], np.bool_), np.zeros(starts[-1], np.bool_))
        for part, row in zip(parts, starts[1:] - 1, strict=True):
            marked.ended[row], marked.terminated[row] = True, ends_of_one(part.place, part.flags, part.steps)
    else:
        (part,) = parts
        marked = read_ends(part.flags, part.others, part.steps, notes)
    ends = episode_ends(path, marked.ended, limits.max_episode_steps, notes)
    n_steps = int(ends[-1])
    if n_steps < len(rewards):
        notes.append(f"dropped {len(rewards) - n_steps:,} steps of an unfinished last episode")
    return {
        "observations": observations[:n_steps],
        "actions": actions[:n_steps],
        "rewards": rewards[:n_steps],
        "offsets": np.concatenate(([0], ends)),
        "terminated": marked.terminated[ends - 1],
        "layout": flattened_by(parts[0].observations, limits.layout),
        "path": path,
        **labels,
        "notes": (*notes, *labels.get("notes", ())),
    }


def _pick(table: Table, way_out: str) -> _Part:
    """The columns of a table by their meaning."""
    found = {role: _named(table, role, names, way_out) for role, names in STEP_NAMES.items()}
    rewards, actions = (_single(table, found[role]) for role in (REWARDS, ACTIONS))
    flags = {name: _single(table, name) for name in END_NAMES if name in table.columns}
    others = {
        name: column
        for name, column in table.columns.items()
        if name not in KNOWN_NAMES and not isinstance(column, Mapping | Sequence)
        if not name.startswith(UNUSED_PREFIXES) and column.shape[:1] == rewards.shape[:1] and is_vector(column)
    }
    steps = rewards.shape[0] if rewards.shape else 0
    return _Part(table.place, steps, table.columns[found[OBSERVATIONS]], actions, rewards, flags, others)


def _check(part: _Part, limits: Limits, one_each: bool) -> None:
    """All checks of a part but those of its numbers."""
    steps, rewards, actions = part.steps, part.rewards, part.actions
    if not steps or not is_vector(rewards):
        name = reading.name_of(rewards)
        raise DataError(
            f"{rewards.place} has shape {rewards.shape}; one number for each step is wanted, (N,) or (N, 1); give "
            f"{f'{name}.reshape(-1)' if max(rewards.shape, default=0) == math.prod(rewards.shape) > 0 else name} of at "
            "least one step"
        )
    if limits.n_actions is not None or limits.action_dim is not None:
        reading.check_kind(actions, limits.n_actions is not None)
    numbers = math.prod(actions.shape[1:])
    if len(actions.shape) == 1 and not is_discrete(actions) and limits.action_dim not in (None, 1):
        wrong_shape(actions, steps, f"({steps}, {limits.action_dim})")
    fits = numbers in (max(actions.shape[1:], default=1), limits.action_dim)
    if actions.shape[:1] != (steps,) or not numbers or not fits:
        wrong_shape(actions, steps, f"({steps}, any number)")
    if not (observed := columns_of(part.observations)):
        raise DataError(f"{part.place}: observations hold no numbers; {reading.CONVERT}")
    for column in observed:
        _check_observed(column, steps, one_each, limits.layout)
    for column in part.flags.values():
        if not (one_each and math.prod(column.shape) == 1) and (column.shape[:1] != (steps,) or not is_vector(column)):
            wrong_shape(column, steps, f"({steps},)")


def _named(table: Table, role: str, names: Sequence[str], way_out: str) -> str:
    if not (present := [name for name in names if name in table.columns]):
        shown = ", ".join(ascii(name) for name in sorted(table.columns)[:20]) or "nothing"
        if role == REWARDS:  # as in data of play
            way_out = f"add one for each step, zeros if you train --agent bc; {reading.CONVERT}"
        raise DataError(f"{table.place}: missing {role} (found: {shown}); {way_out}")
    return present[0]


def _single(table: Table, name: str) -> Column:
    column = table.columns[name]
    if isinstance(column, Mapping | Sequence):
        raise DataError(f"{table.place}:{name} is a group of columns, not one; {reading.CONVERT}")
    return column


def _check_observed(column: Column, steps: int, one_each: bool, layout: Layout | None) -> None:
    if len(column.shape) == 1 and column.dtype.kind in "biu" and (layout is None or is_flat(layout)):
        raise DataError(f"{column.place} are integers; store them one-hot, as FlattenObservation gives them")
    if len(column.shape) == 4 and column.dtype == np.uint8:
        raise DataError(
            f"{column.place} has shape {column.shape} of uint8, which are images; policies take vectors of numbers: "
            "store features of the images instead"
        )
    rows = (steps, steps + 1) if one_each else (steps,)
    if not column.shape or column.shape[0] not in rows or not math.prod(column.shape):
        wrong_shape(column, steps, f"({steps}, any number)")


def _told(part: _Part) -> str:
    observed, acted = part.sizes
    return f"{observed} observation columns and {'integers as' if acted < 0 else f'{acted} columns of'} actions"


def _read(
    parts: Sequence[_Part], layout: Layout | None, mapped: bool, notes: list[str]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.float32]]:
    total, acted = sum(part.steps for part in parts), parts[0].sizes[1]
    shape = (total,) if acted < 0 else (total, acted)
    actions = allocate(shape, np.int64 if acted < 0 else np.float32, mapped)
    rewards, start = np.empty(total, np.float32), 0
    for part in parts:
        rows = slice(start, start := start + part.steps)
        reading.read_finite(part.rewards, rewards[rows])
        if acted < 0:
            actions[rows] = part.actions.values().reshape(-1)
        else:
            reading.read_finite(part.actions, actions[rows])

    def fill(out: npt.NDArray[Any]) -> None:
        start = 0
        for part in parts:
            if len(rows := out[start : start + part.steps]):
                fill_observations(part.observations, layout, f"{part.place}:{OBSERVATIONS}", rows)
                release(out)
            start += part.steps

    stored = np.result_type(*{column.dtype for part in parts for column in columns_of(part.observations)})
    observations = read_observations(fill, (total, width_of(parts[0].observations, layout)), stored, mapped)
    _note_shapes(parts[0], layout, notes)
    return observations, actions, rewards


def _note_shapes(part: _Part, layout: Layout | None, notes: list[str]) -> None:
    observed = columns_of(part.observations)
    if len(observed) > 1 and layout is None:
        notes.append(f"observations are {', '.join(map(reading.name_of, observed))}, side by side")
    for column in (*observed, part.actions):
        if len(column.shape) > 2 and (layout is None or column is part.actions):
            notes.append(f"flattened {reading.name_of(column)} of shape (N, {str(column.shape[1:])[1:-1].rstrip(',')})")


def _without_contact_forces(
    path: str, observations: npt.NDArray[Any], wanted: int | None, notes: list[str]
) -> npt.NDArray[np.float32]:
    ours, theirs = ANT_OBSERVATION_DIM, ANT_D4RL_OBSERVATION_DIM
    if (wanted, observations.shape[1]) != (ours, theirs):
        return observations
    if observations[:, ours:].any():
        raise DataError(
            f"{path}:observations has {theirs} columns, and those behind Ant-v4's {ours} are not all zero; use D4RL's "
            "file"
        )
    notes.append(f"dropped {theirs - ours} all-zero observation columns (contact forces)")
    return observations[:, :ours].copy()


def _hold(
    path: str, observations: npt.NDArray[Any], actions: npt.NDArray[Any], limits: Limits, notes: list[str]
) -> None:
    held = ((OBSERVATIONS, observations, limits.observation_dim), (ACTIONS, actions, limits.action_dim))
    for key, array, wanted in held:
        if array.ndim > 1 and wanted not in (None, columns := array.shape[1]):
            raise DataError(
                f"{path}:{key} has {columns} columns, the environment has {wanted}; choose the task it was made for"
            )
    if limits.n_actions is not None:
        reading.hold_to_choices(path, actions, limits.n_actions, limits.action_start)
    elif actions.ndim > 1:
        low, high = (np.asarray(bound, dtype=np.float32) for bound in (limits.action_low, limits.action_high))
        reading.hold_to_bounds(path, actions, (low, high), limits.clip_actions, notes)
