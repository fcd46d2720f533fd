"""Data of CartPole like a replay buffer: a controller whose share of random actions decreases."""

from functools import partial

import numpy as np
import numpy.typing as npt

from ..data.episodes import Episode, Episodes, join
from ..simulation import play_episode
from ..tasks.environment import make_env
from ..tasks.table import LocalTask

# Pushes against where the pole falls to and, less, where the cart goes to: 500 steps from any first state.
_GAINS = np.array([0.05, 0.15, 1.0, 0.4])  # of position, velocity, angle and angular velocity
_SHARES = (1.0, 0.8, 0.7, 0.6, 0.55, 0.5, 0.45, 0.4, 0.35, 0.3)  # of random actions, by stage
_STEPS, _SEED = 10_000, 0  # of a stage


def make_episodes(task: LocalTask, progress: bool) -> Episodes:
    """10 stages of 10,000 steps, the last episode of each whole; SimulationError: the environment failed."""
    rng, made = np.random.Generator(np.random.PCG64(_SEED)), list[Episode]()

    def act(share: float, seen: npt.NDArray[np.float32]) -> int:
        return int(rng.integers(2)) if rng.random() < share else int(seen @ _GAINS > 0)

    with make_env(task.env_id) as env:
        for share in _SHARES:
            steps = 0
            while steps < _STEPS:
                made.append(play_episode(env, partial(act, share), int(rng.integers(2**31)), task.horizon))
                steps += len(made[-1])
    return join(made)
