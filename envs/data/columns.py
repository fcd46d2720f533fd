"""Columns of steps, whatever holds them: their size is known at once, their numbers are read on demand."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ...base.errors import DataError, one_line
from .storage import blocks

Bounds = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]

CONVERT = "aaren_rl.Episodes.from_arrays and .from_trajectories take arrays and lists (docs/howto/own-data.md)"

# gzip reaches about 1000:1 on constant data, so an honest file never promises more than that.
_MAX_EXPANSION = 1000
_EXPANSION_SLACK_BYTES = 64 * 2**20

_LARGEST = np.finfo(np.float32).max


class Column(Protocol):
    """An array of numbers with a row for every step; `place` names it in messages, as FILE:NAME."""

    @property
    def place(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def claims(self) -> int:
        """How many numbers must be in memory to read it."""
        ...

    def values(self) -> npt.NDArray[Any]:
        """All numbers, in their own type."""
        ...

    def read_into(self, out: npt.NDArray[Any]) -> None:
        """Read the first rows into `out`, a contiguous array of them, and convert them to its type."""
        ...


# Observations may be a dict or a tuple of columns, nested.
Tree: TypeAlias = "Column | Mapping[str, Tree] | Sequence[Tree]"


class ArrayColumn:
    """A column in memory."""

    def __init__(self, place: str, array: npt.NDArray[Any]) -> None:
        self.place, self._array = place, array
        self.shape, self.dtype, self.claims = array.shape, array.dtype, array.size

    def values(self) -> npt.NDArray[Any]:
        return self._array

    def read_into(self, out: npt.NDArray[Any]) -> None:
        with np.errstate(over="ignore"):  # infinite then, which is reported
            out[...] = self._array[: len(out)]


def columns_of(tree: Tree) -> list[Column]:
    """The columns of observations in the order of Gymnasium's `flatten`: a dict's by their sorted keys."""
    if isinstance(tree, Mapping):
        return [column for key in sorted(tree) for column in columns_of(tree[key])]
    if isinstance(tree, Sequence):
        return [column for part in tree for column in columns_of(part)]
    return [tree]


def check_size(columns: Iterable[Column], path: Path, taken: int = 0) -> int:
    """The bytes of columns of one file as float32, with those `taken` before; DataError: it cannot hold as much."""
    claimed, size = taken + 4 * sum(column.claims for column in columns), path.stat().st_size
    if claimed > _MAX_EXPANSION * size + _EXPANSION_SLACK_BYTES:
        raise DataError(f"{path}: claims {claimed:,} bytes in a file of {size:,}, so it is damaged; get the file again")
    return claimed


def wrong_shape(column: Column, steps: int, wanted: str) -> NoReturn:
    """Raises DataError: the shape that was found, the one that goes with so many steps, and how to convert it."""
    shape, name = column.shape, name_of(column)
    way_out = CONVERT
    if not math.prod(shape):
        way_out = "record at least one step"
    elif shape[0] != steps and steps in shape[1:]:
        way_out = f"move the steps to the first axis, numpy.moveaxis({name}, {shape.index(steps)}, 0); {CONVERT}"
    elif shape[0] == steps + 1:
        way_out = f"leave out the row behind the last step, {name}[:-1], or give episodes one by one; {CONVERT}"
    raise DataError(f"{column.place} has shape {shape}; {steps:,} rewards go with {wanted}; {way_out}")


def name_of(column: Column) -> str:
    """The name of a column without its file and group."""
    return re.split("[:/ ]", column.place)[-1]


def is_vector(column: Column) -> bool:
    """Whether there is one number a step: (N,), (N, 1), ..."""
    return len(column.shape) > 0 and math.prod(column.shape[1:]) == 1


def read_finite(column: Column, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Read the first rows into `out`, (N, ...), of float32 or float64; DataError: a value is not finite in float32."""
    column.read_into(out.reshape(len(out), *column.shape[1:]))
    if not all(block.min() >= -_LARGEST and block.max() <= _LARGEST for block in blocks(out)):
        bad = np.argwhere(~(np.abs(out) <= _LARGEST))
        value = "NaN" if np.isnan(out[tuple(bad[0])]) else "infinite or beyond float32"
        where = f"step {bad[0][0]}" + (f", column {bad[0][1]}" if out.ndim == 2 else "")
        raise DataError(
            f"{column.place} has {len(bad):,} values that are not finite, the first ({value}) at {where}; repair them "
            "or leave the episode out"
        )
    return out


def read_flags(column: Column) -> npt.NDArray[np.bool_]:
    """A column of zeros and ones, (N,); DataError: it has other values."""
    values = column.values().reshape(-1)
    flags: npt.NDArray[np.bool_] = values != 0
    if not np.array_equal(values, flags):
        odd = values[(values != 0) & (values != 1)]
        raise DataError(
            f"{column.place} has values other than 0 and 1 (the first is {one_line(odd[0], 30)}); store 1 at the steps "
            f"that it marks, for example {name_of(column)} > 0"
        )
    return flags


def is_discrete(actions: Column) -> bool:
    """Whether actions are integers, one for every step: (N,) or (N, 1)."""
    return actions.dtype.kind in "biu" and actions.shape[1:] in ((), (1,))


def check_kind(actions: Column, discrete: bool) -> None:
    """Raises DataError if actions are not of the environment's kind; the message has the first such action."""
    if is_discrete(actions) == discrete or not math.prod(actions.shape):
        return
    values = actions.values()
    if discrete:
        odd = np.argwhere(~np.isfinite(values) | (values != np.rint(values)))
        step = int(odd[0][0]) if len(odd) else 0
        wanted = f"integers, one for every step; store them as int64 of shape ({len(values)},)"
    else:
        step, wanted = 0, "vectors of real numbers; store them as float32"
    told = f"{values.dtype} of shape {values.shape} ({one_line(values[step], 60)} at step {step})"
    raise DataError(f"{actions.place} are {told}, but the environment takes {wanted}")


def hold_to_choices(path: str | Path, actions: npt.NDArray[np.int64], n_actions: int, start: int) -> None:
    """Raises DataError if an action is not one of the `n_actions` from `start` on; the message has the first one."""
    odd = np.flatnonzero((actions < start) | (actions >= start + n_actions))
    if odd.size:
        raise DataError(
            f"{path}:actions has {actions[odd[0]]} at step {odd[0]}, but the environment takes {start} to "
            f"{start + n_actions - 1}; choose the environment it was recorded on, or renumber its actions"
        )


def hold_to_bounds(
    path: str | Path, actions: npt.NDArray[np.float32], bounds: Bounds, clip: bool, notes: list[str]
) -> None:
    """Raises DataError where actions (N, A) are out of bounds, (A,); with `clip` changes them in place and notes it."""
    low, high = bounds
    least, most = actions.min(axis=0), actions.max(axis=0)
    if np.all(least >= low) and np.all(most <= high):
        return
    found, allowed = (f"[{a.min():.6g}, {b.max():.6g}]" for a, b in ((least, most), (low, high)))
    if not clip:
        raise DataError(f"{path}:actions range over {found}, outside {allowed}; pass --clip-actions to clip them")
    np.clip(actions, low, high, out=actions)
    notes.append(f"clipped actions from {found} to {allowed}")
