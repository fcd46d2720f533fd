"""MuJoCo's robots without their velocities: the position-only tasks of Ni et al. 2022 (arXiv:2110.05038)."""

from dataclasses import replace
from operator import itemgetter
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from ..data.episodes import Episodes
from ..data.files import read_file
from ..tasks.table import TASKS, LocalTask
from .behavior import make_local

Array = npt.NDArray[Any]


class Positions(gym.wrappers.TransformObservation[Array, Array, Array]):
    """Shows the first `count` numbers of an observation, which in MuJoCo's robots are positions and angles."""

    def __init__(self, env: gym.Env[Array, Array], count: int) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, count=count)  # for `gym.make(env.spec)`
        space: Any = env.observation_space
        shown = gym.spaces.Box(space.low[:count], space.high[:count], dtype=space.dtype.type)
        super().__init__(env, itemgetter(slice(count)), shown)


def make_episodes(task: LocalTask, progress: bool) -> Episodes:
    """The local set of the same robot and level, "hopper-medium" of "hopper-p-medium", without velocities."""
    episodes = read_file(make_local(TASKS[task.name.replace("-p-", "-")], progress=progress))
    return replace(episodes, observations=np.ascontiguousarray(episodes.observations[:, : task.observation_dim]))
