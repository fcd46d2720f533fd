"""The ranges of numbers that a command line, a grid or a configuration may give: checked before anything starts."""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import dataclass
from typing import TypeVar

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Range:
    """Finite numbers from `low` to `high`; with `above` `low` is not one of them, with `below` `high` is not."""

    low: float
    high: float
    above: bool = False
    below: bool = False

    def problem(self, value: float) -> str | None:
        """What is wrong with a value, as a message has it behind a name and a colon; None where nothing is."""
        if isinstance(value, float) and not math.isfinite(value):
            return f"must be finite, not {value}"
        if value < self.low or (self.above and value == self.low):
            return f"must be {'above' if self.above else 'at least'} {_shown(self.low)}, not {value}"
        if value > self.high or (self.below and value == self.high):
            return f"must be {'below' if self.below else 'at most'} {_shown(self.high)}, not {value}"
        return None

    def integer(self, text: str) -> int:
        """The type of an argument that is an integer of this range."""
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be an integer, not {text[:40]!r}") from None
        return self._checked(value)

    def number(self, text: str) -> float:
        """The type of an argument that is a number of this range."""
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a number, not {text[:40]!r}") from None
        return self._checked(value)

    def _checked(self, value: Number) -> Number:
        if problem := self.problem(value):
            raise argparse.ArgumentTypeError(problem)
        return value


def _shown(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


_LARGE = 2**53  # from here on not every integer is a float, nor JSON's

COUNT = Range(1, _LARGE)
ENVS = Range(1, 2**31)
COUNT_FROM_0 = Range(0, _LARGE)
CONTEXT = Range(2, 2**20)  # a rollout's window holds so many steps from the first on
SEED = Range(0, _LARGE)
SAC_SEED = Range(0, 2**32 - 2**16)  # NumPy's old generator has 32 bits, and an environment has a seed each
SHARE = Range(0, 1)
SOME = Range(0, 1, above=True)
HALF = Range(0, 0.5)
BELOW_1 = Range(0, 1, below=True)
POSITIVE = Range(0, 1e30, above=True)
FROM_0 = Range(0, 1e30)
RETURN = Range(-1e15, 1e15)  # in an environment's units: divided by a return scale it stays a float32
RETURN_SCALE = Range(1e-9, 1e15)
GUIDANCE = Range(1, 1000)
GPUS = Range(0, 1024)
THREADS = Range(1, max(64, 8 * (os.cpu_count() or 1)))  # of many more, torch dies
