"""Samplers of training contexts. They sample on the training device, without a Python loop over samples.

Shape suffixes: S segments, B packed sequences (rows), T steps per row and gradient step.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import replace

import torch
from torch import Tensor

from ...agents.model.trunk import TrunkState
from ...agents.scan.rows import each, tensors
from ...policies.names import AUTO
from ..config import DataConfig, RunConfig
from .batches import Batch, StepData

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
        data, device = self.data, self.data.device
        anywhere = self._steps(generator, rows)
        drawn = self._episodes(generator, rows, self.length)  # enough for any lengths
        shape, fresh = drawn.shape, self.next < 0
        at = self.next.where(~fresh, anywhere)
        begins = torch.cat([at.unsqueeze(1), data.first[drawn]], 1)
        lengths = torch.cat([(data.end[at] - at).unsqueeze(1), data.lengths[drawn]], 1)
        after = lengths.cumsum(1)
        place = torch.arange(self.length, device=device).expand(shape).contiguous()
        episode = torch.searchsorted(after, place, right=True)
        since = place - (after - lengths).gather(1, episode)
        index = begins.gather(1, episode) + since
        starts = (since == 0) & (episode > 0)
        starts[:, 0] = fresh | (data.timesteps[index[:, 0]] == 0)
        last = index[:, -1]
        ended = last + 1 == data.end[last]
        another = data.first[self._episodes(generator, rows)]
        following = another.where(ended, last + 1)
        following[self._continued :] = -1
        self.next.copy_(following)  # in place: a captured graph continues from it
        batch = data.rows(index, torch.ones(shape, dtype=torch.bool, device=device))
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
    if config.context == "episode":
        return EpisodeSampler(data, steps)
    if config.context == "mixed":
        return MixedSampler(data, horizon, steps)
    if config.context == "tbptt":
        return TbpttSampler(data, config.tbptt_length, steps, config.tbptt_windows)
    return WindowSampler(data, config.context_length, steps)
