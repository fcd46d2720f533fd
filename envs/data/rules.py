"""Columns to episodes, the one way in, and its rules: each is a function with the note or the error that it gives.

Rules read columns by what they mean (`columns.NAMES`): shapes, rows that are steps, ends, kinds of actions, bounds.
"""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ...base.errors import DataError, one_line
from ..tasks.spaces import Layout, is_image, is_vector
from . import columns
from .columns import CONVERT, Column, Flags, Limits, Part, Table, Tree, columns_of
from .episodes import allocate, has_room

ONE_EPISODE = "no end is marked in it, so the file is one episode"  # a note
_ENDS = ("terminated", "truncated", "done", "last", "behind", "goes_on")
_WHOLE = {"truncated", "done", "last", "behind"}  # one of these marks the ends that the environment did not make
_LIKE_A_LENGTH = re.compile(r"len|steps|size|horizon|count", re.IGNORECASE)
_CHOICES = 256  # of actions that are whole numbers but stored as floats, which a note says
_EVEN = 0.01  # of a step: seconds between two steps are equal but for rounding
_NAMED = 12  # columns in a note
_LARGE = 2**28  # bytes as float32, from which on data are mapped: they need no memory then
_RESETS, _SOME_ENDS = 0.95, 200  # the share of ends at which a reset shows, of so many of them


def assemble(
    tables: Sequence[Table], limits: Limits, *, path: str, one_each: bool = False, **labels: Any
) -> dict[str, Any]:
    """The fields of `Episodes` of tables of steps, of which each is one where `one_each`; else their columns tell.

    `path` names the data in messages. A trajectory may have one observation more than steps, the last, which is left
    out. Steps behind the last end are left out with a note.

    Raises:
        DataError: a column is missing, is there twice with different numbers, its shape does not fit, or it holds NaN,
            infinity, actions of another kind, out of bounds or not among the integers; ends contradict each other; or
            there is no complete episode.
    """
    notes: list[str] = []
    parts = [columns.named(table, limits) for table in tables]
    if not one_each and len(padded := columns.apart(parts[0])) > 1:
        parts, one_each = padded, True
        notes.append(f"arrays are {len(parts)} episodes of {parts[0].steps} steps, by their first two axes")
    if unused := sorted(parts[0].others):
        notes.append(f"not used: {', '.join(unused[:_NAMED])}{', ...' * (len(unused) > _NAMED)}")
    for part in parts:
        check_shapes(part, limits, one_each)
        if part.sizes != parts[0].sizes:
            raise DataError(f"{part.place} has {part.sizes}, {parts[0].place} {parts[0].sizes}; give data of one kind")
    keep, ended, terminated = ends_of(parts, one_each, notes)
    discrete = kind_of(parts, limits, notes)
    steps = _read(parts, keep, limits, discrete, notes)
    ended, terminated = ended[keep], terminated[keep]
    if (resets := reset_rows(steps, ended, notes)) is not None:
        steps = {key: array[resets] for key, array in steps.items()}
        ended, terminated = ended[resets], terminated[resets]
    columns.hold(path, steps, limits, notes)
    stops = episode_ends(path, ended, limits, notes)
    if (n_steps := int(stops[-1])) < len(ended):
        notes.append(f"dropped {len(ended) - n_steps:,} steps of an unfinished last episode")
    return {
        **{key: array[:n_steps] for key, array in steps.items()},
        "offsets": np.concatenate(([0], stops)),
        "terminated": terminated[stops - 1],
        "layout": limits.layout or _layout_of(seen) if not isinstance(seen := parts[0].observations, Column) else None,
        "path": path,
        **labels,
        "notes": (*dict.fromkeys(notes), *labels.get("notes", ())),
    }


