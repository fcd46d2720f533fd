"""The settings of a `collect` run, kept in its config.yaml, and its evaluations."""

import json
import re
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import yaml

from ..base.errors import CheckpointError, UsageError, one_line
from ..base.files import write_text
from ..base.json_dataclass import read
from ..base.ranges import COUNT, COUNT_FROM_0, POSITIVE, RETURN, SAC_SEED, Range, check_limits, setting
from ..envs import normalized_score
from ..envs.local.policy import Job, simulate
from ..envs.tasks.actions import bounding, is_bounded
from ..envs.tasks.arguments import env_kwargs
from ..envs.tasks.environment import inspect_spaces
from ..envs.tasks.table import REFERENCE_RETURNS
from ..policies.names import return_words

LATER = {"steps", "stop_at_return", "stop_at_score", "checkpoint_every"}  # what a resume may change
EVALUATION_EPISODES = 10
RANDOM_STEPS = 5000

# Gymnasium's own pattern without the module before a colon, and without parts that leave a folder.
_ENV_ID = re.compile(r"(?:[A-Za-z0-9_][\w-]*/)?[A-Za-z0-9_][\w.-]*", re.ASCII)

# A simulation's seed has the run's seed and one of these purposes.
EVALUATION, DATA = 1, 2


@dataclass(frozen=True)
class CollectConfig:
    """The settings of a `collect` run. Steps count all environments together. The help texts explain the other fields.

    Attributes:
        env_id: the Gymnasium environment.
        seed: of the weights, the exploration and the environments.
        horizon: steps after which an episode is truncated.
        env_kwargs: arguments of the environment.
    """

    env_id: str
    seed: int = field(metadata={"limits": SAC_SEED})
    horizon: int = field(metadata={"limits": COUNT})
    steps: int = setting(1_000_000, "environment steps to train for [1000000]", COUNT)
    stop_at_return: float | None = setting(None, "stop at this mean return", RETURN)
    stop_at_score: float | None = setting(None, "stop at this D4RL score", RETURN)
    checkpoint_every: int = setting(20_000, "save and evaluate every N steps [20000]", COUNT)
    envs: int = setting(4, "parallel training environments [4]", COUNT)
    updates_per_step: float = setting(0.5, "gradient steps per step [0.5]", Range(0.001, 100))
    learning_rate: float = setting(3e-4, "learning rate of all networks [3e-4]", POSITIVE)
    random_steps: int = setting(RANDOM_STEPS, "initial random actions [5000; at most a tenth of --steps]", COUNT_FROM_0)

    env_kwargs: dict[str, Any] = field(default_factory=dict, metadata={"limits": None})

    def __post_init__(self) -> None:
        check_limits(self)
        env_kwargs(self.env_kwargs)  # raises where a file holds others than plain values

    @property
    def json_kwargs(self) -> str:
        """The environment's arguments as JSON."""
        return json.dumps(self.env_kwargs)

    @property
    def made_with(self) -> dict[str, Any]:
        """What goes to `make_env`: the environment's arguments and the time limit."""
        return {**self.env_kwargs, "max_episode_steps": self.horizon}

    @property
    def family(self) -> str | None:
        """The D4RL family whose reference returns apply to this environment, or None."""
        name, _, version = self.env_id.rpartition("-v")
        # -v5 is a different task: see ENV_VERSION in envs/tasks/table.py.
        return name.lower() if name.lower() in REFERENCE_RETURNS and version in ("2", "3", "4") else None

    def reached(self, return_mean: float) -> bool:
        """Whether a mean return reaches the goal of training."""
        if self.stop_at_return is not None and return_mean >= self.stop_at_return:
            return True
        score = normalized_score(self.family, return_mean) if self.family else None
        return score is not None and self.stop_at_score is not None and bool(score >= self.stop_at_score)


def env_name(env_id: str) -> str:
    """An environment id as the name of a folder; UsageError: not an environment id."""
    if len(env_id) > 100 or not _ENV_ID.fullmatch(env_id):
        raise UsageError(f"--env-id {env_id[:100]!r} is not an environment id; give one such as Ant-v4")
    return env_id.replace("/", "_")


def read_kwargs(text: str) -> dict[str, Any]:
    """The arguments of an environment of --env-kwargs; UsageError: they are no JSON object of plain values."""
    try:
        return env_kwargs(text)
    except ValueError as error:
        raise UsageError(f"--env-kwargs {error}") from error


