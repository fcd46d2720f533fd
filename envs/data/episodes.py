"""Episodes of offline data: flat arrays with offsets, the statistics that training needs, and how often each is drawn.

Large arrays are mapped from the disk (`allocate`), and walked through in blocks.
"""

import hashlib
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from ...base.errors import ResourcesError
from ...base.files import cache_dir
from ..tasks.spaces import Layout
from .draws import Weights

_STEPS = ("observations", "actions", "rewards")

# A mean over fewer held-out episodes is not informative; and if there are fewer in total, training needs them all.
_LEAST_HELD_OUT, _LEAST_TO_SPLIT = 8, 40

# A column whose spread is below this share of its size, or below the last number, holds rounding noise, not a signal.
_NOISE = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-12}
_LEAST_STD = 1e-12
_COPIED_ROWS = 8192  # rows of a temporary copy
# Deviations from zero from which on the distance of float32 numbers is more than 1e-4 of a deviation. Data are float64
# there, and a policy subtracts the mean in float64.
FAR = 1e3


class Statistics(NamedTuple):
    """Of each observation column, (O,): its mean and standard deviation (ddof 0), and whether it is constant.

    The deviation of a constant column is 1: divided by the customary 1e-6, a small departure from it in a rollout
    (Ant's contact forces, zero in D4RL's files) would reach the network a million times too large.
    """

    mean: npt.NDArray[Any]
    std: npt.NDArray[Any]
    constant: npt.NDArray[np.bool_]


