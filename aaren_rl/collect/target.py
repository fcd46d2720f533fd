"""D4RL's recipe for any continuous-control environment: from one training run to random, medium and expert data."""

import re
from dataclasses import dataclass
from fractions import Fraction

import gymnasium as gym
import numpy as np

from ..envs.behaviour.policy import Job, Track, simulate
from ..envs.errors import EnvsError, SimulationError, UsageError, one_line
from ..envs.tasks.environment import inspect_spaces
from ..envs.tasks.table import REFERENCE_RETURNS

EVALUATION_EPISODES = 10
RANDOM_STEPS = 5000

# Gymnasium's own pattern without the module before a colon, and with nothing that leaves a folder.
_ENV_ID = re.compile(r"(?:[A-Za-z0-9_][\w-]*/)?[A-Za-z0-9_][\w.-]*", re.ASCII)

# The first part of a simulation's seed is the run's, the second what the episodes are for; 2 are the data sets'.
_EVALUATION = 1


@dataclass(frozen=True)
class Target:
    """The environment to collect in: observation (O,) and action (A,) sizes, and the steps after which to cut."""

    env_id: str
    observation_dim: int
    action_dim: int
    horizon: int

    @property
    def family(self) -> str | None:
        """The D4RL family whose reference returns hold for this environment, or None."""
        name, _, version = self.env_id.rpartition("-v")
        # -v5 is another task: see specs.ENV_VERSION.
        return name.lower() if name.lower() in REFERENCE_RETURNS and version in ("2", "3", "4") else None


def env_name(env_id: str) -> str:
    """An environment's id as the name of a folder.

    Raises:
        UsageError: it is not an id.
    """
    if len(env_id) > 100 or not _ENV_ID.fullmatch(env_id):
        raise UsageError(f"--env {env_id[:100]!r} is not an environment id; give one such as Ant-v4")
    return env_id.replace("/", "_")


def inspect_env(env_id: str, max_episode_steps: int | None = None) -> Target:
    """Check that data can be collected in an environment: a 1-d Box to see, a bounded 1-d Box to act in.

    `max_episode_steps` is the horizon of an environment that has none, or a shorter one.

    Raises:
        UsageError: the id is malformed or not registered, the spaces are others, or the horizon is not known.
        SimulationError: the environment cannot be made.
    """
    env_name(env_id)
    try:
        gym.spec(env_id)
    except gym.error.UnregisteredEnv as error:
        raise UsageError(f"--env {env_id}: {one_line(error)} (--register imports a module of yours)") from error
    except gym.error.Error:
        pass  # a version that Gymnasium dropped: `inspect_spaces` says so
    seen, acted, own = inspect_spaces(env_id)
    if acted.dtype.kind != "f":
        raise UsageError(f"--env {env_id}: its actions are {acted.dtype}, and SAC's are not whole numbers")
    horizon = max_episode_steps or own
    if horizon is None:
        raise UsageError(f"--env {env_id}: its episodes have no longest length; give --max-episode-steps")
    if own is not None and horizon > own:
        raise UsageError(f"--max-episode-steps {horizon}: {env_id} cuts its episodes after {own} steps already")
    return Target(env_id, seen.shape[0], acted.shape[0], horizon)


@dataclass(frozen=True)
class SacSettings:
    """What a training run is made of, and cannot change later.

    Attributes:
        env_id: the Gymnasium environment.
        seed: of the weights, the exploration and the environments.
        horizon: steps after which an episode is cut.
        envs: training environments side by side.
        updates_per_step: gradient updates for each step of one environment.
        learning_rate: of actor, critics and entropy coefficient.
        random_steps: uniform actions before the first update.
    """

    env_id: str
    seed: int
    horizon: int
    envs: int = 4
    updates_per_step: float = 0.5
    learning_rate: float = 3e-4
    random_steps: int = RANDOM_STEPS

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            UsageError: a setting is outside its range.
        """
        for name in ("horizon", "envs"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.seed < 0 or self.random_steps < 0:
            raise UsageError("seed and random_steps must not be negative")
        if not 0.001 <= self.updates_per_step <= 100:
            raise UsageError(f"updates_per_step must be from 0.001 to 100, not {self.updates_per_step}")
        if not 0 < self.learning_rate < float("inf"):
            raise UsageError(f"learning_rate must be above 0, not {self.learning_rate}")

    @property
    def rhythm(self) -> tuple[int, int]:
        """Rows of steps and gradient updates that alternate: the smallest whole numbers with the wanted ratio."""
        updates_per_row = self.envs * Fraction(self.updates_per_step).limit_denominator(1000)
        return updates_per_row.denominator, updates_per_row.numerator

    @property
    def unit(self) -> int:
        """Steps come in multiples of this."""
        return self.rhythm[0] * self.envs


@dataclass(frozen=True)
class Evaluation:
    """Undiscounted returns and lengths of a few episodes of a checkpoint's stochastic policy.

    `steps` are the environment steps the checkpoint was trained for.
    """

    steps: int
    return_mean: float
    return_std: float
    length_mean: float


def play(job: Job) -> list[Track]:
    """`simulate` in this process, where the environment may be the user's code and raise anything.

    Raises:
        SimulationError: it did; the message is its own.
    """
    try:
        return simulate(job)
    except EnvsError:
        raise
    except Exception as error:
        raise SimulationError(f"the environment {job.env_id} raised {error!r}") from error


def evaluate_actor(target: Target, path: str, seed: int, steps: int) -> Evaluation:
    """Play an actor file's stochastic policy, which is what data are collected with, in environments of its own.

    Raises:
        SimulationError: the environment raised.
    """
    tracks = play(Job(target.env_id, path, target.horizon, (seed, _EVALUATION, steps), 0, EVALUATION_EPISODES))
    returns = [float(track.rewards.sum(dtype=np.float64)) for track in tracks]
    lengths = [len(track.rewards) for track in tracks]
    return Evaluation(steps, float(np.mean(returns)), float(np.std(returns)), float(np.mean(lengths)))
