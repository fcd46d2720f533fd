"""The steps of a dataset on the training device, and batches of them.

Shape suffixes: N steps in the dataset, B packed sequences (rows), T steps per row, S segments, O observation, A action.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...agents.model.scaling import Scaling
from ...base.errors import DataError
from ...envs.data.episodes import Episodes, MappedArray, allocate, gather, release, row_blocks

LARGEST_RETURN = 1e12  # scaled: float32 holds its square, and sums of squares


@dataclass(frozen=True)
class Batch:
    """A batch of steps to train on."""

    observations: Tensor  # (B, T, O), normalized
    actions: Tensor  # (B, T, A), scaled to [-1, 1], or one-hot
    returns_to_go: Tensor  # (B, T), scaled
    timesteps: Tensor  # (B, T), steps since the start of the episode
    mask: Tensor  # bool (B, T), False for padding
    # Bool (B, T), True at the first step of every sequence in a row; None if a row is one sequence. With several rows,
    # a row whose first step is False continues from the carried state of the model.
    starts: Tensor | None
    previous_action: Tensor | None = None  # (B, A), scaled, before every row; None if rows start new sequences


def part(batch: Batch, index: int, count: int) -> Batch:
    """Part `index` of `count` parts of about equal size, each a batch. Every step is in exactly one part.

    Rows stay whole; a single row of whole sequences is cut at their starts. An empty part is one masked step.
    """
    if count == 1:
        return batch
    if batch.starts is None or batch.previous_action is not None or len(batch.mask) > 1:
        where, here = 0, part_of_rows(len(batch.mask), index, count)
    else:
        where, here = 1, slice(*(_cut_near(batch.starts[0], k, count) for k in (index, index + 1)))
    empty = here.start == here.stop
    if empty:
        here = slice(0, 1)
    places = (slice(None),) * where + (here,)
    tensors = {name: value[places] for name, value in vars(batch).items() if value is not None}
    if empty:
        tensors["mask"] = torch.zeros_like(tensors["mask"])
    return Batch(**{"starts": None, **tensors})


def part_of_rows(rows: int, index: int, count: int) -> slice:
    """The rows of part `index` of `count`."""
    return slice(rows * index // count, rows * (index + 1) // count)


def _cut_near(starts: Tensor, index: int, count: int) -> int:
    # The start (T,) nearest to this fraction of a row, or the end of the row if that is nearer.
    steps = len(starts)
    cuts = torch.cat([starts.nonzero().flatten(), torch.tensor([steps], device=starts.device)])
    return int(cuts[(cuts * count - index * steps).abs().argmin()])


class StepData:
    """All steps of a dataset on the training device. Observations are normalized when sampled, without a copy.

    Returns-to-go are divided by `return_scale`. Actions are scaled from their bounds, (A,) or one number for all, to
    [-1, 1]. `n_actions` discrete actions, from `action_start` on, become one-hot vectors. On a CPU it shares the memory
    of the dataset. Samplers draw episodes in proportion to `weights` (E,), and the normalization follows them; episodes
    of weight 0 are left out. None: all the same. Raises DataError if a scaled return-to-go is too large.
    """

    def __init__(
        self,
        episodes: Episodes,
        return_scale: float,
        device: torch.device | str = "cpu",
        *,
        action_low: float | Sequence[float] = -1.0,
        action_high: float | Sequence[float] = 1.0,
        n_actions: int | None = None,
        action_start: int = 0,
        weights: npt.NDArray[np.float64] | None = None,
    ) -> None:
        weights = np.ones(len(episodes)) if weights is None else weights
        chosen = None if weights.all() else np.flatnonzero(weights)
        weights = weights[weights > 0]
        rows = None if chosen is None else episodes.rows(chosen)
        lengths = episodes.lengths if chosen is None else episodes.lengths[chosen]
        self.statistics = episodes.statistics(rows, np.repeat(weights, lengths))
        self.device = torch.device(device)
        self._rows = None if rows is None else torch.from_numpy(rows).to(device)
        self._origin = self.statistics.mean if episodes.is_exact else None
        self.discrete, self.return_scale = n_actions is not None, return_scale
        wide, bounds = episodes.actions.shape[1:], (action_low, action_high)
        if n_actions is not None:  # which have none: one-hot vectors are as they are
            wide, bounds = (n_actions,), (-1.0, 1.0)
        self._action_low, self._action_high = (
            torch.tensor(bound, dtype=torch.float64, device=device).expand(wide) for bound in bounds
        )
        self.observations: Tensor | npt.NDArray[Any] = self._stored(self.from_origin(episodes.observations))
        self.normalize_by(*(torch.from_numpy(x).to(device) for x in self.statistics[:2]))
        self.actions = self._stored(episodes.actions)
        if n_actions is not None:
            self._choices = torch.arange(action_start, action_start + n_actions, device=device)
        self.episodes = episodes = episodes if chosen is None else episodes.outline(chosen)
        self.returns_to_go = torch.from_numpy(episodes.returns_to_go()).to(device) / return_scale
        largest = float(self.returns_to_go.abs().max())
        if not largest <= LARGEST_RETURN:  # also rejects NaN
            raise DataError(
                f"{episodes.dataset}: returns-to-go divided by --return-scale {return_scale:g} reach {largest:g}, too "
                "large for the model; give a scale near the returns of the dataset, or data with smaller rewards"
            )
        self.timesteps = torch.from_numpy(episodes.timesteps()).to(device)
        offsets = torch.from_numpy(episodes.offsets).to(device)
        self.first, self.lengths = offsets[:-1], offsets[1:] - offsets[:-1]
        self.weights = torch.from_numpy(weights).to(device)
        self.end = torch.repeat_interleave(offsets[1:], self.lengths)  # by episode of each step, (N,)

    def __len__(self) -> int:
        return len(self.timesteps)

    @property
    def drawn_length(self) -> float:
        """Mean length of the episodes drawn, in steps."""
        return float((self.weights * self.lengths).sum() / self.weights.sum())

    def rows(self, index: Tensor, mask: Tensor) -> Batch:
        """The steps at `index` (B, T), one sequence per row. Normalizes here, to keep no second copy."""
        told = self.returns_to_go[index], self.timesteps[index]
        return Batch(self.observed(index), self.scaled_actions(index), *told, mask, starts=None)

    def observed(self, index: Tensor) -> Tensor:
        """The normalized observations at `index` (B, ...), (B, ..., O)."""
        return self.scaling.normalized(self._at(self.observations, index))

    def _stored(self, array: npt.NDArray[Any]) -> Tensor | npt.NDArray[Any]:
        """Where batches are taken from: on the device, or on the disk, for a CPU."""
        mapped = isinstance(array, MappedArray) and self.device.type == "cpu"
        return array if mapped else torch.from_numpy(array).to(self.device)

    def _at(self, stored: Tensor | npt.NDArray[Any], index: Tensor) -> Tensor:
        place = index if self._rows is None else self._rows[index]
        if isinstance(stored, Tensor):
            return stored[place]
        return torch.from_numpy(gather(stored, place.flatten().numpy())).view(*place.shape, *stored.shape[1:])

    def normalize_by(self, mean: Tensor, std: Tensor) -> None:
        """Normalizes by another mean and deviation (O,) than the data's own, as those of a policy."""
        self.observation_mean, self.observation_std = mean, std  # (O,), raw
        bounds = self._action_low, self._action_high
        self.scaling = Scaling.of(mean, std, self.return_scale, *bounds, self._origin)

    def from_origin(self, observations: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Raw observations (N, O) in float32, for `Scaling.normalized`."""
        if self._origin is None:
            return observations
        near = allocate(observations.shape, np.float32, isinstance(observations, MappedArray))
        for rows in row_blocks(len(observations)):
            near[rows] = observations[rows] - self._origin
            release(observations)
        release(near)
        return near

    def scaled_actions(self, index: Tensor) -> Tensor:
        """The actions at `index` (...) in units in which they span [-1, 1], or one-hot, (..., A)."""
        actions = self._at(self.actions, index)
        return (actions.unsqueeze(-1) == self._choices).float() if self.discrete else self.scaling.unit_actions(actions)

    def filled(self, begins: Tensor, lengths: Tensor, steps: int) -> Batch:
        """Pack segments of `lengths` (B, S) steps, which start at the steps `begins` (B, S), into B rows of `steps`.

        The last segment of a row is cut to fit; there must be enough.
        No shape depends on sampled values, so this never synchronizes with the device, and a captured graph can sample.
        """
        after = lengths.cumsum(1)
        place = torch.arange(steps, device=self.device).expand(len(begins), -1).contiguous()
        stretch = torch.searchsorted(after, place, right=True)
        since = place - (after - lengths).gather(1, stretch)
        batch = self.rows(begins.gather(1, stretch) + since, torch.ones_like(place, dtype=torch.bool))
        return replace(batch, starts=since == 0)
