"""The data of a run: its steps on the training device, the samplers that make batches of them, and how it is read.

Samplers work on the training device, without a Python loop over samples.

Shape suffixes: N steps in the dataset, B packed sequences (rows), T steps per row, S segments, O observation, A action.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..agents.model.decision import Scaling, TrunkState
from ..agents.scan.rows import each, tensors
from ..base.errors import DataError
from ..base.fields import AUTO, RETURN_SCALE
from ..envs.data import episodes as arrays
from ..envs.data.draws import draw_weights, effective
from ..envs.data.episodes import Episodes, Statistics, held_out
from ..envs.load import load_task
from ..envs.tasks.table import Reference, Task
from ..policies.card import DRAWN, return_words
from ..policies.held_out import READING, HeldOut, hold_out, if_moved
from .config import DataConfig, RunConfig

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
        mapped = isinstance(array, arrays.MappedArray) and self.device.type == "cpu"
        return array if mapped else torch.from_numpy(array).to(self.device)

    def _at(self, stored: Tensor | npt.NDArray[Any], index: Tensor) -> Tensor:
        place = index if self._rows is None else self._rows[index]
        if isinstance(stored, Tensor):
            return stored[place]
        return torch.from_numpy(arrays.gather(stored, place.flatten().numpy())).view(*place.shape, *stored.shape[1:])

    def normalize_by(self, mean: Tensor, std: Tensor) -> None:
        """Normalizes by another mean and deviation (O,) than the data's own, as those of a policy."""
        self.observation_mean, self.observation_std = mean, std  # (O,), raw
        bounds = self._action_low, self._action_high
        self.scaling = Scaling.of(mean, std, self.return_scale, *bounds, self._origin)

    def from_origin(self, observations: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Raw observations (N, O) in float32, for `Scaling.normalized`."""
        if self._origin is None:
            return observations
        near = arrays.allocate(observations.shape, np.float32, isinstance(observations, arrays.MappedArray))
        for rows in arrays.row_blocks(len(observations)):
            near[rows] = observations[rows] - self._origin
            arrays.release(observations)
        arrays.release(near)
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
        index, since, _ = packed(begins, lengths, steps)
        return replace(self.rows(index, torch.ones_like(index, dtype=torch.bool)), starts=since == 0)


def packed(begins: Tensor, lengths: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Segments of `lengths` (B, S) from the steps `begins` (B, S) on, one after another in B rows of `steps`.

    Returns (B, T) each: the step of the dataset, its number in its segment, and the number of the segment.
    """
    after = lengths.cumsum(1)
    place = torch.arange(steps, device=begins.device).expand(len(begins), -1).contiguous()
    segment = torch.searchsorted(after, place, right=True)
    since = place - (after - lengths).gather(1, segment)
    return begins.gather(1, segment) + since, since, segment


SHORTEST_MIXED = 10  # steps; the lower bound of the log-uniform lengths
FILLING = 20  # steps of a window that fills a row of episodes
ROW_MULTIPLE = 128  # steps; see EpisodeSampler
# Whole episodes per gradient step, rounded, that "episode" needs. One episode is too little variety per step. From two
# on, gradients back to the start of an episode are worth more than more episodes (docs/notebook.md).
ENOUGH_EPISODES = 2


def settle_context(config: RunConfig, mean_length: float) -> RunConfig:
    """`config` with "auto" replaced by the context that suits drawn episodes of `mean_length` steps.

    Whole episodes, or truncated BPTT if a gradient step would hold only one. Windows for an agent whose state grows.
    """
    if config.data.context != AUTO:
        return config
    held = round(config.data.steps_per_update / mean_length)
    of_constant = "episode" if held >= ENOUGH_EPISODES else "tbptt"
    return replace(config, data=replace(config.data, context=of_constant if config.constant_state else "window"))


class Sampler(ABC):
    """Samples in two parts: the shape, on the CPU, and the steps, without synchronizing with the device.

    Episodes are drawn in proportion to their weights, and steps in proportion to those of their episodes.
    """

    def __init__(self, data: StepData, size: int = 0, draws_on: torch.device | None = None) -> None:
        self.data, self.size = data, size  # rows of a batch, or steps of its row
        self.draws_on = draws_on or data.device  # device of the generator
        self._first, self._lengths, weights = (
            part.to(self.draws_on) for part in (data.first, data.lengths, data.weights)
        )
        self._until_episode, self._until_step = weights.cumsum(0), (weights * self._lengths).cumsum(0)

    def prepare(self, generator: torch.Generator) -> int:
        """Everything that determines the shape of the next batch, and its size for `draw`."""
        return self.size

    @abstractmethod
    def draw(self, size: int, generator: torch.Generator) -> Batch:
        """Sample the batch. The same size always gives the same operations and shapes."""

    def sample(self, generator: torch.Generator) -> Batch:
        """Sample the next batch."""
        return self.draw(self.prepare(generator), generator)

    def _episodes(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Random episodes."""
        return self._places(self._until_episode, generator, shape)[0]

    def _steps(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Random steps."""
        episode, part = self._places(self._until_step, generator, shape)
        lengths = self._lengths[episode]
        return self._first[episode] + (part * lengths).long().minimum(lengths - 1)

    def _places(self, ends: Tensor, generator: torch.Generator, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """The intervals, with these `ends` (E,), of uniform numbers, and at which part of each they are, in [0, 1]."""
        at = torch.rand(shape, dtype=torch.float64, generator=generator, device=self.draws_on) * ends[-1]
        found = torch.searchsorted(ends, at, right=True).clamp(max=len(ends) - 1)
        begins = torch.where(found > 0, ends[found - 1], 0.0)
        return found, (at - begins) / (ends[found] - begins)


class WindowSampler(Sampler):
    """Rows of `length` steps, about `steps` in all, each from a random step on.

    Rows are padded on the right. For the rollouts "window" and "staggered": the model never sees an older context.
    """

    def __init__(self, data: StepData, length: int, steps: int) -> None:
        super().__init__(data, max(1, round(steps / length)))
        self.length = length

    def draw(self, rows: int, generator: torch.Generator) -> Batch:
        begins = self._steps(generator, rows, 1)
        index = begins + torch.arange(self.length, device=self.data.device)
        mask = index < self.data.end[begins]
        return self.data.rows(index.where(mask, begins), mask)


class EpisodeSampler(Sampler):
    """A fixed number of whole episodes, `steps` steps on average, in one row.

    For the rollout "recurrent". The row is filled up to a multiple of 128 steps, since preparing kernels for every new
    shape doubled the time of a gradient step: with windows of 20 steps at random places. Episodes are chosen on the
    CPU: their lengths determine the shape.
    """

    def __init__(self, data: StepData, steps: int) -> None:
        super().__init__(data, draws_on=torch.device("cpu"))
        self._count = max(1, round(steps / data.drawn_length))
        self._every, self._end = torch.stack([self._first, self._lengths]), data.end.cpu()
        # First steps and lengths of what was chosen, (2, 1, S): episodes, then windows, enough were they of one step.
        self._held = data.first.new_zeros(2, 1, self._count + ROW_MULTIPLE)

    def prepare(self, generator: torch.Generator) -> int:
        whole = self._every[:, self._episodes(generator, self._count)]
        begins = self._steps(generator, ROW_MULTIPLE)
        windows = torch.stack([begins, (self._end[begins] - begins).clamp(max=FILLING)])
        self._held.copy_(torch.cat([whole, windows], 1).unsqueeze(1), non_blocking=True)
        return -(-int(whole[1].sum()) // ROW_MULTIPLE) * ROW_MULTIPLE

    def draw(self, steps: int, generator: torch.Generator) -> Batch:
        begins, lengths = self._held
        return self.data.filled(begins, lengths, steps)


class MixedSampler(Sampler):
    """Segments that start anywhere, of log-uniform length up to `horizon`, cut at the end of their episode.

    They are packed into one row. For every rollout.
    """

    def __init__(self, data: StepData, horizon: int, steps: int) -> None:
        super().__init__(data, steps)
        self.horizon = horizon

    def draw(self, steps: int, generator: torch.Generator) -> Batch:
        # A segment has at least one step, so `steps` candidates always suffice.
        begins = self._steps(generator, 1, steps)
        low, high = math.log(min(SHORTEST_MIXED, self.horizon)), math.log(self.horizon)
        uniform = torch.rand(1, steps, generator=generator, device=self.draws_on)
        lengths = torch.exp(low + (high - low) * uniform).round().long()
        return self.data.filled(begins, lengths.minimum(self.data.end[begins] - begins), steps)


class TbpttSampler(Sampler):
    """Rows of `length` steps that continue from the last gradient step. After an episode comes a random one.

    The state of the model, computed with earlier weights, is carried along. For the rollout "recurrent".

    The last rows, a `share` of them, are windows: they begin anywhere at every gradient step, with a fresh state. All
    rows together play only so many episodes at a time as there are rows, and windows show more of them. At least one
    row continues.
    """

    def __init__(self, data: StepData, length: int, steps: int, share: float = 0.0) -> None:
        super().__init__(data, max(1, round(steps / length)))
        self.length = length
        self.next = torch.full((self.size,), -1, device=data.device)  # steps; -1: begins anywhere
        self._continued = max(1, round(self.size * (1 - share)))

    def draw(self, rows: int, generator: torch.Generator) -> Batch:
        """The next `length` steps of every row. The first rows start anywhere, or all episodes would end together."""
        data = self.data
        anywhere = self._steps(generator, rows)
        drawn = self._episodes(generator, rows, self.length)  # enough for any lengths
        fresh = self.next < 0
        at = self.next.where(~fresh, anywhere)
        begins = torch.cat([at.unsqueeze(1), data.first[drawn]], 1)
        lengths = torch.cat([(data.end[at] - at).unsqueeze(1), data.lengths[drawn]], 1)
        index, since, episode = packed(begins, lengths, self.length)
        starts = (since == 0) & (episode > 0)
        starts[:, 0] = fresh | (data.timesteps[index[:, 0]] == 0)
        last = index[:, -1]
        ended = last + 1 == data.end[last]
        another = data.first[self._episodes(generator, rows)]
        following = another.where(ended, last + 1)
        following[self._continued :] = -1
        self.next.copy_(following)  # in place: a captured graph continues from it
        batch = data.rows(index, torch.ones_like(index, dtype=torch.bool))
        # If a row starts an episode, the step before is of another episode. `starts` masks its action.
        before = data.scaled_actions((index[:, 0] - 1).clamp(min=0))
        return replace(batch, starts=starts, previous_action=before)


class Carried:
    """The state of the model between two gradient steps, for the rows of this process. Initially `fresh`."""

    def __init__(self, fresh: TrunkState) -> None:
        self.state: TrunkState = each(lambda parts: parts[0].clone(), [fresh])  # which may share memory

    @torch.no_grad()
    def keep(self, state: TrunkState) -> None:
        """Store `state`, detached and in place: a captured graph continues from it."""
        torch._foreach_copy_(self.tensors(), tensors(state))

    def tensors(self) -> list[Tensor]:
        """All tensors of the state, rows first in each, in the order for `restore`."""
        return tensors(self.state)

    def restore(self, tensors: list[Tensor]) -> None:
        """Load these tensors. Raises ValueError if they are of another model or number of rows."""
        mine = self.tensors()
        if [(part.shape, part.dtype) for part in tensors] != [(part.shape, part.dtype) for part in mine]:
            raise ValueError("the carried state is of another model or number of rows")
        for part, given in zip(mine, tensors, strict=True):
            part.copy_(given)


def make_sampler(config: DataConfig, data: StepData, horizon: int) -> Sampler:
    """The sampler of a context other than "auto". `horizon` limits the segments of "mixed"."""
    steps = config.steps_per_update
    samplers: dict[str, Callable[[], Sampler]] = {
        "window": lambda: WindowSampler(data, config.context_length, steps),
        "episode": lambda: EpisodeSampler(data, steps),
        "mixed": lambda: MixedSampler(data, horizon, steps),
        "tbptt": lambda: TbpttSampler(data, config.tbptt_length, steps, config.tbptt_windows),
    }
    return samplers[config.context]()


NAMED = 12  # most columns of a note


@dataclass(frozen=True)
class TrainingData:
    """The data of a run, and the configuration that suits them."""

    config: RunConfig  # with the return scale, and the context in place of "auto"
    task: Task
    steps: StepData  # to train on
    held_out: HeldOut | None  # None if there are too few episodes
    longest: int  # length of the longest of all episodes
    sha256: str  # of all episodes
    returns: dict[str, float]  # as in the policy card; of all episodes
    drawn: str  # what is drawn of which episodes, and how many are held out, in words


def load_data(
    config: RunConfig, source: str | list[str], device: torch.device, *, memory_map: bool, resumed: bool
) -> TrainingData:
    """Read the data of a run from `source`. They are mapped from the disk with `memory_map`.

    Raises the errors of `envs.load_task` and of `StepData`.
    """
    data, reference = config.data, None
    if data.ref_min_score is not None and data.ref_max_score is not None:
        reference = Reference("reference returns given by the user", data.ref_min_score, data.ref_max_score)
    options = {name: getattr(data, name) for name in READING} | {"memory_map": memory_map}
    try:
        task, episodes = load_task(data.env, source, reference=reference, **options)
    except DataError as error:
        raise DataError(f"{error}{if_moved(source) if resumed else ''}") from error
    if (scale := data.return_scale) is None:
        scale = choose_return_scale(episodes)
        config = replace(config, data=replace(data, return_scale=scale))
        print(f"return scale: {scale:g}, from the returns of the data (--return-scale X sets another)")
    returns, lengths, asked = episodes.returns, episodes.lengths, (data.draws, data.draw_share)
    # By all episodes, so that it does not depend on which the seed holds out: runs of one comparison have the same.
    config = settle_context(config, float(np.average(lengths, weights=draw_weights(returns, lengths, *asked))))
    apart = held_out(len(episodes), data.held_out, config.seed)
    others = np.setdiff1d(np.arange(len(episodes)), apart)
    of_others, weights = draw_weights(returns[others], lengths[others], *asked), np.zeros(len(episodes))
    weights[others] = of_others
    actions = {name: getattr(task, name) for name in ("action_low", "action_high", "n_actions", "action_start")}
    steps = StepData(episodes, scale, device, **actions, weights=weights)
    best_first = np.sort(returns)[::-1]
    tenth = best_first[: max(1, round(0.1 * len(episodes)))]
    found = {"mean": best_first.mean(), "best_tenth": tenth.mean(), "best": best_first[0]}
    told = {name: float(value) for name, value in found.items()}
    if episodes.source in ("file", "minari"):  # the task's own target is for other data
        task = replace(task, target_returns=(float(f"{told['best_tenth']:.4g}"),))
    mean, drawn_mean = (return_words(np.average(returns[others], weights=each)) for each in (None, of_others))
    drawn = f"{lengths[others].sum():,} steps, {DRAWN[data.draws]}: {effective(of_others):.0f} of {len(others)} "
    drawn += f"episodes effective, mean return {drawn_mean} of {mean}"
    if apart.size:
        drawn += f"; {len(apart)} more are held out{'' if data.draws == 'uniform' else ', weighted likewise'}"
    elif data.held_out:
        drawn += "; too few episodes to hold any out: imitation is not measured"
    reserved = hold_out(episodes, data.held_out, config.seed, *asked)
    return TrainingData(config, task, steps, reserved, int(lengths.max()), episodes.sha256(), told, drawn)


def choose_return_scale(episodes: Episodes) -> float:
    """The return scale for data of your own, with two digits: what tells episodes apart becomes about 1.

    That is the spread of the returns, 5% to 95%, between a tenth of the size of the returns-to-go and their size. The
    size is their 95% quantile, signs and zeros left out: returns are rare in some data, and a few may be huge.
    """
    sizes = np.abs(episodes.returns_to_go())
    if not (sizes := sizes[(sizes > 0) & np.isfinite(sizes)]).size:
        return 1.0
    size = float(np.quantile(sizes, 0.95))
    low, high = np.quantile(episodes.returns, [0.05, 0.95])
    scale = min(max(float(high - low), size / 10), size)
    return float(f"{min(max(scale, RETURN_SCALE.low), RETURN_SCALE.high):.2g}")


def constant_columns(found: Statistics) -> str | None:
    """A note of the observation columns that are taken as constant, with what they hold; None: no column is."""
    columns = np.flatnonzero(found.constant)
    shown = ", ".join(f"{column} ({found.mean[column]:.9g})" for column in columns[:NAMED])
    more = "" if len(columns) <= NAMED else f" and {len(columns) - NAMED} more"
    whole = "" if found.mean.dtype == np.float64 else "; float32 holds 7 digits: store what moves less as float64"
    return f"observation columns taken as constant: {shown}{more}{whole}" if columns.size else None
