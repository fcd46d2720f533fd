"""Columns to episodes, the one way in: names, ends, kinds, checks, in that order, whatever the columns come from."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.errors import DataError, UsageError, one_line
from ...base.system import require_memory
from ..tasks.spaces import Layout, flat_size, flatten_batch
from ..tasks.spaces import is_vector as is_flat
from ..tasks.table import ANT_D4RL_OBSERVATION_DIM, ANT_OBSERVATION_DIM
from .columns import (
    ACTIONS,
    CONVERT,
    MEANING,
    NAMES,
    OBSERVATIONS,
    REWARDS,
    STEP_NAMES,
    UNUSED_PREFIXES,
    Beside,
    Column,
    Part,
    Table,
    Tree,
    columns_of,
    wrong_shape,
)
from .ends import cut_resets, episode_ends, marked
from .observations import read_observations
from .storage import allocate, blocks, release, should_map

_LARGEST = np.finfo(np.float32).max
_CHOICES = 256  # of actions that are whole numbers but stored as floats, which a note says


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What data are held to: the sizes and the actions of their environment; None: any.

    `layout` is the space of observations, by which they are flattened. Bounds are numbers or (A,). `n_actions` insists
    on integers from `action_start` on, `action_dim` alone on others, and so does `actions`, "discrete" or "continuous".
    Episodes end after `max_episode_steps` at the latest. Actions out of bounds are an error unless `clip_actions`. With
    `memory_map` observations and actions are mapped from the disk, as those of large data are. `names` says which
    entries are what, {"observations": ["x", "y"], "actions": "u"}, in place of `NAMES`.
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
    clip_actions: bool = False
    memory_map: bool = False
    names: Mapping[str, str | Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises UsageError where a value is none that is possible."""
        if self.max_episode_steps is not None and self.max_episode_steps < 1:
            raise UsageError(f"max_episode_steps is {self.max_episode_steps}; give 1 or more (--max-episode-steps)")
        if self.actions not in (None, "discrete", "continuous"):
            raise UsageError(f"--actions {self.actions}: give discrete or continuous")
        if unknown := [role for role in self.names if role not in NAMES and role not in MEANING]:
            raise UsageError(f"names: {unknown[0]!r} is no meaning of a column; known are {', '.join(NAMES)}")


def assemble(
    tables: Sequence[Table],
    limits: Limits,
    *,
    path: str,
    way_out: str,
    one_each: bool = False,
    **labels: Any,  # noqa: ANN401  the other fields of `Episodes`
) -> dict[str, Any]:
    """The fields of `Episodes` of tables of steps, of which each is one where `one_each`; else their columns tell.

    `path` names the data in messages, `way_out` says what to do where a column is missing. A trajectory may have one
    observation more than steps, the last, which is left out. Steps behind the last end are left out with a note.

    Raises:
        DataError: a column is missing, is there twice with different numbers, its shape does not fit, or it holds NaN,
            infinity, actions of another kind, out of bounds or not among the integers; ends contradict each other; or
            there is no complete episode.
    """
    notes: list[str] = []
    parts = [_named(table, limits, way_out, notes) for table in tables]
    if not one_each and (padded := _episodes_of_one_length(parts)):
        parts, one_each = padded, True
    for part in parts:
        _check_shapes(part, limits, one_each)
        if part.sizes() != parts[0].sizes():
            raise DataError(
                f"{part.place} has {_told(part)}, {parts[0].place} {_told(parts[0])}; give data of one environment"
            )
    found = marked(parts, one_each, notes)
    discrete = _kind(parts, limits, notes)
    observations, actions, rewards = _read(parts, found.kept, limits, discrete, path, notes)
    observations = _without_contact_forces(path, observations, limits.observation_dim, notes)
    if not one_each:
        observations, actions, rewards, found = cut_resets(observations, actions, rewards, found, notes)
    _hold(path, observations, actions, limits, notes)
    ends = episode_ends(path, found.ended, limits.max_episode_steps, notes)
    n_steps = int(ends[-1])
    if n_steps < len(rewards):
        notes.append(f"dropped {len(rewards) - n_steps:,} steps of an unfinished last episode")
    return {
        "observations": observations[:n_steps],
        "actions": actions[:n_steps],
        "rewards": rewards[:n_steps],
        "offsets": np.concatenate(([0], ends)),
        "terminated": found.terminated[ends - 1],
        "layout": flattened_by(parts[0].observations, limits.layout),
        "path": path,
        **labels,
        "notes": (*dict.fromkeys(notes), *labels.get("notes", ())),
    }


