"""The context "stream": every row plays whole episodes, one after the other, a few steps an update.

What the model carries goes from an update to the next, as at rollout it goes from a step to the next: truncated
backpropagation through time. A row of whole episodes holds one or two of them where they are long, and so one or two
policies' steps in a few situations; here an update holds steps of as many episodes as it has rows, and every step still
has all of its episode behind it. What is carried was computed with the weights of earlier updates, and no gradient goes
back into it.

Shape suffixes: B rows, T steps a row of an update.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...agents.model.block import TrunkState
from ...agents.scan.rows import each, tensors
from .batches import Batch, Sampler, StepData


class StreamSampler(Sampler):
    """Rows that go on where the last update left them; after an episode's end comes one drawn from all.

    Args:
        data: the steps.
        length: T.
        steps: environment steps an update; B is `steps` / `length`.
    """

    def __init__(self, data: StepData, length: int, steps: int) -> None:
        """Every row is yet to begin."""
        self.data, self.length = data, length
        self.next = torch.full((max(1, round(steps / length)),), -1, device=data.device)

    def prepare(self, generator: torch.Generator) -> int:
        """B."""
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
    """The model's state between two updates, of this process's rows.

    Args:
        fresh: the state before any step, of these rows.
    """

    def __init__(self, fresh: TrunkState) -> None:
        """Fresh."""
        self._fresh = fresh
        self.state: TrunkState = each(lambda parts: parts[0].clone(), [fresh])

    @torch.no_grad()
    def keep(self, state: TrunkState, bad: Tensor | None = None) -> None:
        """Carries `state` on, without its gradient, and in place: a captured graph goes on from there.

        Args:
            state: the one after an update.
            bad: whether the update failed, 0 or 1; then a fresh state is what is carried, since that may not be finite.
        """
        after = tensors(state)
        if bad is not None:
            after = [fresh.where(bad > 0, part) for fresh, part in zip(tensors(self._fresh), after, strict=True)]
        torch._foreach_copy_(self.tensors(), after)

    def tensors(self) -> list[Tensor]:
        """All parts of the state, the rows first in each, in the order that `restore` takes them."""
        return tensors(self.state)

    def restore(self, tensors: list[Tensor]) -> None:
        """The state of which these are the parts.

        Raises:
            ValueError: they are of another model or of another number of rows.
        """
        mine = self.tensors()
        if [(part.shape, part.dtype) for part in tensors] != [(part.shape, part.dtype) for part in mine]:
            raise ValueError("the carried state is of another model or number of rows")
        for part, given in zip(mine, tensors, strict=True):
            part.copy_(given)
