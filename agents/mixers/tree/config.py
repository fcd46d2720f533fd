"""How tree attention acts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .samplers import SAMPLERS


@dataclass(frozen=True)
class TreeConfig:
    """How tree attention is computed.

    Attributes:
        budget: E; with l tokens, attention is approximated by T = ceil(l^E) terms. 1 is exact.
        sampler: a name in SAMPLERS.
        seed: of the samples; the same seed gives the same output.
    """

    budget: float = 0.5
    sampler: str = "edh"
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError naming the field that does not fit."""
        if not 0 <= self.budget <= 1:
            raise ValueError(f"budget must be from 0 to 1, not {self.budget:g}")
        if self.sampler not in SAMPLERS:
            raise ValueError(f"sampler {self.sampler!r} is not one of {', '.join(SAMPLERS)}")
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed must be at least 0 and below 2^63, not {self.seed}")

    def __str__(self) -> str:
        """One line for beside a score."""
        return f"tree attention, E = {self.budget:g}, sampler {self.sampler}, seed {self.seed}"

    def terms(self, length: int) -> int:
        """T = ceil(l^E)."""
        # Rounded first: 1000^(1/3) is 9.99...98, and 1000^1 must not become 1001.
        return min(length, math.ceil(round(math.pow(length, self.budget), 9)))

    def at_once(self, length: int) -> int:
        """P = 2^floor(log2 l^(E/2)): buds expanded at once (section 3, with the tokens so far for L)."""
        return 1 << math.floor(math.log2(length) * self.budget / 2 + 1e-9)