# Names


def _named(table: Table, limits: Limits, way_out: str, notes: list[str]) -> Part:
    """The columns of a table by their meaning."""
    chosen = {MEANING.get(role, role): [of] if isinstance(of, str) else [*of] for role, of in limits.names.items()}
    taken = {name for names in chosen.values() for name in names}
    found = {role: _step_column(table, role, chosen, way_out, notes) for role in STEP_NAMES}
    rewards = _single(table, REWARDS, found[REWARDS])
    marks: dict[str, dict[str, Column]] = {}
    for role in NAMES:
        names = [name for name in chosen.get(role, NAMES[role]) if name in table.columns]
        if role not in STEP_NAMES and names:
            marks[role] = {name: column for name in names if isinstance(column := table.columns[name], Column)}
    others = {
        name: column
        for name, column in table.columns.items()
        if isinstance(column, Column) and name not in MEANING and name not in taken and not _numbered(table, name)
        if not name.startswith(UNUSED_PREFIXES)
    }
    return Part(table.place, found[OBSERVATIONS], _single(table, ACTIONS, found[ACTIONS]), rewards, marks, others)


def _step_column(table: Table, role: str, chosen: Mapping[str, list[str]], way_out: str, notes: list[str]) -> Tree:
    columns = table.columns
    if role in chosen:
        if missing := [name for name in chosen[role] if name not in columns]:
            raise DataError(f"{table.place}: missing {missing[0]} (found: {_shown(columns)}); correct its name")
        return _beside(table, role, chosen[role])
    present = [name for name in NAMES[role] if name in columns]
    if not present and (numbered := _numbers_of(table, role)):
        return _beside(table, role, numbered)
    if not present:
        if role == REWARDS:  # as in data of play
            way_out = f"add one for each step, zeros if you train --agent bc; {CONVERT}"
        raise DataError(f"{table.place}: missing {role} (found: {_shown(columns)}); {way_out}")
    first = columns[present[0]]
    for other in present[1:]:
        if not _equal(first, columns[other]):
            raise DataError(
                f"{table.place}: {present[0]} and {other} both are {role}, and differ; leave one out, or say which, "
                f"--columns {role}={present[0]}, names={{'{role}': '{present[0]}'}}"
            )
    return first


def _shown(columns: Mapping[str, Tree]) -> str:
    return ", ".join(ascii(name) for name in sorted(columns)[:20]) or "nothing"


def _equal(one: Tree, other: Tree) -> bool:
    if not (isinstance(one, Column) and isinstance(other, Column)):
        return False
    return one.shape == other.shape and np.array_equal(one.values(), other.values(), equal_nan=one.dtype.kind == "f")


_NUMBERED = re.compile(r"(.*\D)(\d{1,6})\]?")


def _numbered(table: Table, name: str) -> bool:
    match = _NUMBERED.fullmatch(name)
    return match is not None and MEANING.get(match[1].rstrip("_.[- ")) in STEP_NAMES


def _numbers_of(table: Table, role: str) -> list[str]:
    """The columns obs_0, obs_1, ... of a meaning in the order of their numbers."""
    found = {name: match for name in table.columns if (match := _NUMBERED.fullmatch(name))}
    found = {name: match for name, match in found.items() if MEANING.get(match[1].rstrip("_.[- ")) == role}
    return sorted(found, key=lambda name: int(found[name][2]))


def _beside(table: Table, role: str, names: Sequence[str]) -> Tree:
    trees = [table.columns[name] for name in names]
    if len(trees) == 1:
        return trees[0]
    columns = [_single(table, name, tree) for name, tree in zip(names, trees, strict=True)]
    if odd := [column for column in columns if not column.shape or column.shape[0] != columns[0].shape[0]]:
        raise DataError(
            f"{odd[0].place} has shape {odd[0].shape}, {columns[0].place} {columns[0].shape}; give as many rows in each"
        )
    return Column(f"{table.place}:{role}", Beside(columns))


def _single(table: Table, name: str, column: Tree) -> Column:
    if not isinstance(column, Column):
        raise DataError(f"{table.place}:{name} is a group of columns, not one; {CONVERT}")
    return column


