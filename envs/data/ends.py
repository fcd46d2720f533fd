"""Where episodes end, and which rows are steps: rules, each a function with the note or the error that it gives.

A rule reads columns by what they mean (`columns.NAMES`). Rows that are no steps are left out: padding, RLDS's rows
behind the last step, those behind an end that stays marked, and the resets of Gymnasium's vector environments.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...base.errors import DataError, one_line
from .columns import Column, Part, wrong_shape

Flags = npt.NDArray[np.bool_]
_ENDS = ("terminated", "truncated", "done", "last", "behind", "goes_on")
_WHOLE = {
    "truncated",
    "done",
    "last",
    "behind",
}  # of these one at least marks the ends that the environment did not make
_LIKE_A_LENGTH = re.compile(r"len|steps|size|horizon|count", re.IGNORECASE)
_FEW_ENDS = 3  # in a row are not worth a note
_RESETS, _SOME_ENDS = 0.95, 200  # the share of ends at which a reset shows, of so many of them


class Ends(NamedTuple):
    """Of each part which rows are `kept`, None: all. Of those rows (N,) at which episodes end, and which of these ends
    the environment made.
    """

    kept: list[Flags | None]
    ended: Flags
    terminated: Flags


def marked(parts: Sequence[Part], one_each: bool, notes: list[str]) -> Ends:
    """The ends that the columns mark; `one_each`: each part is an episode. DataError: as the rules below."""
    if one_each:
        _refuse_unknown_padding(parts)
    found = [_of_part(part, one_each, notes) for part in parts]
    kept = [None if keep.all() else keep for keep, *_ in found]
    ended, terminated = (np.concatenate([each[i][each[0]] for each in found]) for i in (1, 2))
    if not ended.size:
        raise DataError(f"{parts[0].place}: holds no step, only rows that are left out; use more data")
    return Ends(kept, ended, terminated)


def _of_part(part: Part, one_each: bool, notes: list[str]) -> tuple[Flags, Flags, Flags]:
    """Which rows are steps, where episodes end, and which ends the environment made, (N,) each."""
    keep = _steps(part, one_each, notes)
    last_row = int(np.flatnonzero(keep)[-1])
    flags: dict[str, Flags] = {}
    for role in _ENDS:
        if columns := _of_each_step(part, role, one_each):
            flags[role] = np.any([_flag(column, part.steps, one_each, last_row) for column in columns], axis=0)
    bounds, told = (None, "") if one_each else _bounds(part, bool(flags.keys() & _WHOLE))
    if not one_each and bounds is None:
        _refuse_unknown_flags(part, flags)
    ended, terminated = _meaning(part, flags, [] if one_each else notes)
    ended = ended | terminated if "goes_on" not in flags else ended
    if one_each:
        bounds = np.arange(part.steps) == last_row
    elif not keep.all():  # an episode ends where padding begins
        gaps = keep & np.append(~keep[1:], False)
        bounds = gaps if bounds is None else bounds | gaps
    if bounds is not None:
        _refuse_early(part, ended & keep, bounds, last_row if one_each else None, told)
        if told and (bounds & ~ended).any():
            notes.append(f"read ends of episodes from {told}")
    drop = _stays_up(ended, bounds, one_each, notes)
    ended = ended if bounds is None else ended | bounds
    if "behind" in flags:
        drop |= _behind(flags["behind"], ended, terminated, notes)
    return keep & ~drop, ended, terminated


# Rows that are steps


def _steps(part: Part, one_each: bool, notes: list[str]) -> Flags:
    """Without padding: what a mask, a mark of padding or a length beside it says; DataError: it contradicts itself."""
    keep, names = np.ones(part.steps, np.bool_), list[str]()
    for role in ("valid", "padding", "length"):
        for name, column in part.marks.get(role, {}).items():
            if role == "length":
                if not one_each or int(np.prod(column.shape)) not in (1, part.steps):
                    continue
                said = _counted(column, part.steps)
            else:
                if column.shape[:1] != (part.steps,) or not column.is_vector:
                    wrong_shape(column, part.steps, f"({part.steps},)")
                said = read_flags(column) == (role == "valid")
            keep &= said
            names += [] if said.all() else [name]
    if not keep.any():
        raise DataError(f"{part.place}: {' and '.join(names)} leaves no step; correct it")
    rows = np.flatnonzero(keep)
    if one_each and rows[-1] - rows[0] + 1 != len(rows):
        raise DataError(f"{part.place}: {' and '.join(names)} has a gap within the episode; split it there")
    if names:
        notes.append(f"left out rows of padding, by {' and '.join(names)}")
    return keep


def _counted(column: Column, steps: int) -> Flags:
    counts = np.unique(column.values())
    if len(counts) > 1 or counts[0] != np.rint(counts[0]) or not 1 <= counts[0] <= steps:
        raise DataError(f"{column.place} is {one_line(counts, 40)} and there are {steps} steps; correct it")
    kept: Flags = np.arange(steps) < counts[0]
    return kept


def _refuse_unknown_padding(parts: Sequence[Part]) -> None:
    """Raises DataError where episodes of one length have an entry that nobody knows and that may tell padding."""
    steps = {part.steps for part in parts}
    if len(steps) > 1 or len(parts) < 2:
        return
    (length,) = steps
    for name in parts[0].others:
        columns = [part.others[name] for part in parts if name in part.others]
        if len(columns) < len(parts):
            continue
        if all(np.prod(column.shape) == 1 for column in columns):
            counts = np.array([column.values().reshape(-1)[0] for column in columns])
            odd = _LIKE_A_LENGTH.search(name) and counts.dtype.kind in "iu" and counts.min() < length
            odd = odd and counts.min() > 0 and counts.max() <= length
        else:
            odd = all(map(_is_flag, columns)) and _switches_once(parts, columns)
        if odd:
            raise DataError(
                f"{columns[0].place} may tell which rows are padding, and all episodes have {length} rows; rename it "
                f"to mask or length if it does, or to infos_{name} if not"
            )


def _switches_once(parts: Sequence[Part], columns: Sequence[Column]) -> bool:
    """Whether flags switch once in an episode, and actions and rewards stand still on the later side of that."""
    most = 0
    for part, column in zip(parts, columns, strict=True):
        values = column.values().reshape(-1)
        if not len(places := np.flatnonzero(np.diff(values != 0))):
            continue
        rest = [numbers.values()[places[0] + 1 :] for numbers in (part.actions, part.rewards)]
        if len(places) > 1 or any((numbers != numbers[0]).any() for numbers in rest):
            return False
        most = max(most, len(rest[0]))
    return most > 1


def _behind(behind: Flags, ended: Flags, terminated: Flags, notes: list[str]) -> Flags:
    """RLDS's rows of a last observation, whose flags move to the step before, in place; returns the rows."""
    rows = np.flatnonzero(behind)
    before = rows[(rows > 0) & ~behind[rows - 1]] - 1
    before = before[~ended[before]]  # an episode of this row alone
    ended[before], terminated[before] = True, terminated[before + 1]
    notes.append("left out the rows of is_last, which hold an observation and no step (RLDS)")
    return behind


