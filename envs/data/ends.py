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

from ..errors import DataError
from .columns import Column, read_flags

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