def _episodes_of_one_length(parts: list[Part]) -> list[Part]:
    """The episodes of columns (E, T, ...), with a mask or lengths beside them where they are padded; else nothing."""
    (part,) = parts
    shape, observed = part.rewards.shape[:2], columns_of(part.observations)
    if len(shape) < 2 or shape[1] < 2 or part.rewards.width != shape[1] or part.actions.shape[:2] != shape:
        return []
    if any(column.shape[:2] != shape or len(column.shape) < 3 for column in observed):
        return []
    marks: list[dict[str, dict[str, Column]]] = [{} for _ in range(shape[0])]
    for role, of in part.marks.items():
        for name, column in of.items():
            if column.shape[:1] != shape[:1]:
                wrong_shape(column, shape[0], str(shape))
            for e, one in enumerate(column.parts()):
                marks[e].setdefault(role, {})[name] = one
    columns = zip(_split(part.observations), part.actions.parts(), part.rewards.parts(), marks, strict=True)
    return [Part(f"{part.place} episode {e}", *of, {}) for e, of in enumerate(columns)]


def _split(tree: Tree) -> list[Tree]:
    """Of columns (E, T, ...) those of each episode."""
    if isinstance(tree, Mapping):
        return [dict(zip(tree, of, strict=True)) for of in zip(*map(_split, tree.values()), strict=True)]
    if isinstance(tree, Sequence):
        return [list(of) for of in zip(*map(_split, tree), strict=True)]
    return list(tree.parts())


# Shapes


def _check_shapes(part: Part, limits: Limits, one_each: bool) -> None:
    """All checks of a part but those of its numbers."""
    steps, rewards, actions = part.steps, part.rewards, part.actions
    if not steps or not rewards.is_vector:
        name = rewards.name
        raise DataError(
            f"{rewards.place} has shape {rewards.shape}; one number for each step is wanted, (N,) or (N, 1); give "
            f"{f'{name}.reshape(-1)' if max(rewards.shape, default=0) == math.prod(rewards.shape) > 0 else name} of at "
            "least one step"
        )
    kind = limits.n_actions is not None or limits.actions == "discrete"
    single = len(actions.shape) == 1 and not actions.is_discrete and not kind
    if single and limits.action_dim not in (None, 1):
        wrong_shape(actions, steps, f"({steps}, {limits.action_dim})")
    fits = actions.width in (max(actions.shape[1:], default=1), limits.action_dim)
    if actions.shape[:1] != (steps,) or not actions.width or not fits:
        wrong_shape(actions, steps, f"({steps}, any number)")
    if not (observed := columns_of(part.observations)):
        raise DataError(f"{part.place}: observations hold no numbers; {CONVERT}")
    for column in observed:
        _check_observed(column, steps, one_each, limits.layout)


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


def _told(part: Part) -> str:
    observed, acted = part.sizes()
    return f"{observed} observation columns and {'integers as' if acted < 0 else f'{acted} columns of'} actions"


# Kinds


def _kind(parts: Sequence[Part], limits: Limits, notes: list[str]) -> bool:
    """Whether actions are choices: as `limits` say, else integers are; a note where that was inferred."""
    given = {"discrete": True, "continuous": False, None: None}[limits.actions]
    told = True if limits.n_actions is not None else None if limits.action_dim is None else False
    actions, wanted = parts[0].actions, given if given is not None else told
    if wanted is None:
        if actions.is_discrete:
            return True
        if actions.dtype.kind in "biu":
            notes.append(
                f"{actions.name} are {actions.width} columns of integers and taken as real numbers; number the "
                "combinations, numpy.ravel_multi_index, if they are choices"
            )
        elif actions.width == 1 and (choices := _whole(parts)) is not None:
            notes.append(
                f"{actions.name} are whole numbers, {choices[0]:g} to {choices[1]:g}, stored as {actions.dtype} and "
                "taken as real numbers; --actions discrete (kind='discrete') makes them choices"
            )
        return False
    if wanted != actions.is_discrete:
        if wanted and actions.width == 1 and _whole(parts) is not None:
            notes.append(f"{actions.name} are whole numbers stored as {actions.dtype}, and taken as choices")
        elif wanted or given is None:
            _refuse_kind(actions, wanted, given)
    return wanted