def inspect_env(env_id: str, max_episode_steps: int | None = None, kwargs: Mapping[str, Any] | None = None) -> int:
    """Checks that data can be collected in an environment; returns its horizon, `max_episode_steps` or its own.

    `kwargs` are the environment's arguments. Raises UsageError if it is not registered, its observations cannot be
    flattened, its actions are neither bounded vectors nor discrete, or its horizon is unknown; SimulationError if it
    cannot be made.
    """
    kwargs = kwargs or {}
    try:
        gym.spec(env_id)
    except gym.error.UnregisteredEnv as error:
        raise UsageError(f"--env-id {env_id}: {one_line(error)} (--register imports your module)") from error
    except gym.error.Error:
        pass  # a version that Gymnasium dropped: `inspect_spaces` reports it
    _, acted, own = inspect_spaces(env_id, **kwargs)
    if isinstance(acted, gym.spaces.Box) and not is_bounded(acted):
        raise UsageError(
            f"--env-id {env_id}: its actions are unbounded, and SAC explores within bounds; {bounding(acted)}"
        )
    horizon = max_episode_steps or own
    if horizon is None:
        raise UsageError(f"--env-id {env_id}: it has no time limit; give --max-episode-steps")
    if own is not None and horizon > own:
        raise UsageError(f"--max-episode-steps {horizon}: {env_id} has a time limit of {own} steps; give no more")
    return horizon


def make_config(
    stored: CollectConfig | None, env_id: str, seed: int, horizon: int, given: dict[str, Any], may_change: Set[str]
) -> CollectConfig:
    """The settings of a new run, or of the `stored` run with changes of `given`, which are limited to `may_change`.

    Raises CheckpointError, which names every other setting that differs from the run's, and UsageError if
    `stop_at_score` is set without reference returns.
    """
    if stored is None:
        config = CollectConfig(env_id, seed, horizon, **given)
        if "random_steps" not in given:  # so that a short run learns, too
            config = replace(config, random_steps=min(RANDOM_STEPS, config.steps // 10))
    else:
        config = replace(stored, **given, env_id=env_id, horizon=horizon)
        was, asks = asdict(stored), asdict(config)
        differing = [
            f"{k} (run: {was[k]}, requested: {asks[k]})" for k in was if k not in may_change and was[k] != asks[k]
        ]
        if differing:
            raise CheckpointError(f"the existing run differs in {'; '.join(differing)}; leave these options out")
    if config.stop_at_score is not None and config.family is None:
        raise UsageError(f"--stop-at-score: D4RL has no reference returns for {env_id}; use --stop-at-return")
    return config


def write_config(file: Path, config: CollectConfig) -> None:
    """Writes config.yaml, whole or not at all."""
    write_text(file, yaml.safe_dump(asdict(config), sort_keys=False))


def read_config(file: Path) -> CollectConfig:
    """Reads config.yaml; raises UsageError if it cannot be read."""
    try:
        return read(CollectConfig, yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(f"{file}: not the settings of a collect run: {one_line(error)}") from error


@dataclass(frozen=True)
class Evaluation:
    """Undiscounted returns and lengths of some episodes of the stochastic policy after `steps` environment steps."""

    steps: int
    return_mean: float
    return_std: float
    length_mean: float
    algorithm: str = "SAC"

    def scalars(self) -> dict[str, float]:
        """Tag -> value, as in metrics.jsonl."""
        return {
            "eval/mean_return": self.return_mean,
            "eval/std_return": self.return_std,
            "eval/mean_ep_length": self.length_mean,
        }

    def __str__(self) -> str:
        return f"{self.algorithm} at {self.steps:,} steps, stochastic, mean return {return_words(self.return_mean)}"


def evaluate_actor(config: CollectConfig, path: Path, steps: int, algorithm: str) -> Evaluation:
    """Plays the stochastic policy of an actor file in separate environments; SimulationError if one fails."""
    seed = (config.seed, EVALUATION, steps)
    job = Job(config.env_id, str(path), config.horizon, seed, 0, EVALUATION_EPISODES, env_kwargs=config.json_kwargs)
    tracks = simulate(job)
    returns = [float(track.rewards.sum(dtype=np.float64)) for track in tracks]
    length = float(np.mean([len(track.rewards) for track in tracks]))
    return Evaluation(steps, float(np.mean(returns)), float(np.std(returns)), length, algorithm)