def _read(parts: Sequence[Part], keep: Flags, limits: Limits, discrete: bool, notes: list[str]) -> dict[str, Any]:
    """Observations, actions and rewards of the rows that are kept."""
    kept = np.split(keep, np.cumsum([part.steps for part in parts])[:-1])
    seen = [part.flat(limits.layout) for part in parts]
    total, acted = int(keep.sum()), parts[0].actions.width
    size = 4 * total * (seen[0].width + acted)
    mapped = limits.memory_map or (size >= _LARGE and has_room(size))
    if mapped:
        notes.append("observations and actions are mapped from the disk")
    rewards = np.empty(total, np.float32)
    actions = allocate((total,) if discrete else (total, acted), np.int64 if discrete else np.float32, mapped)
    columns.read_finite([part.rewards for part in parts], rewards, kept)
    columns.read_finite([part.actions for part in parts], actions, kept)
    observations = columns.read_observations(seen, kept, mapped)
    if len(seen[0].parts) > 1 and limits.layout is None:
        notes.append(f"observations are {', '.join(part.name for part in seen[0].parts)}, side by side")
    return {"observations": observations, "actions": actions, "rewards": rewards}


def _layout_of(tree: Tree) -> Layout:
    """What columns are flattened by."""
    if isinstance(tree, Column):
        return {"type": "Box", "shape": list(tree.shape[1:])}
    if isinstance(tree, Mapping):
        return {"type": "Dict", "subspaces": {key: _layout_of(tree[key]) for key in sorted(tree)}}
    return {"type": "Tuple", "subspaces": [_layout_of(part) for part in tree]}


# Shapes


def check_shapes(part: Part, limits: Limits, one_each: bool) -> None:
    """All checks of a part but those of its numbers; DataError: a shape does not fit, and what to do."""
    steps, rewards, actions = part.steps, part.rewards, part.actions
    if not steps or rewards.width != 1:
        raise DataError(f"{rewards.place} has shape {rewards.shape}; give (N,), a number a step, at least one step")
    fits = actions.width in (max(actions.shape[1:], default=1), limits.action_dim) and actions.width
    if actions.shape[:1] != (steps,) or not fits:
        wrong_shape(actions, steps, f"({steps}, {limits.action_dim or 'any number'})")
    observed = columns_of(part.observations)
    if not observed:
        raise DataError(f"{part.place}: observations hold no numbers; {CONVERT}")
    for column in observed:
        numbers = column.shape[1:] == () and column.data.dtype.kind in "biu"
        if numbers and (limits.layout is None or is_vector(limits.layout)):
            raise DataError(f"{column.place} are integers; store them one-hot, as FlattenObservation gives them")
        if column.data.dtype == np.uint8 and is_image(column.shape[1:]):
            raise DataError(f"{column.place} are images, {column.shape} of uint8; store features of them, as vectors")
        if column.shape[:1] not in [(steps,), (steps + 1,)][: 1 + one_each] or not column.width:
            wrong_shape(column, steps, f"({steps}, any number)")


def wrong_shape(column: Column, steps: int, wanted: str) -> NoReturn:
    """Raises DataError: the shape that was found, the one that goes with so many steps, and how to convert it."""
    shape, name, way_out = column.shape, column.name, CONVERT
    if steps in shape[1:] and shape[0] != steps:
        way_out = f"move the steps to the first axis, numpy.moveaxis({name}, {shape.index(steps)}, 0); {CONVERT}"
    elif shape[:1] == (steps + 1,):
        way_out = f"leave out the row behind the last step, {name}[:-1], or give episodes one by one; {CONVERT}"
    raise DataError(f"{column.place} has shape {shape}; {steps:,} rewards go with {wanted}; {way_out}")


# Rows that are steps, and where episodes end


def ends_of(parts: Sequence[Part], one_each: bool, notes: list[str]) -> tuple[Flags, Flags, Flags]:
    """Of all parts, end to end, as their columns mark it, (N,) each; `one_each`: each part is an episode.

    Which rows are steps, where episodes end, and which of these ends the environment made.
    """
    if one_each and len(parts) > 1 and len({part.steps for part in parts}) == 1:
        _refuse_unknown_padding(parts)
    each = zip(*(_ends(part, one_each, notes) for part in parts), strict=True)
    keep, ended, terminated = map(np.concatenate, each)
    if not keep.any():
        raise DataError(f"{parts[0].place}: holds no step, only rows that are left out; use more data")
    return keep, ended, terminated


