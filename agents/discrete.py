"""Discrete actions: integers as one-hot vectors, and the choice of one by its logits. No torch.

Shape suffixes: B environments, n actions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

# Philox counts its draws in the lower 64 bits. Above them comes the time step, and this for the next episode's seed.
_STEP, _EPISODE = 64, 1 << 192


def one_hot(actions: npt.NDArray[np.int64], start: int, count: int) -> npt.NDArray[np.float32]:
    """Integers (B,) from `start` on as vectors (B, n), n = `count`: 1 where the action is, 0 elsewhere."""
    return np.equal(actions[:, None], np.arange(start, start + count)).astype(np.float32)


def choose(
    logits: npt.NDArray[np.floating[Any]],
    start: int,
    temperature: float | None,
    seeds: npt.NDArray[np.int64] | None,
    timestep: int | npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """The actions (B,), from `start` on, for finite logits (B, n): the most likely, or a sample of softmax(logits / T).

    A sample is argmax(logits / T + g) with noise g of Gumbel's distribution (the Gumbel-max trick, Maddison et al.
    2014). The noise of environment i depends on its seed and time step alone.

    Args:
        logits: of every action.
        start: the smallest action.
        temperature: T; None: the most likely action, the smallest of several.
        seeds: (B,); not read without a temperature.
        timestep: one for all, or (B,).
    """
    if temperature is not None:
        assert seeds is not None
        # Below 0, so that no quotient is infinite where the largest is.
        scaled = (logits - logits.max(1, keepdims=True)).astype(np.float64)
        times = np.broadcast_to(timestep, len(logits))
        with np.errstate(over="ignore"):
            scaled /= temperature
        logits = scaled + np.stack([_noise(*row, logits.shape[1]) for row in zip(seeds, times, strict=True)])
    chosen: npt.NDArray[np.int64] = logits.argmax(1) + np.int64(start)
    return chosen


def _noise(seed: np.int64, timestep: np.int64, count: int) -> npt.NDArray[np.float64]:
    source = np.random.Philox(key=int(seed), counter=int(timestep) << _STEP)
    return np.random.Generator(source).gumbel(size=count)


def next_seeds(seeds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The seeds (R,) of the episodes that follow those with these seeds."""
    drawn = [np.random.Philox(key=int(seed), counter=_EPISODE).random_raw() for seed in seeds]
    return (np.array(drawn, np.uint64) >> np.uint64(1)).astype(np.int64)
