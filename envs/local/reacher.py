"""Data of Reacher-Recall: a controller that sees the target, with noise on its torques."""

import numpy as np
from tqdm import trange

from ..data.episodes import Episode, Episodes, join
from ..tasks.memory.reacher import HORIZON, Array, ReacherRecall
from ..tasks.table import LocalTask

ARM = 0.1, 0.11  # meters from shoulder to elbow to fingertip
_MOST_BENT = np.cos(3.0)  # the elbow goes no further

# A torque of 1 accelerates a joint by 200 rad/s^2 and its damping is 1 per second, so that these make an error of its
# angle decay at 12 per second, critically damped.
_STIFFNESS, _DAMPING = 12**2 / 200, (2 * 12 - 1) / 200

_GRID = 2.0**-16  # actions are multiples of it: the last bit of a cosine depends on the processor
_EPISODES = 200
_MOST_NOISE = 0.3


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
    observation, _ = env.reset(seed=int(rng.integers(2**31)))
    drawn = noise * rng.standard_normal((HORIZON, 2))
    seen, taken, rewards = [], [], []
    for disturbance in drawn:
        torques = np.clip(control(env.data.qpos, env.data.qvel[:2]) + disturbance, -1.0, 1.0)
        seen.append(observation)
        taken.append(np.round(torques / _GRID) * _GRID)
        observation, reward, *_ = env.step(taken[-1])
        rewards.append(reward)
    observations, actions, rewarded = (np.array(column, np.float32) for column in (seen, taken, rewards))
    return Episode(observations, actions, rewarded, terminated=False)


def make_episodes(task: LocalTask, progress: bool) -> Episodes:
    """200 episodes, each with noise of its own, uniform up to 0.3."""
    rng, bar = np.random.default_rng(0), trange(_EPISODES, desc=f"making {task.name}", disable=not progress)
    with ReacherRecall() as env:
        made = [play(env, rng, rng.uniform(0.0, _MOST_NOISE)) for _ in bar]
    return join(made)
