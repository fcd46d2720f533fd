"""The ways to choose a training context, drawn on the training device with no Python loop over samples.

* "window": K steps from a start drawn uniformly over all steps, padded on the right. For the rollouts "window" and
  "staggered", which never show the model an older context.
* "episode": whole episodes, end to end in one row, so that nothing is padded. For "recurrent".
* "mixed": random starts and lengths log-uniform from 10 steps to the horizon, end to end in one row. For every rollout.
* "tbptt": every row plays whole episodes, one after the other, a few steps an update. The model's state, of earlier
  updates' weights, goes from an update to the next: truncated backpropagation through time. For "recurrent".

Shape suffixes: S stretches, B rows, T steps a row of an update.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace

import torch
from torch import Tensor

from ...agents.model.trunk import TrunkState
from ...agents.scan.rows import each, tensors
from ...envs import Episodes
from ...policies.names import AUTO
from ..config import DataConfig, RunConfig
from .batches import Batch, StepData

SHORTEST_MIXED = 10  # steps; the lower end of the log-uniform lengths
ROW_MULTIPLE = 128  # steps; see EpisodeSampler
# Whole episodes that an update must hold, to the next number: one alone is too few situations to learn from at once;
# from two on, a gradient that goes back to an episode's begin is worth more than more episodes (docs/results.md).
ENOUGH_EPISODES = 2


def settle_context(config: RunConfig, episodes: Episodes) -> RunConfig:
    """`config` with the context that suits the training episodes where it says "auto".

    Whole episodes, or truncated BPTT where a gradient step would hold only one; windows for an agent whose state grows.
    """
    if config.data.context != AUTO:
        return config
    held = round(config.data.steps_per_update * len(episodes) / episodes.n_steps)
    of_constant = "episode" if held >= ENOUGH_EPISODES else "tbptt"
    return replace(config, data=replace(config.data, context=of_constant if config.constant_state else "window"))


class Sampler(ABC):
    """Draws in two parts: the shape, which nothing on the device decides, and the steps, without a wait for it."""

    def __init__(self, data: StepData) -> None:
        self.data, self.draws_on = data, data.device  # and where the generator is

    @abstractmethod
    def prepare(self, generator: torch.Generator) -> int:
        """Whatever decides the next batch's shape, and its size as `draw` takes it."""

    @abstractmethod
    def draw(self, generator: torch.Generator, size: int) -> Batch:
        """The batch; of the same size, always the same operations in the same shapes."""

    def sample(self, generator: torch.Generator) -> Batch:
        """The next batch."""
        return self.draw(generator, self.prepare(generator))


class WindowSampler(Sampler):
    """Rows of `length` steps, about `steps` in all; every step of the data is equally likely to be a row's first."""

    def __init__(self, data: StepData, length: int, steps: int) -> None:
        super().__init__(data)
        self.length, self.rows = length, max(1, round(steps / length))

    def prepare(self, generator: torch.Generator) -> int:
        return self.rows

    def draw(self, generator: torch.Generator, rows: int) -> Batch:
        begins = torch.randint(len(self.data), (rows, 1), generator=generator, device=self.data.device)
        index = begins + torch.arange(self.length, device=self.data.device)
        mask = index < self.data.end[begins]
        return self.data.rows(index.where(mask, begins), mask)