def _stays_up(ended: Flags, bounds: Flags | None, one_each: bool, notes: list[str]) -> Flags:
    """The rows behind an end that stays marked: the first mark ends. Where all or few are in a row, each is an end."""
    again: Flags = ended & np.append(False, ended[:-1])
    if bounds is None:
        ends = int(ended.sum())
        again &= not ended.all() and 2 * int(again.sum()) >= ends
        single = int((ended & np.append(False, ended[:-1])).sum())
        if not again.any() and _FEW_ENDS <= single < ends:
            notes.append(f"{single:,} episodes have one step")
    else:
        again &= ~np.append(False, bounds[:-1])
    if again.any():
        notes.append("left out rows behind an end that stays marked: the first mark ends an episode")
    return again


def cut_resets(
    observations: npt.NDArray[Any],
    actions: npt.NDArray[Any],
    rewards: npt.NDArray[np.float32],
    found: Ends,
    notes: list[str],
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.float32], Ends]:
    """Without the rows in which Gymnasium's vector environments reset (autoreset NEXT_STEP, their default).

    Such a row follows every end but that of an environment's last episode. It has the reward 0, and the observation
    behind the last step, from which the next row jumps. It is left out where rewards are rarely 0 elsewhere; else a
    note has it.
    """
    rows = np.flatnonzero(found.ended[:-1]) + 1
    rows = rows[(rows + 1 < len(rewards))]
    rows = rows[~found.ended[rows] & (rewards[rows] == 0)]
    if len(rows) < 3 or 2 * len(rows) < found.ended.sum():
        return observations, actions, rewards, found
    some = rows[:: -(-len(rows) // _SOME_ENDS)]
    before, at, after = (np.asarray(observations[some + shift], np.float64) for shift in (-1, 0, 1))
    std = np.concatenate([before, at, after]).std(axis=0)
    steps, jumps = (np.square((a - b) / np.where(std > 0, std, 1)).sum(axis=1) for a, b in ((before, at), (at, after)))
    if np.mean(steps < jumps) < _RESETS:
        return observations, actions, rewards, found
    others = np.delete(rewards, rows)
    record = "record with autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP or DISABLED"
    if 2 * np.count_nonzero(others) < len(others):
        if len(rows) >= 10:
            notes.append(f"the first rows of episodes look like resets of a vector environment (NEXT_STEP); {record}")
        return observations, actions, rewards, found
    keep = np.ones(len(rewards), np.bool_)
    keep[rows] = False
    notes.append(f"left out {len(rows):,} rows in which a vector environment reset (NEXT_STEP); {record}")
    ends = found._replace(ended=found.ended[keep], terminated=found.terminated[keep])
    return observations[keep], actions[keep], rewards[keep], ends


# Flags


def read_flags(column: Column) -> Flags:
    """A column of zeros and ones, (N,); DataError: it has other values."""
    values = column.values().reshape(-1)
    flags: Flags = values != 0
    if not np.array_equal(values, flags):
        odd = values[(values != 0) & (values != 1)]
        raise DataError(
            f"{column.place} has values other than 0 and 1 (the first is {one_line(odd[0], 30)}); store 1 at the steps "
            f"that it marks, for example {column.name} > 0"
        )
    return flags


def _of_each_step(part: Part, role: str, one_each: bool) -> list[Column]:
    """The columns of a meaning but those that count rows, as episode_ends may."""
    columns = part.marks.get(role, {}).values()
    return [column for column in columns if one_each or _counts(column, role, part.steps) is None]


def _flag(column: Column, steps: int, one_each: bool, last_row: int) -> Flags:
    """A flag of each step; that of an episode as a whole is one of its last step."""
    if one_each and column.shape[:1] != (steps,) and int(np.prod(column.shape)) == 1:
        flags = np.zeros(steps, np.bool_)
        flags[last_row] = read_flags(column)[0]
        return flags
    if column.shape[:1] != (steps,) or not column.is_vector:
        wrong_shape(column, steps, f"({steps},)")
    return read_flags(column)


def _meaning(part: Part, flags: Mapping[str, Flags], notes: list[str]) -> tuple[Flags, Flags]:
    """Where episodes end, and which of these ends the environment made, by what the flags mean together."""
    nothing = np.zeros(part.steps, np.bool_)
    terminated, truncated, done = (flags.get(role) for role in ("terminated", "truncated", "done"))
    last = _either(flags.get("last"), flags.get("behind"))
    if "goes_on" in flags:  # where it is 0 the task is over, but a recording may go on
        last, terminated = _either(last, terminated), ~flags["goes_on"]
        if truncated is None and done is None and last is None:
            last = terminated
    elif terminated is None and done is not None:
        terminated = done if truncated is None else done & ~truncated
        if truncated is None and last is None:
            shown = " and ".join(part.marks["done"])
            notes.append(f"read {shown} as terminations: no flag of truncations is there")
    read = [name for role in ("done", "last", "behind") if role in flags for name in part.marks[role]]
    if read and "goes_on" not in flags:
        notes.append(f"read ends of episodes from {', '.join(read)}")
    ended = np.any([nothing, *(flag for flag in (truncated, done, last) if flag is not None)], axis=0)
    return ended, nothing if terminated is None else terminated


def _either(one: Flags | None, other: Flags | None) -> Flags | None:
    return other if one is None else one if other is None else one | other


def _refuse_unknown_flags(part: Part, flags: Mapping[str, Flags]) -> None:
    """Raises DataError where nothing but terminations is known, and a column that nobody knows may be ends, too."""
    if flags.keys() & _WHOLE:
        return
    others = {
        name: column
        for name, column in part.others.items()
        if column.shape[:1] == (part.steps,) and column.is_vector and _may_be_flags(column)
    }
    if not others:
        return
    found = [name for role in flags for name in part.marks[role]]
    known = f"only {', '.join(found)} is known" if found else "no flag that is known marks one"
    name, *more = others
    raise DataError(
        f"{others[name].place} has a 0 or 1 for every step and may mark ends of episodes, of which {known}"
        f"{'; so may ' + ', '.join(more) if more else ''}; rename it to timeouts if it marks the last step of an "
        f"episode, or to infos_{name} if not"
    )


def _is_flag(column: Column) -> bool:
    return column.dtype.kind == "b" or bool(np.isin(column.values(), (0, 1)).all())


def _may_be_flags(column: Column) -> bool:
    """Whether a column of numbers has a 0 or 1 for every step, and both of them."""
    if column.dtype.kind == "b":
        return True
    values = column.values()
    return bool(values.size and values.min() == 0 and values.max() == 1 and np.isin(values, (0, 1)).all())


# Numbers of episodes and steps, and lengths


def _bounds(part: Part, knows_last: bool) -> tuple[Flags | None, str]:
    """The last rows of episodes as numbers, lengths or first rows tell them, and the name of what was read."""
    for role in ("number", "length", "last", "first", "step"):
        for name, column in part.marks.get(role, {}).items():
            if role in ("length", "last"):
                found = _counts(column, role, part.steps)
            elif column.shape[:1] != (part.steps,) or not column.is_vector:
                continue
            elif role == "number":
                found = _changes(column)
            else:
                starts = read_flags(column) if role == "first" else _resets(column)
                found = None if starts is None else np.append(starts[1:], not knows_last)
            if found is not None:
                return found, name
    return None, ""


def _counts(column: Column, role: str, steps: int) -> Flags | None:
    """Lengths (E,), or ends (E,) as counts of rows, as the last rows of episodes; None: they are none."""
    if len(column.shape) != 1 or column.dtype.kind not in "iu" or column.shape == (steps,):
        return None
    counts = column.values().astype(np.int64)
    ends = np.cumsum(counts) if role == "length" else counts
    if role not in ("length", "last") or not len(ends):
        return None
    if ends[-1] != steps or ends[0] < 1 or (np.diff(ends) < 1).any():
        if role == "last":
            return None
        raise DataError(f"{column.place} counts {ends[-1]:,} steps, there are {steps:,}; correct it")
    found = np.zeros(steps, np.bool_)
    found[ends - 1] = True
    return found


def _changes(column: Column) -> Flags:
    """The last row of every number. DataError: rows of several episodes are mixed."""
    numbers = column.values().reshape(-1)
    changes = np.append(numbers[1:] != numbers[:-1], True)
    lengths = np.diff(np.flatnonzero(changes), prepend=-1)
    if len(lengths) > 2 and np.mean(lengths == 1) > 0.5 and len(np.unique(numbers)) < len(lengths) / 2:
        raise DataError(
            f"{column.place}: the rows of episodes are mixed, {one_line(numbers[0], 20)} comes back again and again; "
            f"sort all columns by it, numpy.argsort({column.name}, kind='stable')"
        )
    return changes


def _resets(column: Column) -> Flags | None:
    """The first rows of episodes, where a count of steps begins again; None: it does not count from the same number."""
    counts = column.values().reshape(-1).astype(np.float64)
    starts = np.append(True, counts[1:] <= counts[:-1])
    rises = np.diff(counts)[~starts[1:]]
    if starts.sum() < 2 or (counts[starts] != counts[0]).any() or len(np.unique(rises)) > 1:
        return None
    return starts


def _refuse_early(part: Part, ended: Flags, bounds: Flags, last_row: int | None, told: str) -> None:
    """Raises DataError where an end is marked within an episode and does not stay marked to its last row."""
    early = ended & ~bounds & ~np.append(ended[1:], True)
    if not early.any():
        return
    row = int(np.flatnonzero(ended & ~bounds)[0]) if last_row is not None else int(early.argmax())
    if last_row is not None:
        raise DataError(
            f"{part.place} has its end marked at step {row}, before its last step {last_row}; split the episode there"
        )
    flags = ", ".join(name for role in _ENDS if role in part.marks for name in part.marks[role])
    raise DataError(
        f"{part.place}: {flags} mark an end at step {row}, within an episode by {told}; rename what is wrong to "
        f"infos_NAME"
    )


def episode_ends(path: str, ended: Flags, max_episode_steps: int | None, notes: list[str]) -> npt.NDArray[np.int64]:
    """One past the last row of each complete episode, (E,); a note has the number of those that the data lack."""
    ends = np.flatnonzero(ended).astype(np.int64) + 1
    if max_episode_steps is not None:
        starts = np.concatenate(([0], ends))
        stops = np.append(ends, len(ended))
        # b + 1: the rows behind the last end are a whole episode where their number fits exactly.
        cuts = [np.arange(a + max_episode_steps, b + 1, max_episode_steps) for a, b in zip(starts, stops, strict=True)]
        ends = np.unique(np.concatenate([ends, *cuts]))
    if len(ends) == 0:
        tried = "" if max_episode_steps is None else f" within {max_episode_steps} steps"
        raise DataError(
            f"{path}:terminals and timeouts are absent or never set: none of the {len(ended):,} steps ends an episode"
            f"{tried}; set timeouts to 1 at the last step of each, or give their length, --max-episode-steps"
        )
    if cut := int((~ended[ends - 1]).sum()):
        notes.append(f"ended {cut:,} episodes after {max_episode_steps} steps, where the file has no end")
    return ends
