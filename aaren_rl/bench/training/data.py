"""Random steps of Hopper's size to time updates on."""

from __future__ import annotations

import numpy as np

from ...envs import Episodes, get_task

TASK = get_task("hopper-medium")
MEAN_LENGTH = 457  # steps an episode, about that of D4RL's hopper-medium
RETURN_SCALE = 1000.0


def make_episodes(steps: int) -> Episodes:
    """Random episodes of Hopper's size: the same ones for the same number of steps."""
    rng = np.random.default_rng(0)
    lengths = rng.gamma(4, MEAN_LENGTH / 4, size=steps // 100 + 10).round().clip(1, TASK.horizon).astype(np.int64)
    ends = lengths.cumsum()
    offsets = np.concatenate(([0], ends[ends < steps], [steps]))
    observations = rng.standard_normal((steps, TASK.observation_dim), dtype=np.float32)
    # Columns of unequal size and offset, as joint angles and velocities are.
    columns = np.arange(1, TASK.observation_dim + 1, dtype=np.float32)
    observations *= columns / 4
    observations += columns[::-1] / 10
    return Episodes(
        observations=observations,
        actions=rng.uniform(-1, 1, (steps, TASK.action_dim)).astype(np.float32),
        rewards=rng.normal(3, 1, steps).astype(np.float32),
        offsets=offsets,
        terminated=np.diff(offsets) < TASK.horizon,
    )
