"""A binary sum heap: sampling from masses that change, in logarithmic time (Vieira 2016).

Shape suffixes: R rows, each with a heap of its own; P draws.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class SumHeap:
    """Masses of slots in R rows; every inner node is the sum of its two children.

    Args:
        rows: R.
        slots: places for masses; the last must stay 0, it takes what is meant for no slot.
        device: where the masses are.
    """

    def __init__(self, rows: int, slots: int, device: torch.device | str | None = None) -> None:
        """All masses 0."""
        self.depth = max(1, (slots - 1).bit_length())
        self.nowhere = slots - 1
        self.sums = torch.zeros(rows, 2 << self.depth, dtype=torch.float64, device=device)

    def put(self, slots: Tensor, masses: Tensor) -> None:
        """Sets the masses of `slots` (R, P) to `masses` (R, P) and repairs the sums above them."""
        at = slots + (1 << self.depth)
        self.sums.scatter_(1, at, masses)
        for _ in range(self.depth):
            at = at >> 1
            self.sums.scatter_(1, at, self.sums.gather(1, 2 * at) + self.sums.gather(1, 2 * at + 1))

    def find(self, uniforms: Tensor) -> Tensor:
        """The slots, (R, P), in which `uniforms` in [0, 1), (R, P), fall: each with a probability in proportion to its
        mass. A slot without mass is not found unless there is no other.
        """
        at = torch.ones_like(uniforms, dtype=torch.long)
        left = uniforms * self.sums[:, 1:2]
        for _ in range(self.depth):
            at = 2 * at
            mass = self.sums.gather(1, at)
            # The second condition: by rounding, more may be left than both children have.
            right = (left >= mass) & (self.sums.gather(1, at + 1) > 0)
            left = left - mass * right
            at = at + right
        return at - (1 << self.depth)

    def take(self, wanted: Tensor, at_once: Tensor, draw: Callable[[int], Tensor]) -> Tensor:
        """Samples slots without replacement; their masses are to be `put` anew before the heap is used again.

        Draws are independent; one of a slot that was drawn before is thrown away, which is what drawing one by one from
        what is left comes to. A row takes the same slots whatever the other rows are.

        Args:
            wanted: slots to take, (R,), at most `at_once` and as many as have mass.
            at_once: draws of a row before the masses of those taken are removed, (R,); P is the largest.
            draw: gives the uniforms (R, P) of a number, which counts from 0.

        Returns:
            Slots (R, P) in the order drawn; `nowhere` after the first `wanted`.
        """
        most, attempt = int(at_once.max()), 0
        unused = torch.arange(most, device=wanted.device) >= at_once.unsqueeze(1)
        taken = torch.full((len(wanted), most + 1), self.nowhere, device=wanted.device)
        wanted, count = wanted.unsqueeze(1), torch.zeros_like(wanted).unsqueeze(1)
        while True:
            slots = self.find(draw(attempt))
            again = (slots.unsqueeze(-1) == slots.unsqueeze(-2)).tril(-1).any(-1) | unused
            place = count + (~again).cumsum(1) - 1
            new = ~again & (place < wanted)
            taken.scatter_(1, place.where(new, most), slots)
            count = count + new.sum(1, keepdim=True)
            if not bool((count < wanted).any()):
                break
            # From here on only what is left can be found.
            found = slots.where(new, self.nowhere)
            self.put(found, torch.zeros_like(found, dtype=torch.float64))
            attempt += 1
        taken[:, most] = self.nowhere
        return taken[:, :most]
