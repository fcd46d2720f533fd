"""Reacher-Recall: MuJoCo's Reacher with a target that is seen for a moment.

The arm must go to the target and stay for the rest of 1,000 steps, so a policy must remember where it was.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces, utils

from ..environment import load_mujoco

load_mujoco()  # before Gymnasium would import it with MUJOCO_GL

from gymnasium.envs.mujoco.reacher_v5 import ReacherEnv  # noqa: E402

Array = npt.NDArray[np.float64]

HORIZON = 1000  # steps of an episode
SHOWN = 5  # steps in which the target is seen
TARGET = slice(4, 6)  # its columns of an observation

# Reacher's own weight of 1 would make random actions so expensive that an arm that never moves scores 73.
_CONTROL_WEIGHT = 0.1


class ReacherRecall(ReacherEnv):
    """Gymnasium's Reacher-v5, whose target is in the first 5 observations only.

    v5, because its reward is that of the state after the step; v4's is that of the state before. Observation (9,):
    cosines and sines of both joints, x and y of the target or 0, velocities of the joints, and 1 while the target is
    shown or 0. Action (2,): torques in [-1, 1]. The reward is minus the distance of the fingertip from the target in
    meters, minus 0.1 of the squared torques. `info` has the distance, of `reset` and of every step.
    """

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401  those of ReacherEnv
        super().__init__(reward_control_weight=_CONTROL_WEIGHT, **kwargs)
        utils.EzPickle.__init__(self, **kwargs)  # a copy is made by this class's arguments
        self.observation_space = spaces.Box(-np.inf, np.inf, (9,), np.float64)

    def step(self, action: npt.NDArray[Any]) -> tuple[Array, np.float64, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)  # type: ignore[no-untyped-call]
        return observation, reward, terminated, truncated, info | self._get_reset_info()

    def _get_reset_info(self) -> dict[str, Any]:
        apart = self.data.body("fingertip").xpos - self.data.body("target").xpos
        return {"distance": float(np.linalg.norm(apart))}

    def _get_obs(self) -> Array:
        observation = np.append(super()._get_obs()[:8], 1.0)  # type: ignore[no-untyped-call]
        if self.data.time > (SHOWN - 0.5) * self.dt:
            observation[TARGET] = observation[8] = 0.0
        return observation