def _whole(parts: Sequence[Part]) -> tuple[float, float] | None:
    """The least and the greatest of actions, if all are whole numbers, several and not too many."""
    found: set[float] = set()
    for part in parts:
        values = part.actions.values()
        if not np.isfinite(values).all() or not np.array_equal(values, np.rint(values)):
            return None
        found.update(np.unique(values).tolist())
        if len(found) > _CHOICES:
            return None
    return (min(found), max(found)) if len(found) > 1 else None


def _refuse_kind(actions: Column, discrete: bool, given: bool | None) -> None:
    """Raises DataError: actions are not of the environment's kind; the message has the first such action."""
    values = actions.values()
    if not values.size:
        return
    if discrete:
        odd = np.argwhere(~np.isfinite(values) | (values != np.rint(values)))
        step = int(odd[0][0]) if len(odd) else 0
        wanted = f"integers, one for every step; store them as int64 of shape ({len(values)},)"
    else:
        step, wanted = 0, "vectors of real numbers; store them as float32"
    told = f"{values.dtype} of shape {values.shape} ({one_line(values[step], 60)} at step {step})"
    asks = "the environment takes" if given is None else "kind='discrete' takes"
    raise DataError(f"{actions.place} are {told}, but {asks} {wanted}")


# Numbers


def _read(
    parts: Sequence[Part],
    kept: Sequence[npt.NDArray[np.bool_] | None],
    limits: Limits,
    discrete: bool,
    path: str,
    notes: list[str],
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.float32]]:
    counts = [part.steps if keep is None else int(keep.sum()) for part, keep in zip(parts, kept, strict=True)]
    total, acted, width = sum(counts), parts[0].actions.width, width_of(parts[0].observations, limits.layout)
    claimed = 4 * total * (width + acted + 1)
    mapped = limits.memory_map or should_map(claimed)
    if mapped:
        notes.append("observations and actions are mapped from the disk")
    else:
        require_memory(claimed, path, "use a smaller file")

    def fill(out: npt.NDArray[Any], read: Callable[[Part, npt.NDArray[Any], Any], None]) -> None:
        start = 0
        for part, keep, count in zip(parts, kept, counts, strict=True):
            if len(rows := out[start : start + count]):
                cut = keep if keep is None or len(rows) == count else keep[: 1 + np.flatnonzero(keep)[len(rows) - 1]]
                read(part, rows, cut)
                release(out)
            start += count

    actions = allocate((total,) if discrete else (total, acted), np.int64 if discrete else np.float32, mapped)
    rewards = np.empty(total, np.float32)
    fill(rewards, lambda part, rows, keep: read_finite(part.rewards, rows, keep))
    fill(actions, lambda part, rows, keep: read_finite(part.actions, rows, keep))

    def observe(part: Part, rows: npt.NDArray[Any], keep: npt.NDArray[np.bool_] | None) -> None:
        _fill_observations(part.observations, limits.layout, f"{part.place}:{OBSERVATIONS}", rows, keep)

    stored = np.result_type(*{column.dtype for part in parts for column in columns_of(part.observations)})
    observations = read_observations(lambda out: fill(out, observe), (total, width), stored, mapped)
    _note_shapes(parts[0], limits.layout, notes)
    return observations, actions, rewards


def width_of(tree: Tree, layout: Layout | None) -> int:
    """The numbers of an observation once it is flattened."""
    if layout is None or is_flat(layout):
        return sum(column.width for column in columns_of(tree))
    return flat_size(layout)


def flattened_by(tree: Tree, layout: Layout | None) -> Layout | None:
    """What the columns are flattened by; None: they are vectors, of whose parts nothing is known."""
    if not isinstance(tree, Mapping | Sequence):
        return None
    return _of_columns(tree) if layout is None else layout


def _of_columns(tree: Tree) -> Layout:
    """The layout by which columns are flattened that come without a space."""
    if isinstance(tree, Mapping):
        return {"type": "Dict", "subspaces": {key: _of_columns(tree[key]) for key in sorted(tree)}}
    if isinstance(tree, Sequence):
        return {"type": "Tuple", "subspaces": [_of_columns(part) for part in tree]}
    return {"type": "Box", "shape": list(tree.shape[1:])}


