"""Columns of steps, whatever holds them, and what their names mean.

A source gives a `Table`: columns by the names that it has for them, in a file or in memory. `NAMES` says what a name
means; what nobody knows is left alone, unless it may be an end or padding, which an error names.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from ...base.errors import DataError
from .storage import release, row_blocks

OBSERVATIONS, ACTIONS, REWARDS = "observations", "actions", "rewards"
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
    "number": ("episode_ids", "episode_id", "episode_index", "episode_idx", "episode_number", "episode", "eps_id",
               "ep_id", "traj_id", "traj_ids", "traj_index", "trajectory_id", "trajectory_index"),
    "step": ("timestep", "timesteps", "frame_index", "step", "steps", "step_index", "step_id", "t"),
    "length": ("lengths", "length", "seq_len", "seq_lens", "seq_length", "sequence_length", "traj_lengths", "traj_len",
               "traj_length", "episode_lengths", "episode_length", "ep_len", "path_lengths", "valid_length"),
    "valid": ("mask", "attention_mask", "valid", "valid_mask", "pad_mask", "padding_mask", "loss_mask"),
    "padding": ("is_pad", "is_padding", "padding", "pad", "action_is_pad", "padded"),
}  # fmt: skip
STEP_NAMES = (OBSERVATIONS, ACTIONS, REWARDS)
MEANING = {name: role for role, names in NAMES.items() for name in names}
UNUSED_PREFIXES = ("next_", "next.", "info", "metadata", "observation.image", "observation.depth")

_BLOCK_BYTES = 2**26


class Column:
    """A row of numbers for every step: `data` is an array, or what has `shape`, `dtype` and gives slices, as HDF5's.

    `place` names it in messages, as FILE:NAME. Its numbers are read on demand.
    """

    def __init__(self, place: str, data: Any) -> None:  # noqa: ANN401
        self.place, self._data = place, data
        self.shape: tuple[int, ...] = data.shape
        self.dtype: np.dtype[Any] = data.dtype

    @property
    def name(self) -> str:
        """Its name without its file and group."""
        return re.split("[:/ ]", self.place)[-1]

    @property
    def width(self) -> int:
        """Numbers of a step."""
        return math.prod(self.shape[1:])

    @property
    def is_vector(self) -> bool:
        """Whether there is one number a step: (N,), (N, 1), ..."""
        return len(self.shape) > 0 and self.width == 1

    @property
    def is_discrete(self) -> bool:
        """Whether it holds integers, one for every step: (N,) or (N, 1)."""
        return self.dtype.kind in "biu" and self.shape[1:] in ((), (1,))

    def values(self) -> npt.NDArray[Any]:
        """All numbers, in their own type."""
        return np.asarray(self._data[()])

    def parts(self) -> list["Column"]:
        """Of episodes of one length, (E, T, ...), a column each."""
        return [Column(f"{self.place}[{e}]", self._data[e]) for e in range(self.shape[0])]

    def rows(self, rows: slice) -> npt.NDArray[Any]:
        """The numbers of some steps."""
        found: npt.NDArray[Any] = self._data[rows]
        return found

    def blocks(self, steps: int) -> Iterator[slice]:
        """Slices of the first steps that need little memory, of whole chunks of a file."""
        chunk, row = (getattr(self._data, "chunks", None) or (1,))[0], max(1, self.width * self.dtype.itemsize)
        return row_blocks(steps, chunk * max(1, _BLOCK_BYTES // (chunk * row)))

    def read_into(self, out: npt.NDArray[Any], kept: npt.NDArray[np.bool_] | None) -> None:
        """Read the first rows into `out`, those that are `kept`, and convert them to its type."""
        straight = kept is None and hasattr(self._data, "read_direct")  # HDF5 converts numbers as it reads them
        start, steps = 0, len(out) if kept is None else len(kept)
        for rows in self.blocks(steps):
            found = None if straight else self.rows(rows)
            stop = start + (rows.stop - rows.start if kept is None else int(kept[rows].sum()))
            with np.errstate(over="ignore", invalid="ignore"):  # infinite then, which is reported
                if found is None:
                    self._data.read_direct(out, rows, np.s_[start:stop])
                else:
                    out[start:stop] = found if kept is None else found[kept[rows]]
            start = stop
            release(out)
            release(self._data)


# Observations may be a dict or a tuple of columns, nested.
Tree: TypeAlias = "Column | Mapping[str, Tree] | Sequence[Tree]"


class Beside:
    """Columns side by side, in their order, as the data of one."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self.shape = (columns[0].shape[0], sum(column.width for column in columns))
        self.dtype = np.result_type(*(column.dtype for column in columns))

    def __getitem__(self, rows: Any) -> npt.NDArray[Any]:  # noqa: ANN401  a slice, or ()
        found = [column.values() if rows == () else column.rows(rows) for column in self._columns]
        return np.concatenate([part.reshape(len(part), -1) for part in found], axis=1)


class Table(NamedTuple):
    """Columns of as many steps, by the names that their source has; `place` names the file, or the part of it."""

    place: str
    columns: Mapping[str, Tree]


class Part(NamedTuple):
    """A table by what its columns mean; `flags` and the like by meaning and name."""

    place: str
    observations: Tree
    actions: Column
    rewards: Column
    marks: dict[str, dict[str, Column]]
    others: dict[str, Column]

    @property
    def steps(self) -> int:
        return self.rewards.shape[0] if self.rewards.shape else 0

    @property
    def read(self) -> list[Column]:
        return [*columns_of(self.observations), self.actions, self.rewards]

    def sizes(self) -> tuple[int, int]:
        """Numbers of an observation before it is flattened, and of an action; -1: actions are integers."""
        acted = -1 if self.actions.is_discrete else self.actions.width
        return sum(column.width for column in columns_of(self.observations)), acted


def columns_of(tree: Tree) -> list[Column]:
    """The columns of observations in the order of Gymnasium's `flatten`: a dict's by their sorted keys."""
    if isinstance(tree, Mapping):
        return [column for key in sorted(tree) for column in columns_of(tree[key])]
    if isinstance(tree, Sequence):
        return [column for part in tree for column in columns_of(part)]
    return [tree]


def wrong_shape(column: Column, steps: int, wanted: str) -> NoReturn:
    """Raises DataError: the shape that was found, the one that goes with so many steps, and how to convert it."""
    shape, name = column.shape, column.name
    way_out = CONVERT
    if not math.prod(shape):
        way_out = "record at least one step"
    elif shape[0] != steps and steps in shape[1:]:
        way_out = f"move the steps to the first axis, numpy.moveaxis({name}, {shape.index(steps)}, 0); {CONVERT}"
    elif shape[0] == steps + 1:
        way_out = f"leave out the row behind the last step, {name}[:-1], or give episodes one by one; {CONVERT}"
    raise DataError(f"{column.place} has shape {shape}; {steps:,} rewards go with {wanted}; {way_out}")
