"""Discrete actions: integers as one-hot vectors, and sampling from logits. No torch.

Shape suffixes: B environments, n actions.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

# Philox counts its samples in the lower 64 bits. Above is the time step, or this for the seed of the next episode.
_STEP, _EPISODE = 64, 1 << 192


def one_hot(actions: npt.NDArray[np.int64], start: int, count: int) -> npt.NDArray[np.float32]:
    """One-hot vectors (B, n), n = `count`, of integers (B,) from `start` on."""
    return np.equal(actions[:, None], np.arange(start, start + count)).astype(np.float32)


def choose(
    logits: npt.NDArray[np.floating[Any]],
    start: int,
    temperature: float | None,
    seeds: npt.NDArray[np.int64] | None,
    timestep: int | npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """The actions (B,), from `start` on, for finite logits (B, n): the most likely, or a sample of softmax(logits / T).

    A sample is argmax(logits / T + g) with Gumbel noise g (the Gumbel-max trick, Maddison et al. 2014). The noise of
    environment i depends only on its seed and time step.

    Args:
        logits: of every action.
        start: the smallest action.
        temperature: T; None: the most likely action, the smallest one on ties.
        seeds: (B,); ignored without a temperature.
        timestep: one number for all, or (B,).
    """
    if temperature is not None:
        assert seeds is not None
        # At most 0, so that the quotient of the largest is finite.
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
    """The seeds (R,) of the next episodes after those with these seeds."""
    drawn = [np.random.Philox(key=int(seed), counter=_EPISODE).random_raw() for seed in seeds]
    return (np.array(drawn, np.uint64) >> np.uint64(1)).astype(np.int64)