def _ends(part: Part, one_each: bool, notes: list[str]) -> tuple[Flags, Flags, Flags]:
    """Steps and ends of one part."""
    keep = _kept(part, one_each, notes)
    last = np.arange(part.steps) == np.flatnonzero(keep)[-1]
    flags = _flags(part, last, one_each)
    bounds, told = (last, "") if one_each else _bounds(part, bool(flags.keys() & _WHOLE))
    if bounds is None and not flags.keys() & _WHOLE:
        _refuse_unknown_flags(part)
    ended, terminated = _meaning(part, flags, notes, one_each, told)
    if not one_each:  # an episode ends where padding begins, too
        padded = keep & np.append(~keep[1:], False)
        bounds = bounds if not padded.any() else padded if bounds is None else bounds | padded
    if bounds is not None:
        _refuse_early(part, ended & keep, bounds, told)
        if told and (bounds & ~ended).any():
            notes.append(f"read ends of episodes from {told}")
    drop = _stays_up(ended, bounds, notes)
    ended = ended if bounds is None else ended | bounds
    if (behind := flags.get("behind")) is not None:  # RLDS: their flags move to the step before
        before = np.flatnonzero(behind[1:] & ~behind[:-1] & ~ended[:-1])
        ended[before], terminated[before] = True, terminated[before + 1]
        notes.append("left out the rows of is_last, which hold an observation and no step (RLDS)")
        drop = drop | behind
    return keep & ~drop, ended, terminated


def _kept(part: Part, one_each: bool, notes: list[str]) -> Flags:
    """Without padding: what a mask, a mark of padding or a length beside it says; DataError: it contradicts itself."""
    keep, names = np.ones(part.steps, np.bool_), list[str]()
    for role in ("valid", "padding", "length"):
        for name, column in part.marks.get(role, {}).items():
            if role != "length":
                said = read_flags(column, part.steps) == (role == "valid")
            elif one_each and (counts := column.read().reshape(-1)).size in (1, part.steps):
                if (counts != counts[0]).any() or counts[0] not in range(1, part.steps + 1):
                    raise DataError(f"{column.place} is {counts[0]} and there are {part.steps} steps; correct it")
                said = np.arange(part.steps) < counts[0]
            else:
                continue
            keep &= said
            names += [] if said.all() else [name]
    runs = int((np.diff(keep.astype(np.int8), prepend=0) == 1).sum())
    if not runs or (one_each and runs > 1):
        what = "has a gap within the episode; split it there" if runs else "leaves no step; correct it"
        raise DataError(f"{part.place}: {' and '.join(names)} {what}")
    if names:
        notes.append(f"left out rows of padding, by {' and '.join(names)}")
    return keep


def _flags(part: Part, last: Flags, one_each: bool) -> dict[str, Flags]:
    """Where each flag is set, (N,), by its meaning. One that a whole episode has is its last step's."""

    def read(column: Column) -> Flags:
        if one_each and column.shape[:1] != (part.steps,) and math.prod(column.shape) == 1:
            return np.logical_and(last, read_flags(column))
        return read_flags(column, part.steps)

    found = {role: [read(column) for column in part.marks[role].values()] for role in _ENDS if role in part.marks}
    return {role: np.any(flags, axis=0) for role, flags in found.items()}


def _refuse_unknown_padding(parts: Sequence[Part]) -> None:
    """Raises DataError where episodes of one length have an entry that nobody knows and that may tell padding."""
    most = parts[0].steps
    for name, column in parts[0].others.items():
        sizes = [math.prod(part.others[name].shape) for part in parts if name in part.others]
        if len(sizes) < len(parts) or {*sizes} not in ({1}, {most}):
            continue
        found = [part.others[name].read().reshape(-1) for part in parts]
        given = np.concatenate(found)
        if sizes[0] == 1:
            odd = _LIKE_A_LENGTH.search(name) and given.dtype.kind in "iu" and 0 < given.min() < most >= given.max()
        else:  # zeros and ones that switch once, behind which actions and rewards stand still
            odd = np.isin(given, (0, 1)).all() and any(len(np.unique(values[:-1])) > 1 for values in found)
            odd = odd and all(map(_stands_still, parts, found))
        if odd:
            way_out = f"rename it to mask or length if it does, or to infos_{name} if not"
            raise DataError(f"{column.place} may tell which rows are padding; {way_out}")


