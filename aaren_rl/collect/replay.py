"""What training has experienced, on disk: a growing list of chunk files, each written once.

Shapes: R rows (one step of every environment), E environments, O observation, A action.
"""

import io
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..envs.behaviour.policy import ActionUnits
from ..envs.data.episodes import Episodes
from ..envs.errors import DataError, one_line
from ..envs.files import write_whole


class Replay(NamedTuple):
    """Steps of E environments side by side, in the order they were taken.

    observations and next_observations (R, E, O), actions (R, E, A) in [-1, 1] and rewards (R, E) are float32. `done`
    (R, E) marks the last step of an episode, `timeout` (R, E) those of them that the time limit cut.
    """

    observations: npt.NDArray[np.float32]
    next_observations: npt.NDArray[np.float32]
    actions: npt.NDArray[np.float32]
    rewards: npt.NDArray[np.float32]
    done: npt.NDArray[np.bool_]
    timeout: npt.NDArray[np.bool_]

    def until(self, row: int) -> "Replay":
        """Views of the rows before `row`."""
        return self.rows(slice(row))

    def rows(self, part: slice) -> "Replay":
        """Views of some of the rows."""
        return Replay(**{name: array[part] for name, array in self._asdict().items()})


def write_chunk(folder: Path, first: int, replay: Replay) -> None:
    """Write rows from row `first` on, whole or not at all.

    Raises:
        OSError: the disk is full or the folder cannot be written; nothing is left behind.
    """
    content = io.BytesIO()
    np.savez(content, **replay._asdict())
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{first:010d}.npz", content.getbuffer())


def read_chunks(folder: Path, rows: int) -> Replay:
    """The first `rows` rows, at least one: chunk after chunk. A run that was resumed may have left others.

    Raises:
        DataError: a chunk is missing or damaged (an npz file has checksums), or is of another run.
    """
    parts: list[Replay] = []
    first = 0
    while first < rows:
        path = folder / f"{first:010d}.npz"
        try:
            with np.load(path, allow_pickle=False) as arrays:
                parts.append(Replay(**arrays))
        except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{path}: not readable: {one_line(error)}; restore it from a copy") from error
        first += len(parts[-1].rewards)
    if first != rows:
        raise DataError(f"{path}: ends at row {first:,}, the checkpoint at {rows:,}; restore it from a copy")
    return Replay(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def split_replay(replay: Replay, restarts: Sequence[int], units: ActionUnits, *, dataset: str, env_id: str) -> Episodes:
    """The whole episodes of all environments in the order in which they ended, actions in the environment's units.

    `restarts` are the rows at which every environment began a new episode, whatever it was at before. Episodes that
    were cut there, or were not over at the last row, are left out, with a note.

    Raises:
        DataError: no episode ended.
    """
    found = sorted(
        (end, column, start)
        for column in range(replay.rewards.shape[1])
        for start, end in _whole_episodes(replay.done[:, column], restarts)
    )
    if not found:
        raise DataError(f"{dataset}: no episode ended within the first {replay.rewards.size:,} steps; train longer")
    places = [(slice(start, end), column) for end, column, start in found]
    lengths = np.array([end - start for end, _, start in found], dtype=np.int64)
    dropped = replay.rewards.size - int(lengths.sum())
    return Episodes(
        observations=np.concatenate([replay.observations[place] for place in places]),
        actions=units(np.concatenate([replay.actions[place] for place in places])),
        rewards=np.concatenate([replay.rewards[place] for place in places]),
        offsets=np.concatenate(([0], np.cumsum(lengths))),
        terminated=np.array([not replay.timeout[end - 1, column] for end, column, _ in found]),
        dataset=dataset,
        env_id=env_id,
        notes=(f"dropped {dropped:,} steps of unfinished episodes",) if dropped else (),
    )


def _whole_episodes(done: npt.NDArray[np.bool_], restarts: Sequence[int]) -> list[tuple[int, int]]:
    """First row and the row after the last of every episode of one environment that came to its end."""
    ends = np.flatnonzero(done) + 1
    begins = np.unique(np.concatenate(([0], ends, np.asarray(restarts, dtype=np.int64))))
    starts = begins[np.searchsorted(begins, ends) - 1]
    return list(zip(starts.tolist(), ends.tolist(), strict=True))