def _fill_observations(
    tree: Tree, layout: Layout | None, place: str, out: npt.NDArray[Any], kept: npt.NDArray[np.bool_] | None
) -> None:
    """The first observations of a tree into `out`, flattened; straight from the file where they are vectors already.

    DataError: a part is missing, has another shape, is not finite or not in its space.
    """
    if isinstance(tree, Column) and (layout is None or is_flat(layout)):
        read_finite(tree, out, kept)
        return
    columns, start = columns_of(tree), 0
    for rows in max(columns, key=lambda column: column.width).blocks(len(out) if kept is None else len(kept)):
        try:
            flat = flatten_batch(layout, _values(tree, rows), place, out.dtype)
        except ValueError as error:
            raise DataError(f"{error}; {CONVERT}") from error
        flat = flat if kept is None else flat[kept[rows]]
        out[start : start + len(flat)] = flat
        _check_finite(place, out[start : start + len(flat)], start)
        start += len(flat)
        release(out)


def _values(tree: Tree, rows: slice) -> Any:  # noqa: ANN401
    if isinstance(tree, Mapping):
        return {key: _values(part, rows) for key, part in tree.items()}
    if isinstance(tree, Sequence):
        return tuple(_values(part, rows) for part in tree)
    return tree.rows(rows)


def read_finite(column: Column, out: npt.NDArray[Any], kept: npt.NDArray[np.bool_] | None = None) -> None:
    """Read the first rows into `out`, (N, ...); DataError: a value is not finite in float32."""
    column.read_into(out.reshape(len(out), *column.shape[1:]), kept)
    _check_finite(column.place, out)


def _check_finite(place: str, out: npt.NDArray[Any], first: int = 0) -> None:
    if out.dtype.kind != "f" or all(block.min() >= -_LARGEST and block.max() <= _LARGEST for block in blocks(out)):
        return
    bad = np.argwhere(~(np.abs(out) <= _LARGEST))
    value = "NaN" if np.isnan(out[tuple(bad[0])]) else "infinite or beyond float32"
    where = f"step {first + bad[0][0]}" + (f", column {bad[0][1]}" if out.ndim == 2 else "")
    raise DataError(
        f"{place} has {len(bad):,} values that are not finite, the first ({value}) at {where}; repair them or leave "
        "the episode out"
    )


def _note_shapes(part: Part, layout: Layout | None, notes: list[str]) -> None:
    observed = columns_of(part.observations)
    if len(observed) > 1 and layout is None:
        notes.append(f"observations are {', '.join(column.name for column in observed)}, side by side")
    for column in (*observed, part.actions):
        if len(column.shape) > 2 and (layout is None or column is part.actions):
            notes.append(f"flattened {column.name} of shape (N, {str(column.shape[1:])[1:-1].rstrip(',')})")


# Bounds


def _without_contact_forces(
    path: str, observations: npt.NDArray[Any], wanted: int | None, notes: list[str]
) -> npt.NDArray[Any]:
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
        hold_to_choices(path, actions, limits.n_actions, limits.action_start)
    elif actions.ndim > 1:
        hold_to_bounds(path, actions, (limits.action_low, limits.action_high), limits.clip_actions, notes)


def hold_to_choices(path: object, actions: npt.NDArray[np.int64], n_actions: int, start: int) -> None:
    """Raises DataError if an action is not one of the `n_actions` from `start` on; the message has the first one."""
    odd = np.flatnonzero((actions < start) | (actions >= start + n_actions))
    if odd.size:
        raise DataError(
            f"{path}:actions has {actions[odd[0]]} at step {odd[0]}, but the environment takes {start} to "
            f"{start + n_actions - 1}; choose the environment it was recorded on, or renumber its actions"
        )


def hold_to_bounds(
    path: object,
    actions: npt.NDArray[np.float32],
    bounds: tuple[npt.ArrayLike, npt.ArrayLike],
    clip: bool,
    notes: list[str],
) -> None:
    """Raises DataError where actions (N, A) are out of bounds, (A,); with `clip` changes them in place and notes it."""
    low, high = (np.asarray(bound, dtype=np.float32) for bound in bounds)
    least, most = actions.min(axis=0), actions.max(axis=0)
    if np.all(least >= low) and np.all(most <= high):
        return
    found, allowed = (f"[{a.min():.6g}, {b.max():.6g}]" for a, b in ((least, most), (low, high)))
    if not clip:
        raise DataError(f"{path}:actions range over {found}, outside {allowed}; pass --clip-actions to clip them")
    np.clip(actions, low, high, out=actions)
    notes.append(f"clipped actions from {found} to {allowed}")
