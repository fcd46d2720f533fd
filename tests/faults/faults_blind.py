"""The environment of test_bad_numbers that cannot draw, for other processes."""

from typing import ClassVar

import gymnasium as gym
import numpy as np


class Blind(gym.Env):
    """Has no pictures."""

    metadata: ClassVar = {"render_modes": []}
    observation_space = gym.spaces.Box(-8, 8, (3,), np.float32)
    action_space = gym.spaces.Box(-2, 2, (1,), np.float32)

    def __init__(self, render_mode=None) -> None:
        pass

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, False, False, {}
