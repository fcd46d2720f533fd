"""Where episodes end: the names that packages give to such flags, and what they mean together.

Of every flag there is one value per step. In the field's files:
    D4RL            terminals: the environment ended the episode; timeouts: a time limit did
    Gymnasium       terminations or terminated, truncations or truncated
    Gym before 0.26 dones: either of both
    d3rlpy          terminals; episode_terminals: the last step of every episode
    OGBench         terminals: the last step of every trajectory; masks: 0 where the environment would end it
    RLDS            is_terminal; is_last: the last step of every episode
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...base.errors import DataError
from .columns import ArrayColumn, Column, read_flags

_TERMINATED = ("terminals", "terminal", "terminations", "termination", "terminated", "terminateds", "is_terminal")
_TRUNCATED = ("timeouts", "timeout", "truncations", "truncation", "truncated", "truncateds", "is_truncated")
_DONE = ("dones", "done", "dones_float")
_LAST = ("episode_terminals", "episode_ends", "episode_end", "ends", "end", "is_last")
_GOES_ON = ("masks",)
END_NAMES = (*_TERMINATED, *_TRUNCATED, *_DONE, *_LAST, *_GOES_ON)

Flags = npt.NDArray[np.bool_]


class Ends(NamedTuple):
    """Flags (N,): at which steps an episode ends, and at which of those the environment ended it."""

    ended: Flags
    terminated: Flags


def read_ends(found: Mapping[str, Column], others: Mapping[str, Column], steps: int, notes: list[str]) -> Ends:
    """The ends that columns of flags mark; `found` have names of END_NAMES, `others` have none that is known.

    Raises:
        DataError: a flag is not 0 or 1; or nothing but terminations is known, and one of the others may be ends, too.
    """
    terminated, truncated, done, last, goes_on = (
        _union(found, names) for names in (_TERMINATED, _TRUNCATED, _DONE, _LAST, _GOES_ON)
    )
    if truncated is None and done is None and last is None:
        _refuse_unknown(found, others)
    if goes_on is not None:  # where it is 0 the task is over, but a recording may go on
        last, terminated = _either(last, terminated), ~goes_on
        if truncated is None and done is None and last is None:
            last = terminated
    elif terminated is None and done is not None:
        terminated = done if truncated is None else done & ~truncated
        if truncated is None and last is None:
            notes.append(f"read {_shown(found, _DONE)} as terminations: no flag of truncations is there")
    if goes_on is None and (names := [name for name in found if name in (*_DONE, *_LAST)]):
        notes.append(f"read ends of episodes from {', '.join(names)}")
    nothing = np.zeros(steps, np.bool_)
    terminated = nothing if terminated is None else terminated
    flags = [flag for flag in (truncated, done, last) if flag is not None]
    if goes_on is None:
        flags.append(terminated)
    return Ends(np.any([nothing, *flags], axis=0), terminated)


def _union(found: Mapping[str, Column], names: tuple[str, ...]) -> Flags | None:
    flags = [read_flags(found[name]) for name in names if name in found]
    return np.any(flags, axis=0) if flags else None


def _either(one: Flags | None, other: Flags | None) -> Flags | None:
    return other if one is None else one if other is None else one | other


def _shown(found: Mapping[str, Column], names: tuple[str, ...]) -> str:
    return " and ".join(name for name in names if name in found)


def _refuse_unknown(found: Mapping[str, Column], others: Mapping[str, Column]) -> None:
    odd = [name for name, column in others.items() if _may_be_flags(column)]
    if not odd:
        return
    known = f"only {', '.join(found)} is known" if found else "no flag that is known marks one"
    column = others[odd[0]]
    raise DataError(
        f"{column.place} has a 0 or 1 for every step and may mark ends of episodes, of which {known}"
        f"{'; so may ' + ', '.join(odd[1:]) if odd[1:] else ''}; rename it to timeouts if it marks the last step of "
        f"an episode, or to infos_{odd[0]} if not"
    )


def _may_be_flags(column: Column) -> bool:
    if column.dtype.kind == "b":
        return True
    values = column.values()
    return bool(values.min() == 0 and values.max() == 1 and np.isin(values, (0, 1)).all())


def ends_of_one(place: str, flags: Mapping[str, Column], steps: int) -> bool:
    """Whether the environment ended the episode that has these flags; DataError: it has an end before its last step."""
    marked = read_ends({name: _at_each_step(flag, steps) for name, flag in flags.items()}, {}, steps, [])
    if (early := np.flatnonzero(marked.ended[:-1])).size:
        raise DataError(
            f"{place} has its end marked at step {early[0]}, before its last step {steps - 1}; split the episode there"
        )
    return bool(marked.terminated[-1])


def _at_each_step(flag: Column, steps: int) -> Column:
    """A flag of an episode as a whole as one of its last step."""
    if flag.shape[:1] == (steps,):
        return flag
    spread = np.zeros(steps, flag.dtype)
    spread[-1] = flag.values().reshape(-1)[0]
    return ArrayColumn(flag.place, spread)


def episode_ends(
    path: str, ended: npt.NDArray[np.bool_], max_episode_steps: int | None, notes: list[str]
) -> npt.NDArray[np.int64]:
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