def _stands_still(part: Part, values: npt.NDArray[Any]) -> bool:
    places = np.flatnonzero(np.diff(values.reshape(-1) != 0)) + 1
    rest = [column.read()[places[0] :] for column in (part.actions, part.rewards) if len(places)]
    return len(places) < 2 and not any((numbers != numbers[0]).any() for numbers in rest)


def read_flags(column: Column, steps: int | None = None) -> Flags:
    """A column of zeros and ones, (N,); DataError: it has other values, or not one for each of so many steps."""
    values = column.read().reshape(-1) if steps is None else _of_steps(column, steps)
    flags: Flags = values != 0
    if not np.array_equal(values, flags):
        odd = values[(values != 0) & (values != 1)]
        told = f"has values other than 0 and 1 (the first is {one_line(odd[0], 30)})"
        raise DataError(f"{column.place} {told}; store 1 at the steps that it marks, for example {column.name} > 0")
    return flags


def _meaning(part: Part, flags: dict[str, Flags], notes: list[str], one_each: bool, told: str) -> tuple[Flags, Flags]:
    """Where episodes end, and which of these ends the environment made, by what the flags mean together."""
    nothing, terminated = np.zeros(part.steps, np.bool_), flags.get("terminated")
    ends = [flag for role, flag in flags.items() if role != "goes_on"]
    ended = np.any([nothing, *ends], axis=0)
    if "goes_on" in flags:  # where it is 0 the task is over, but a recording may go on
        return ended if ends else ~flags["goes_on"], ~flags["goes_on"]
    if terminated is None and "done" in flags:
        terminated = flags["done"] & ~flags.get("truncated", nothing)
        if not flags.keys() & {"truncated", "last", "behind"}:
            notes.append(f"read {' and '.join(part.marks['done'])} as terminations: no flag of truncations is there")
    elif terminated is None:
        notes.append(f"{'' if one_each else 'all '}episodes count as cut: no flag of terminations is there")
    elif not (one_each or told or flags.keys() & _WHOLE):
        notes.append(f"episodes end at {', '.join(part.marks['terminated'])} alone: no flag of truncations is there")
    read = [name for role in ("done", "last", "behind") if role in flags for name in part.marks[role]]
    if read and not one_each:
        notes.append(f"read ends of episodes from {', '.join(read)}")
    return ended, nothing if terminated is None else terminated.copy()


def _refuse_unknown_flags(part: Part) -> None:
    """Raises DataError where nothing but terminations is known, and a column that nobody knows may be ends, too."""
    for name, column in part.others.items():
        if column.is_each(part.steps) and (column.data.dtype.kind == "b" or {*np.unique(column.read())} == {0, 1}):
            way_out = f"rename it to timeouts if it marks the last steps of episodes, or to infos_{name} if not"
            raise DataError(f"{column.place} has a 0 or 1 for every step and may mark ends of episodes; {way_out}")


def _bounds(part: Part, knows_last: bool) -> tuple[Flags | None, str]:
    """The last rows of episodes as numbers, lengths, first rows or counts tell them, and the name of what was read.

    DataError: one has another number of rows, or two tell other ends.
    """
    readers = {"number": _changes, "length": _lengths, "first": read_flags, "step": _restarts}
    found: dict[str, Flags] = {}
    for role, read in readers.items():
        for name, column in part.marks.get(role, {}).items():
            # A single number says something of the whole file.
            alone = column.shape == () or (column.shape == (1,) and role != "length")
            if not alone and (starts := read(column, part.steps)) is not None:
                found[name] = np.append(starts[1:], role in ("number", "length") or not knows_last)
    several = {name: bounds for name, bounds in found.items() if bounds[:-1].any()} or found  # not one number for all
    for name, bounds in several.items():
        if (bounds[:-1] != next(iter(several.values()))[:-1]).any():
            both = f"{next(iter(several))} and {name} tell other ends of episodes"
            raise DataError(f"{part.place}: {both}; rename what is wrong to infos_NAME")
    return next(((bounds, name) for name, bounds in several.items()), (None, ""))


