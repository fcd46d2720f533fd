"""The ranges of numbers that a command line, a grid or a configuration may give: checked before anything starts."""

from __future__ import annotations

import os

from .agents.ranges import BELOW_1, CONTEXT, COUNT, COUNT_FROM_0, ENVS, LARGE, TEMPERATURE, Range, check_limits

__all__ = ["BELOW_1", "CONTEXT", "COUNT", "COUNT_FROM_0", "ENVS", "TEMPERATURE", "Range", "check_limits"]

SEED = Range(0, LARGE)
SAC_SEED = Range(0, 2**32 - 2**16)  # NumPy's old generator has 32 bits, and an environment has a seed each
SHARE = Range(0, 1)
SOME = Range(0, 1, above=True)
HALF = Range(0, 0.5)
POSITIVE = Range(0, 1e30, above=True)
FROM_0 = Range(0, 1e30)
RETURN = Range(-1e15, 1e15)  # in an environment's units: divided by a return scale it stays a float32
RETURN_SCALE = Range(1e-20, 1e15)
GUIDANCE = Range(1, 1000)
GPUS = Range(0, 1024)
THREADS = Range(1, max(64, 8 * (os.cpu_count() or 1)))  # of many more, torch dies