def returns_to_go(rewards: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Undiscounted return-to-go of one episode: element t is the sum of the rewards from t to the end.

    Rewards (T,) in, (T,) float32 out, summed in float64 (Decision Transformer, section 3).
    """
    summed = np.cumsum(np.asarray(rewards, dtype=np.float64)[::-1])[::-1]
    with np.errstate(over="ignore"):  # infinite then, which training rejects
        return summed.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode: observations (T, O), actions (T, A), or (T,), and rewards (T,), views of the dataset's arrays.

    `terminated` is true if the environment ended the episode, false if a time limit truncated it.
    """

    observations: npt.NDArray[Any]
    actions: npt.NDArray[Any]
    rewards: npt.NDArray[np.float32]
    terminated: bool

    def __len__(self) -> int:
        return len(self.rewards)


@dataclass(frozen=True, eq=False)
class Episodes(Sequence[Episode]):
    """A dataset: a sequence of `Episode` over flat arrays of all N steps.

    observations (N, O), actions (N, A) and rewards (N,) are float32, discrete actions int64 (N,), and observations
    float64 where a column lies so far from zero that float32 loses what it is about; episode e has the rows
    offsets[e]:offsets[e + 1], with offsets (E + 1,) int64; terminated (E,) bool. `source` is "d4rl", "local" (made
    here from shipped policies), "minari" or "file"; `env_id` is the environment named in the data; `notes`
    list what reading left out or changed. `layout` is that of observations that were dicts or tuples, whose parts the
    columns are. ValueError: the arrays do not fit together.
    """

    observations: npt.NDArray[Any]
    actions: npt.NDArray[Any]
    rewards: npt.NDArray[np.float32]
    offsets: npt.NDArray[np.int64]
    terminated: npt.NDArray[np.bool_]
    dataset: str = ""
    source: str = "file"
    path: str = ""
    env_id: str | None = None
    notes: tuple[str, ...] = ()
    layout: Layout | None = None

    def __post_init__(self) -> None:
        seen, acted = f"2-d float{64 if self.is_exact else 32}", "1-d int64" if self.discrete else "2-d float32"
        kinds = {"observations": seen, "actions": acted, "rewards": "1-d float32", "offsets": "1-d int64"}
        for name, wanted in {**kinds, "terminated": "1-d bool"}.items():
            array = getattr(self, name)
            if f"{array.ndim}-d {array.dtype}" != wanted:
                raise ValueError(f"{name} must be {wanted}, got shape {array.shape} {array.dtype}")
        lengths = (len(self.observations), len(self.actions), self.n_steps)
        if len(set(lengths)) != 1:
            raise ValueError(f"observations, actions and rewards have unequal lengths {lengths}")
        if len(self.offsets) != len(self) + 1 or not len(self):
            raise ValueError(f"{len(self)} episodes need as many offsets plus one, got {len(self.offsets)}")
        if self.offsets[0] != 0 or self.offsets[-1] != self.n_steps or np.any(self.lengths < 1):
            raise ValueError(f"offsets must rise from 0 to {self.n_steps}, the number of steps")

    @classmethod
    def from_arrays(
        cls, observations: Any, actions: Any, rewards: Any, terminals: Any = None, timeouts: Any = None, **options: Any
    ) -> "Episodes":
        """The episodes of arrays or lists with a row for each of all N steps, one episode after another.

            episodes = Episodes.from_arrays(observations, actions, rewards, terminals, timeouts)

        Args:
            observations: (N, O), or (N,) of one number. A dict or a tuple of arrays is flattened as Gymnasium does it.
            actions: (N, A) float, or (N,) of one number; integers (N,) are discrete.
            rewards: (N,), as all flags.
            terminals: 1 at the steps at which the environment ended the episode.
            timeouts: 1 at the last step of an episode that was cut, by a time limit or by the end of the recording.
            options: flags of other names, as in files: `dones`, `ends`, ...; `episode_ids` (N,), the number of each
                step's episode, or `lengths` (E,); `observation_space`, a Gymnasium space to flatten by;
                `max_episode_steps`, after which episodes end at the latest; `kind`, "discrete" or "continuous" actions;
                `names`, which columns are what; `dataset`, a name; `env_id`.

        Episodes of one length may be arrays (E, T, ...), and padded: `lengths` (E,) or `mask` (E, T) beside them.

        Raises:
            UsageError: another argument.
            DataError: shapes do not fit, a value is no finite number, or no step ends an episode.
        """
        from . import files  # which makes what this module defines

        steps = {"observations": observations, "actions": actions, "rewards": rewards}
        return cls(**files.from_columns({**steps, "terminals": terminals, "timeouts": timeouts}, **options))

    @classmethod
    def from_trajectories(cls, trajectories: Iterable[Any], **options: Any) -> "Episodes":
        """The episodes of a list of trajectories, each a dict of arrays or lists of its T steps.

            episodes = Episodes.from_trajectories([{"observations": o, "actions": a, "rewards": r, "terminated": True}])

        Keys are those of Gymnasium's loops, D4RL, d3rlpy and imitation: observations or obs, actions or acts, rewards
        or rews; terminated, terminals, done, truncated, ... hold one flag, or one for every step. An episode without
        one counts as truncated. There may be T + 1 observations; the last is left out. Objects with such fields do as
        well as dicts. Arrays and `options` are those of `from_arrays`.

        Raises:
            DataError: as `from_arrays`, or an end is marked before the last step of a trajectory.
        """
        from . import files  # which makes what this module defines

        return cls(**files.from_trajectories(trajectories, **options))

    @classmethod
    def from_frame(cls, frame: Any, **options: Any) -> "Episodes":
        """The episodes of a pandas frame with a row for each step.

            episodes = Episodes.from_frame(frame, names={"observations": ["x", "y"], "actions": "u"})

        Columns are named as in files: observations of one column, of lists, or of several, obs_0, obs_1, ...; LeRobot's
        names, too. A number in each row, such as `episode_index`, or flags mark episodes. `options` are those of
        `from_arrays`.

        Raises:
            DataError: as `from_arrays`, or a column of a known name holds no numbers.
        """
        from . import files  # which makes what this module defines

        return cls(**files.from_frame(frame, **options))

    def __len__(self) -> int:
        return len(self.terminated)

    @overload
    def __getitem__(self, index: int) -> Episode: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Episode]: ...
    def __getitem__(self, index: int | slice) -> Episode | Sequence[Episode]:
        """Episode `index` (negative ones count from the end), or a list of them for a slice; views, not copies."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        episode = range(len(self))[index]
        rows = slice(self.offsets[episode], self.offsets[episode + 1])
        return Episode(self.observations[rows], self.actions[rows], self.rewards[rows], bool(self.terminated[episode]))

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Steps per episode, (E,)."""
        return np.diff(self.offsets)

    @property
    def returns(self) -> npt.NDArray[np.float64]:
        """Undiscounted return per episode, (E,), summed in float64."""
        return np.asarray(np.add.reduceat(self.rewards, self.offsets[:-1], dtype=np.float64))

    @property
    def n_steps(self) -> int:
        """Number of steps N of all episodes."""
        return len(self.rewards)

    @property
    def discrete(self) -> bool:
        """Whether an action is one of the environment's integers."""
        return bool(self.actions.dtype == np.int64)

    @property
    def is_exact(self) -> bool:
        """Whether observations are float64."""
        return bool(self.observations.dtype == np.float64)

    @property
    def observation_dim(self) -> int:
        """Number of observation columns O."""
        return int(self.observations.shape[1])

    @property
    def action_dim(self) -> int:
        """Number of action columns A, 1 of discrete actions."""
        return 1 if self.discrete else int(self.actions.shape[1])

    def rows(self, indices: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The rows of the flat arrays that belong to the episodes `indices`, one episode after another."""
        if np.asarray(indices).dtype == bool:
            raise ValueError("a mask is no index; np.flatnonzero makes indices of one")
        chosen = np.asarray(indices, dtype=np.int64)
        lengths = self.lengths[chosen]
        firsts = np.repeat(self.offsets[:-1][chosen] - np.cumsum(lengths) + lengths, lengths)
        return firsts + np.arange(lengths.sum(), dtype=np.int64)

    def take(self, indices: npt.ArrayLike) -> "Episodes":
        """Copies of the episodes `indices` (K,), in that order; IndexError: no such episode, ValueError: no index."""
        rows, chosen = self.rows(indices), np.asarray(indices, dtype=np.int64)
        steps: dict[str, Any] = {key: gather(getattr(self, key), rows) for key in _STEPS}
        offsets = np.cumsum([0, *self.lengths[chosen]], dtype=np.int64)
        return replace(self, **steps, offsets=offsets, terminated=self.terminated[chosen])

    def arranged(self, order: npt.NDArray[np.int64], layout: Layout | None) -> "Episodes":
        """The episodes with the columns of observations in another order, (O,), which is that of a layout."""
        found = self.observations
        moved = allocate(found.shape, found.dtype, isinstance(found, MappedArray))
        for rows in row_blocks(len(found)):
            moved[rows] = found[rows][:, order]
            release(found)
            release(moved)
        return replace(self, observations=moved, layout=layout)

    def outline(self, indices: npt.ArrayLike) -> "Episodes":
        """As `take`, without columns of observations and actions, which are most of the memory."""
        none = np.empty((self.n_steps, 0), np.float32)
        return replace(self, observations=none, actions=none).take(indices)

    def sha256(self) -> str:
        """The SHA-256 (hex) of all numbers, whatever file they are from."""
        digest = hashlib.sha256()
        for array in (self.observations, self.actions, self.rewards, self.offsets, self.terminated):
            digest.update(f"{array.dtype} {array.shape}".encode())
            for block in blocks(array):
                digest.update(np.ascontiguousarray(block).data)
        return digest.hexdigest()

    def returns_to_go(self) -> npt.NDArray[np.float32]:
        """Undiscounted return-to-go of every step within its own episode, (N,)."""
        return np.concatenate([returns_to_go(part) for part in np.split(self.rewards, self.offsets[1:-1])])

    def timesteps(self) -> npt.NDArray[np.int64]:
        """Position of every step within its own episode, from 0, (N,)."""
        return np.arange(self.n_steps, dtype=np.int64) - np.repeat(self.offsets[:-1], self.lengths)

    def statistics(self, rows: npt.NDArray[np.int64] | None = None, weights: Weights | None = None) -> Statistics:
        """Of the observation columns, over all steps or the `rows` of some; in float64 where observations are.

        `weights` of these steps tell how much each counts; None: all the same.
        """
        mean, std = moments(self.observations, rows, weights)
        dtype = self.observations.dtype
        constant = std < np.maximum(_LEAST_STD, _NOISE[dtype] * np.abs(mean))
        return Statistics(mean.astype(dtype), np.where(constant, 1.0, std).astype(dtype), constant)

    def observation_statistics(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Mean and standard deviation of each observation column, both (O,), as in `Statistics`."""
        mean, std, _ = self.statistics()
        return mean, std


def moments(
    values: npt.NDArray[Any], rows: npt.NDArray[np.int64] | None = None, weights: Weights | None = None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean and standard deviation (ddof 0) of each column of (N, O), or of some `rows` of it, both (O,), in float64.

    `weights` (N,), of the rows taken, tell how much each counts; None: all the same.
    """
    weights = np.ones(len(values) if rows is None else len(rows)) if weights is None else weights
    sums = [np.zeros(values.shape[1]), np.zeros(values.shape[1])]
    mean = np.zeros(values.shape[1])
    for power in (1, 2):
        start = 0
        for block in blocks(values, rows):
            for part in np.array_split(block, -(-len(block) // _COPIED_ROWS)):
                sums[power - 1] += weights[start : start + len(part)] @ (part - mean) ** power
                start += len(part)
        mean = sums[0] / weights.sum()
    return mean, np.sqrt(sums[1] / weights.sum())


def is_far(mean: npt.NDArray[np.float64], std: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Of each column, (O,), whether it lies so many of its deviations from zero that float32 loses what it is about."""
    return np.abs(mean) > FAR * std


def join(parts: Sequence[Episode] | Sequence[Episodes], **labels: Any) -> Episodes:
    """The dataset of episodes, or of datasets, in their order, mapped where one is; `labels` are its other fields."""

    def end_to_end(key: str) -> Any:
        arrays = [getattr(part, key) for part in parts]
        shape, mapped = (sum(map(len, arrays)), *arrays[0].shape[1:]), any(isinstance(a, MappedArray) for a in arrays)
        return np.concatenate(arrays, out=allocate(shape, np.result_type(*{a.dtype for a in arrays}), mapped))

    lengths = [part.lengths if isinstance(part, Episodes) else [len(part)] for part in parts]
    offsets = np.cumsum(np.concatenate([[0], *lengths]), dtype=np.int64)
    terminated = np.concatenate([np.atleast_1d(part.terminated) for part in parts])
    return Episodes(**{key: end_to_end(key) for key in _STEPS}, offsets=offsets, terminated=terminated, **labels)


def held_out(n_episodes: int, share: float, seed: int) -> npt.NDArray[np.int64]:
    """Which of so many episodes are held out of training, a `share` in [0, 1), in rising order.

    At least 8 are. With fewer than 40 episodes, or a share of 0, none is.
    """
    if share == 0 or n_episodes < _LEAST_TO_SPLIT:
        return np.zeros(0, dtype=np.int64)
    count = min(max(_LEAST_HELD_OUT, round(share * n_episodes)), n_episodes - 1)
    return np.sort(np.random.default_rng(seed).permutation(n_episodes)[:count])


# Arrays in memory or mapped from the disk

# Rows per step of reductions: float64 copies of a million rows at once would double the memory.
_BLOCK_ROWS = 65536

_AT_ONCE = 2**30  # bytes


def row_blocks(n_rows: int, block: int = _BLOCK_ROWS) -> Iterator[slice]:
    """Consecutive slices of `n_rows` rows, small enough for temporary copies."""
    return (slice(start, min(start + block, n_rows)) for start in range(0, n_rows, block))


class MappedArray(np.memmap[Any, Any]):
    """An array of `allocate`; views of it are, too, copies are not."""

    _mmap: mmap.mmap | None  # NumPy's
    file: int | None = None  # its descriptor
    begin = 0  # address of the first byte of the file

    def __array_finalize__(self, obj: Any) -> None:
        super().__array_finalize__(obj)
        if self._mmap is not None:
            self.file, self.begin = getattr(obj, "file", None), getattr(obj, "begin", 0)


def has_room(size: int) -> bool:
    """Whether the disk has so many bytes to spare for a memory map."""
    folder = next(path for path in (cache_dir(), *cache_dir().parents) if path.is_dir())
    return os.access(folder, os.W_OK) and size < shutil.disk_usage(folder).free / 2


def allocate(shape: tuple[int, ...], dtype: npt.DTypeLike, mapped: bool) -> npt.NDArray[Any]:
    """An array to fill; `mapped`: from a file without a name, which is gone with the last use of the array.

    ResourcesError: the file cannot be made, or the disk is full.
    """
    if not mapped:
        return np.empty(shape, dtype)
    folder, size = cache_dir(), int(np.prod(shape)) * np.dtype(dtype).itemsize
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # a full disk would kill the process where it writes to the map
                os.posix_fallocate(file.fileno(), 0, size)
            array = MappedArray(file, dtype, "w+", shape=shape)
            array.file, array.begin = os.dup(file.fileno()), array.ctypes.data
        weakref.finalize(array._mmap, os.close, array.file)
        return array
    except OSError as error:
        told = f"no memory map of {size / 1e9:,.1f} GB can be written there ({error.strerror})"
        raise ResourcesError(f"{folder}: {told}; free space, or name another folder in AAREN_RL_CACHE") from error


def release(array: npt.NDArray[Any]) -> None:
    """Give back the memory of what was read of a mapped array; the system reads it again where it is used."""
    mapped: mmap.mmap | None = getattr(array, "_mmap", None)  # of np.memmap; None: a copy of one
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def gather(array: npt.NDArray[Any], rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """`array[rows]`, of rows (K,). Of a mapped array they are read: a map would take up to 2 MB of memory for each."""
    file: int | None = getattr(array, "file", None)
    if file is None or not rows.size or not hasattr(os, "preadv") or not array.flags.c_contiguous:
        return array[rows]
    found = np.empty((len(rows), *array.shape[1:]), array.dtype)
    size, offset = found.nbytes // len(rows), array.ctypes.data - getattr(array, "begin", 0)
    ends = [*(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
    start = 0
    for end in ends:  # of rows that follow each other
        if size * (end - start) > _AT_ONCE:  # more than the system reads in one call
            found[start:end] = array[rows[start] : rows[start] + end - start]
        elif os.preadv(file, [found[start:end].data], offset + size * int(rows[start])) != size * (end - start):
            raise OSError(f"{cache_dir()}: a memory map could not be read")
        start = end
    return found


def blocks(array: npt.NDArray[Any], rows: npt.NDArray[np.int64] | None = None) -> Iterator[npt.NDArray[Any]]:
    """An array by blocks of rows, or some `rows` of it by copies of as many; a mapped one takes no more memory."""
    for part in row_blocks(len(array) if rows is None else len(rows)):
        yield array[part] if rows is None else gather(array, rows[part])
        release(array)