def _lengths(column: Column, steps: int) -> Flags | None:
    """The first rows of episodes of these lengths (E,); None: every step has one. DataError: they do not fit."""
    if column.is_each(steps):
        return None
    lengths = column.read().reshape(-1)
    ends = np.cumsum(lengths)
    if ends[-1] != steps or lengths.min() < 1 or (lengths != np.rint(lengths)).any():
        way_out = f"correct it, or rename it to infos_{column.name} if it is no such mark"
        raise DataError(f"{column.place} counts {ends[-1]:,} steps, there are {steps:,}; {way_out}")
    return np.isin(np.arange(steps), ends - lengths)


def _changes(column: Column, steps: int) -> Flags:
    """The first row of every number. DataError: rows of several episodes are mixed, or there are more or fewer."""
    numbers = _of_steps(column, steps)
    changes = np.append(True, numbers[1:] != numbers[:-1])
    lengths = np.diff(np.flatnonzero(changes), append=len(changes))
    if len(lengths) > 2 and np.mean(lengths == 1) > 0.5 and len(np.unique(numbers)) < len(lengths) / 2:
        way_out = f"sort all columns by it, numpy.argsort({column.name}, kind='stable')"
        raise DataError(f"{column.place}: the rows of episodes are mixed; {way_out}")
    return changes


def _restarts(column: Column, steps: int) -> Flags | None:
    """The first rows of episodes, where a count of steps begins again; None: it does not count from the same number."""
    counts = _of_steps(column, steps).astype(np.float64)
    starts = np.append(True, counts[1:] <= counts[:-1])
    rises = np.diff(counts)[~starts[1:]]
    counted = len(rises) and np.ptp(rises) <= _EVEN * rises.max() and (counts[starts] == counts[0]).all()
    return starts if counted and starts.sum() > 1 else None


def _of_steps(column: Column, steps: int) -> npt.NDArray[Any]:
    if not column.is_each(steps):
        told = f"has shape {column.shape}; {steps:,} rewards go with ({steps},)"
        raise DataError(f"{column.place} {told}; correct it, or rename it to infos_{column.name} if it is no such mark")
    return column.read().reshape(-1)


def _refuse_early(part: Part, ended: Flags, bounds: Flags, told: str) -> None:
    """Raises DataError where an end is marked within an episode and does not stay marked to its last row."""
    early = np.flatnonzero(ended & ~bounds & ~np.append(ended[1:], True))
    if early.size:
        flags = ", ".join(name for role in _ENDS for name in part.marks.get(role, ()))
        within = f"by {told}; rename what is wrong to infos_NAME" if told else "before its last step; split it there"
        raise DataError(f"{part.place}: {flags} mark an end at step {early[0]}, within an episode {within}")


def _stays_up(ended: Flags, bounds: Flags | None, notes: list[str]) -> Flags:
    """The rows behind an end that stays marked: the first mark ends.

    Where less than two rows are between ends, as in games of one or two moves, or few ends are in a row, each is one.
    """
    again: Flags = ended & np.append(False, ended[:-1])
    if bounds is None:
        runs = int((~ended & np.append(True, ended[:-1])).sum())  # of rows without an end
        again &= int((~ended).sum()) >= 2 * runs > 0 and 2 * int(again.sum()) >= int(ended.sum())
    else:
        again &= ~np.append(False, bounds[:-1])
    if again.any():
        notes.append("left out rows behind an end that stays marked: the first mark ends an episode")
    return again


