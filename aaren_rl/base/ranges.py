"""Ranges of numbers that a command line, a grid or a configuration may give: checked before anything starts.

Of a configuration's fields they stand in the metadata, under "limits".
"""

import argparse
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Range:
    """Finite numbers from `low` to `high`. `above` excludes `low`, `below` excludes `high`."""

    low: float
    high: float
    above: bool = False
    below: bool = False

    def problem(self, value: float) -> str | None:
        """The problem with a value, for a message after a name and a colon; None if it is valid."""
        if isinstance(value, float) and not math.isfinite(value):
            return f"must be finite, not {value}"
        if value < self.low or (self.above and value == self.low):
            return f"must be {'above' if self.above else 'at least'} {_shown(self.low)}, not {value}"
        if value > self.high or (self.below and value == self.high):
            return f"must be {'below' if self.below else 'at most'} {_shown(self.high)}, not {value}"
        return None

    def integer(self, text: str) -> int:
        """The argparse type of an integer of this range."""
        return self._read(int, "an integer", text)

    def number(self, text: str) -> float:
        """The argparse type of a number of this range."""
        return self._read(float, "a number", text)

    def _read(self, kind: Callable[[str], Number], name: str, text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {name}, not {text[:40]!r}") from None
        if problem := self.problem(value):
            raise argparse.ArgumentTypeError(problem)
        return value


def _shown(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def setting(default: Any, text: str | None = None, limits: Range | None = None) -> Any:  # noqa: ANN401  any default
    """A field with a range. With a help text, it is a setting for users."""
    return field(default=default, metadata={"limits": limits, **({"help": text} if text else {})})


def check_limits(config: Any) -> None:  # noqa: ANN401  any dataclass
    """Raise ValueError that names the first field out of its range."""
    for item in fields(config):
        limits, value = item.metadata.get("limits"), getattr(config, item.name)
        if limits is not None and isinstance(value, int | float) and (problem := limits.problem(value)):
            raise ValueError(f"{item.name}: {problem}")


AUTO = "auto"  # target return: the maximum achievable return at every step, instead of a number

LARGE = 2**53  # above, floats and JSON do not represent every integer
COUNT = Range(1, LARGE)
COUNT_FROM_0 = Range(0, LARGE)
ENVS = Range(1, 2**31)
TEMPERATURE = Range(0, 1e30, above=True)
DILATION = 1000  # in environment steps: a recurrence encoding keeps a sum for each
CONTEXT = Range(2, 2**20)  # a rollout window allocates all steps at the start
BELOW_1 = Range(0, 1, below=True)
SEED = Range(0, LARGE)
SAC_SEED = Range(0, 2**32 - 2**16)  # NumPy's old generator has 32 bits, and an environment has a seed each
SOME = Range(0, 1, above=True)
HALF = Range(0, 0.5)
POSITIVE = Range(0, 1e30, above=True)
FROM_0 = Range(0, 1e30)
RETURN = Range(-1e15, 1e15)  # in an environment's units: divided by a return scale it stays a float32
RETURN_SCALE = Range(1e-20, 1e15)
GPUS = Range(0, 1024)
THREADS = Range(1, max(64, 8 * (os.cpu_count() or 1)))  # of many more, torch dies

# Deviations from zero from which on the distance of float32 numbers is more than 1e-4 of a deviation. Data are float64
# there, and a policy subtracts the mean in float64.
FAR = 1e3
