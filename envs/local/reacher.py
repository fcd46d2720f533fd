"""Reacher-Recall: MuJoCo's Reacher with a target that is seen for a moment.

The arm must go to the target and stay for the rest of 1,000 steps, so a policy must remember where it was.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces, utils
from tqdm import trange

from ..data.episodes import Episode, Episodes, join
from ..simulation import play_episode
from ..tasks.environment import load_mujoco
from ..tasks.table import LocalTask

load_mujoco()  # before Gymnasium would import it with MUJOCO_GL

from gymnasium.envs.mujoco.reacher_v5 import ReacherEnv  # noqa: E402

Array = npt.NDArray[np.float64]

HORIZON = 1000  # steps of an episode
SHOWN = 5  # steps in which the target is seen
TARGET = slice(4, 6)  # its columns of an observation

# Reacher's own weight of 1 would make random actions so expensive that an arm that never moves scores 73.
_CONTROL_WEIGHT = 0.1

ARM = 0.1, 0.11  # meters from shoulder to elbow to fingertip
_MOST_BENT = np.cos(3.0)  # the elbow goes no further

# A torque of 1 accelerates a joint by 200 rad/s^2 and its damping is 1 per second, so that these make an error of its
# angle decay at 12 per second, critically damped.
_STIFFNESS, _DAMPING = 12**2 / 200, (2 * 12 - 1) / 200

_GRID = 2.0**-16  # actions are multiples of it: the last bit of a cosine depends on the processor
_EPISODES = 200
_MOST_NOISE = 0.3


class ReacherRecall(ReacherEnv):
    """Gymnasium's Reacher-v5, whose target is in the first 5 observations only.

    v5, because its reward is that of the state after the step; v4's is that of the state before. Observation (9,):
    cosines and sines of both joints, x and y of the target or 0, velocities of the joints, and 1 while the target is
    shown or 0. Action (2,): torques in [-1, 1]. The reward is minus the distance of the fingertip from the target in
    meters, minus 0.1 of the squared torques. `info` has the distance, of `reset` and of every step.
    """

    def __init__(self, **kwargs: Any) -> None:
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


# Data: a controller that sees the target, with noise on its torques


def control(position: Array, velocity: Array) -> Array:
    """Torques (2,) that bring the fingertip to the target: proportional and derivative control of both joints.

    `position` (4,) has their angles and the target's x and y, `velocity` (2,) their velocities. The wanted angles are
    the inverse kinematics of the two links, with the elbow bent to the left.
    """
    upper, lower = ARM
    target = position[2:]
    cosine = (target @ target - upper**2 - lower**2) / (2 * upper * lower)
    elbow = np.arccos(np.clip(cosine, _MOST_BENT, 1.0))
    shoulder = np.arctan2(target[1], target[0]) - np.arctan2(lower * np.sin(elbow), upper + lower * np.cos(elbow))
    error = np.array([shoulder, elbow]) - position[:2]
    error[0] = (error[0] + np.pi) % (2 * np.pi) - np.pi  # the shorter way round
    return np.clip(_STIFFNESS * error - _DAMPING * velocity, -1.0, 1.0)


def play(env: ReacherRecall, rng: np.random.Generator, noise: float) -> Episode:
    """An episode of the controller on the full state, with Gaussian noise of this standard deviation on its torques."""
    seed = int(rng.integers(2**31))
    drawn = iter(noise * rng.standard_normal((HORIZON, 2)))

    def act(_: npt.NDArray[np.float32]) -> Array:
        torques = np.clip(control(env.data.qpos, env.data.qvel[:2]) + next(drawn), -1.0, 1.0)
        return np.asarray(np.round(torques / _GRID) * _GRID)

    return play_episode(env, act, seed, HORIZON)


def make_episodes(task: LocalTask, progress: bool) -> Episodes:
    """200 episodes, each with noise of its own, uniform up to 0.3."""
    rng, bar = np.random.default_rng(0), trange(_EPISODES, desc=f"making {task.name}", disable=not progress)
    with ReacherRecall() as env:
        made = [play(env, rng, rng.uniform(0.0, _MOST_NOISE)) for _ in bar]
    return join(made)
