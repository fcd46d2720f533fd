"""Random numbers that are a function of integers: a kernel and PyTorch's operations draw the same.

The mixing function is that of SplitMix64 (Steele, Lea and Flood, *Fast Splittable Pseudorandom Number Generators*,
2014): a counter times the golden ratio, through two multiplications and three shifts.
"""

from __future__ import annotations

import torch
from torch import Tensor

UNIFORM, HORIZON, MEAN, POSITIVE = range(4)  # forms of tree attention's masses
DECAY = 0.99  # b of equation (3), the paper's
LARGEST = 300.0  # exponents are cut here: two such factors and a sum over any memory stay finite in float64

# As signed 64-bit integers, whose products wrap as those of unsigned ones do.
GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
SECOND = 0x94D049BB133111EB - (1 << 64)


def mix(x: Tensor) -> Tensor:
    """SplitMix64's output for the states x, int64 of any shape."""
    x = (x ^ _shifted(x, 30)) * FIRST
    x = (x ^ _shifted(x, 27)) * SECOND
    return x ^ _shifted(x, 31)


def uniforms(count: int, *keys: Tensor | int) -> Tensor:
    """float64 in [0, 1), (..., count), for int64 keys that broadcast to (...)."""
    state = torch.zeros((), dtype=torch.int64)
    for key in keys:
        state = mix(state + torch.as_tensor(key) * GOLDEN + GOLDEN)
    counter = torch.arange(1, count + 1, device=state.device) * GOLDEN
    return _shifted(mix(state.unsqueeze(-1) + counter), 11).double() * 2.0**-53


def _shifted(x: Tensor, bits: int) -> Tensor:
    """x >> bits of unsigned numbers: no copies of the sign come in from the left."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
