"""The settings of a collecting run: from the command line, and kept in its config.yaml."""

from __future__ import annotations

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..envs import normalized_score
from ..errors import CheckpointError, UsageError, one_line
from ..files import write_text
from ..typed import read
from .target import RANDOM_STEPS, Evaluation, SacSettings, Target

LATER = {"steps", "stop_at_return", "stop_at_score", "checkpoint_every"}  # what a resume may change


@dataclass(frozen=True)
class CollectConfig(SacSettings):
    """What training does; data sets are asked for separately.

    Attributes:
        steps: when to stop, in steps of all environments together.
        stop_at_return: stop at an evaluation with this mean return, or None.
        stop_at_score: the same as a D4RL normalised score.
        checkpoint_every: steps between two checkpoints, each with its evaluation.
    """

    steps: int = 1_000_000
    stop_at_return: float | None = None
    stop_at_score: float | None = None
    checkpoint_every: int = 20_000

    def __post_init__(self) -> None:
        """Checks the ranges.

        Raises:
            UsageError: a setting is out of range; the message names it.
        """
        if self.steps < 1 or self.checkpoint_every < 1:
            raise UsageError("steps and checkpoint_every must be at least 1")
        super().__post_init__()

    def reached(self, evaluation: Evaluation, family: str | None) -> bool:
        """Whether an evaluation is what training was to reach."""
        by_return = self.stop_at_return is not None and evaluation.return_mean >= self.stop_at_return
        if self.stop_at_score is None or family is None:
            return by_return
        return by_return or normalized_score(family, evaluation.return_mean) >= self.stop_at_score


def new_config(target: Target, seed: int, given: dict[str, Any]) -> CollectConfig:
    """The settings of a new run: those given, and the defaults.

    Raises:
        UsageError: a setting is out of range, or a score is asked for where there are no reference returns.
    """
    config = CollectConfig(target.env_id, seed, target.horizon, **given)
    if "random_steps" not in given:
        # A short run is to learn, too.
        config = dataclasses.replace(config, random_steps=min(RANDOM_STEPS, config.steps // 10))
    return _checked(config, target)


def resumed_config(stored: CollectConfig, target: Target, given: dict[str, Any], may_change: Set[str]) -> CollectConfig:
    """The settings of a run that is there, where the given ones may say those of `may_change` anew.

    Raises:
        CheckpointError: another setting is not the run's; the message names each.
    """
    asked = dataclasses.replace(stored, **given, env_id=target.env_id, horizon=target.horizon)
    was, asks = dataclasses.asdict(stored), dataclasses.asdict(asked)
    differing = [f"{k} (run: {was[k]}, asked: {asks[k]})" for k in was if k not in may_change and was[k] != asks[k]]
    if differing:
        raise CheckpointError(f"the run that is there differs in {'; '.join(differing)}")
    return _checked(asked, target)


def _checked(config: CollectConfig, target: Target) -> CollectConfig:
    if config.stop_at_score is not None and target.family is None:
        raise UsageError(f"--stop-at-score: D4RL has no reference returns for {target.env_id}; use --stop-at-return")
    return config


def write_config(file: Path, config: CollectConfig) -> None:
    """Writes config.yaml, whole or not at all."""
    write_text(file, yaml.safe_dump(dataclasses.asdict(config), sort_keys=False))


def read_config(file: Path) -> CollectConfig:
    """Reads what `write_config` wrote.

    Raises:
        UsageError: not readable, or other settings than those of a collecting run.
    """
    try:
        return read(CollectConfig, yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(f"{file}: not the settings of a collecting run: {one_line(error)}") from error