def reset_rows(steps: Mapping[str, npt.NDArray[Any]], ended: Flags, notes: list[str]) -> Flags | None:
    """All rows but those in which Gymnasium's vector environments reset (autoreset NEXT_STEP); None: there are none.

    Such a row follows every end but that of an environment's last episode. It has the reward 0, and the observation
    behind the last step, from which the next row jumps. It is left out where rewards are rarely 0 elsewhere; else a
    note has it.
    """
    observations, rewards = steps["observations"], steps["rewards"]
    rows = np.flatnonzero(ended[:-2]) + 1
    rows = rows[~ended[rows] & (rewards[rows] == 0)]
    if len(rows) < 3 or 2 * len(rows) < ended.sum():
        return None
    some = rows[:: -(-len(rows) // _SOME_ENDS)]
    before, at, after = (np.asarray(observations[some + shift], np.float64) for shift in (-1, 0, 1))
    std = np.concatenate([before, at, after]).std(axis=0)
    moved, jumps = (np.square((a - b) / np.where(std > 0, std, 1)).sum(axis=1) for a, b in ((before, at), (at, after)))
    if np.mean(moved < jumps) < _RESETS:
        return None
    others = np.delete(rewards, rows)
    record = "record with autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP or DISABLED"
    if 2 * np.count_nonzero(others) < len(others):
        notes.append(f"first rows of episodes look like resets of a vector environment (NEXT_STEP); {record}")
        return None
    notes.append(f"left out {len(rows):,} rows in which a vector environment reset (NEXT_STEP); {record}")
    return ~np.isin(np.arange(len(rewards)), rows)


def episode_ends(path: str, ended: Flags, limits: Limits, notes: list[str]) -> npt.NDArray[np.int64]:
    """One past the last row of each complete episode, (E,); a note has the number of those that the data lack."""
    max_episode_steps = limits.max_episode_steps
    if limits.one_of_several and not ended.any():
        notes.append(ONE_EPISODE)
        ended = np.arange(len(ended)) == len(ended) - 1
    ends = np.flatnonzero(ended).astype(np.int64) + 1
    if max_episode_steps is not None:
        borders = np.concatenate(([0], ends, [len(ended)]))
        # + 1: the rows behind the last end are a whole episode where their number fits exactly.
        cuts = [np.arange(a + max_episode_steps, b + 1, max_episode_steps) for a, b in pairwise(borders)]
        ends = np.unique(np.concatenate([ends, *cuts]))
    if len(ends) == 0:
        told = f"terminals and timeouts are absent or never set: none of the {len(ended):,} steps ends an episode"
        way_out = "set timeouts to 1 at the last step of each, give their length"
        raise DataError(f"{path}:{told}; {way_out}, --max-episode-steps, or a file of each")
    if cut := int((~ended[ends - 1]).sum()):
        notes.append(f"ended {cut:,} episodes after {max_episode_steps} steps, where the file has no end")
    return ends


# Kinds


def kind_of(parts: Sequence[Part], limits: Limits, notes: list[str]) -> bool:
    """Whether actions are choices: as `limits` say, else integers are; a note where that was inferred."""
    told = None if limits.actions is None else limits.actions == "discrete"
    if told is None and (limits.n_actions is not None or limits.action_dim is not None):
        told = limits.n_actions is not None
    actions, dtype = parts[0].actions, parts[0].actions.data.dtype
    if actions.is_discrete and told is not False:
        return True
    choices = _choices(parts) if actions.width == 1 and told is not False else None
    if told is None:
        if choices is not None:
            found = f"whole numbers, {choices[0]:g} to {choices[1]:g}, stored as {dtype} and taken as real numbers"
            notes.append(f"{actions.name} are {found}; --actions discrete (kind='discrete') makes them choices")
        elif dtype.kind in "biu":
            found = f"{actions.name} are {actions.width} columns of integers and taken as real numbers"
            notes.append(f"{found}; number the combinations, numpy.ravel_multi_index, if they are choices")
        return False
    if told and choices is not None:
        notes.append(f"{actions.name} are whole numbers stored as {dtype}, and taken as choices")
    elif told or (actions.is_discrete and limits.actions is None):
        values, taken = actions.read(), "the environment takes" if limits.actions is None else "kind='discrete' takes"
        odd = np.argwhere(~np.isfinite(values) | (values != np.rint(values)))
        step = int(odd[0][0]) if told and len(odd) else 0
        wanted = "integers, one for every step" if told else "vectors of real numbers; store them as float32"
        given = f"{dtype} of shape {actions.shape} ({one_line(values[step], 60)} at step {step})"
        way_out = "choose the environment it was recorded on"
        raise DataError(f"{actions.place} are {given}, but {taken} {wanted}; {way_out}")
    return told


def _choices(parts: Sequence[Part]) -> tuple[float, float] | None:
    """The least and the greatest of actions, if all are whole numbers, several and not too many."""
    found: set[float] = set()
    for part in parts:
        values = part.actions.read()
        if len(found) > _CHOICES or not np.isfinite(values).all() or not np.array_equal(values, np.rint(values)):
            return None
        found.update(np.unique(values).tolist())
    return (min(found), max(found)) if 1 < len(found) <= _CHOICES else None