class EpisodeSampler(Sampler):
    """A fixed number of whole episodes, `steps` steps on average; each is equally likely, and so is every step.

    The row is filled up to a multiple of 128 steps with the begin of further episodes: to prepare kernels for every new
    shape doubled an update's time. The episodes are chosen on the CPU: their lengths decide the shape.
    """

    def __init__(self, data: StepData, steps: int) -> None:
        super().__init__(data)
        self.draws_on = torch.device("cpu")
        self._count = max(1, round(steps * len(data.first) / len(data)))
        every = torch.stack([data.first, data.lengths])
        # First steps and lengths of those chosen, (2, S). An episode has at least one step, so this many fill any gap.
        self._held, self._every = every.new_zeros(2, self._count + ROW_MULTIPLE), every.cpu()

    def prepare(self, generator: torch.Generator) -> int:
        chosen = self._every[:, torch.randint(self._every.shape[1], self._held.shape[1:], generator=generator)]
        self._held.copy_(chosen, non_blocking=True)
        whole = int(chosen[1, : self._count].sum())
        return -(-whole // ROW_MULTIPLE) * ROW_MULTIPLE

    def draw(self, generator: torch.Generator, steps: int) -> Batch:
        return self.data.filled(self._held[0], self._held[1], steps)


class MixedSampler(Sampler):
    """Stretches that begin anywhere, of log-uniform length up to `horizon`, cut where their episode ends."""

    def __init__(self, data: StepData, horizon: int, steps: int) -> None:
        super().__init__(data)
        self.horizon, self.steps = horizon, steps

    def prepare(self, generator: torch.Generator) -> int:
        return self.steps

    def draw(self, generator: torch.Generator, steps: int) -> Batch:
        # A stretch has at least one step, so `steps` candidates always suffice.
        device = self.data.device
        begins = torch.randint(len(self.data), (steps,), generator=generator, device=device)
        low, high = math.log(min(SHORTEST_MIXED, self.horizon)), math.log(self.horizon)
        uniform = torch.rand(steps, generator=generator, device=device)
        lengths = torch.exp(low + (high - low) * uniform).round().long()
        return self.data.filled(begins, lengths.minimum(self.data.end[begins] - begins), steps)


class TbpttSampler(Sampler):
    """Rows of `length` steps that go on where the last update left them; after an episode comes one drawn from all."""

    def __init__(self, data: StepData, length: int, steps: int) -> None:
        super().__init__(data)
        self.length = length
        self.next = torch.full((max(1, round(steps / length)),), -1, device=data.device)

    def prepare(self, generator: torch.Generator) -> int:
        return len(self.next)

    def draw(self, generator: torch.Generator, rows: int) -> Batch:
        """The next `length` steps of every row; the first rows begin anywhere, or all episodes would end at once."""
        data = self.data
        shape, device = (rows, self.length), data.device
        anywhere = torch.randint(len(data), (rows,), generator=generator, device=device)
        drawn = torch.randint(len(data.first), shape, generator=generator, device=device)  # enough for any lengths
        fresh = self.next < 0
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
        another = data.first[torch.randint(len(data.first), (rows,), generator=generator, device=device)]
        self.next.copy_(another.where(ended, last + 1))  # in place: a captured graph goes on from there
        batch = data.rows(index, torch.ones(shape, dtype=torch.bool, device=device))
        # Where a row begins an episode, the step before it is another episode's, and `starts` leaves its action out.
        before = data.scaled_actions((index[:, 0] - 1).clamp(min=0))
        return replace(batch, starts=starts, previous_action=before)


class Carried:
    """The model's state between two updates, of this process's rows: at first `fresh`."""

    def __init__(self, fresh: TrunkState) -> None:
        self._fresh = fresh
        self.state: TrunkState = each(lambda parts: parts[0].clone(), [fresh])

    @torch.no_grad()
    def keep(self, state: TrunkState, bad: Tensor | None = None) -> None:
        """Carries `state` on, without its gradient, and in place: a captured graph goes on from there.

        Where `bad` is 1, the update failed: a fresh state is what is carried, since that may not be finite.
        """
        after = tensors(state)
        if bad is not None:
            after = [fresh.where(bad > 0, part) for fresh, part in zip(tensors(self._fresh), after, strict=True)]
        torch._foreach_copy_(self.tensors(), after)

    def tensors(self) -> list[Tensor]:
        """All parts of the state, the rows first in each, in the order that `restore` takes them."""
        return tensors(self.state)

    def restore(self, tensors: list[Tensor]) -> None:
        """Takes these parts; raises ValueError where they are of another model or number of rows."""
        mine = self.tensors()
        if [(part.shape, part.dtype) for part in tensors] != [(part.shape, part.dtype) for part in mine]:
            raise ValueError("the carried state is of another model or number of rows")
        for part, given in zip(mine, tensors, strict=True):
            part.copy_(given)


def make_sampler(config: DataConfig, data: StepData, horizon: int) -> Sampler:
    """The sampler of a context that is not "auto"; `horizon` limits the stretches of "mixed"."""
    steps = config.steps_per_update
    if config.context == "episode":
        return EpisodeSampler(data, steps)
    if config.context == "mixed":
        return MixedSampler(data, horizon, steps)
    if config.context == "tbptt":
        return TbpttSampler(data, config.tbptt_length, steps)
    return WindowSampler(data, config.context_length, steps)
