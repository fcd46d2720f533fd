"""MuJoCo's robots without their velocities: the position-only tasks of Ni et al. 2022 (arXiv:2110.05038)."""

from typing import Any

import gymnasium as gym
import numpy.typing as npt

Array = npt.NDArray[Any]


class Positions(gym.ObservationWrapper[Array, Array, Array], gym.utils.RecordConstructorArgs):
    """Shows the first `count` numbers of an observation, which in MuJoCo's robots are positions and angles."""

    def __init__(self, env: gym.Env[Array, Array], count: int) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, count=count)  # for `gym.make(env.spec)`
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, gym.spaces.Box)
        self.observation_space = gym.spaces.Box(space.low[:count], space.high[:count], dtype=space.dtype.type)
        self._count = count

    def observation(self, observation: Array) -> Array:
        return observation[: self._count]
