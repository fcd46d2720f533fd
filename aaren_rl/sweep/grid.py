"""Grids of training runs in YAML: every agent on every task with every seed.

preset: paper
envs: [hopper-medium, walker2d-medium]
agents: [decision-transformer, decision-aaren]
seeds: [0, 1, 2]
settings: {updates: 20000}      # optional: further arguments of aaren_rl.train, without their dashes
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from ..envs import get_task
from ..errors import UsageError, one_line
from ..policies.names import AGENTS
from ..train.config import SECTIONS
from ..train.settings import preset_names
from ..typed import read
from .processes import CellJob

PAPER = "paper"  # the grid that ships with the package


@dataclass(frozen=True)
class Grid:
    """The runs of a comparison."""

    preset: str
    envs: list[str]
    agents: list[str]
    seeds: list[int]
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ValueError naming the field."""
        known = [item.name for section in SECTIONS.values() for item in dataclasses.fields(section)]
        for what, given, allowed in (
            ("preset", [self.preset], preset_names()),
            ("agents", self.agents, list(AGENTS)),
            ("settings", self.settings, sorted(known)),
        ):
            if unknown := [value for value in given if value not in allowed]:
                raise ValueError(f"{what}: {', '.join(unknown)} is not one of {', '.join(allowed)}")
        if not self.agents:
            raise ValueError("agents: must not be empty")
        if min(self.seeds, default=0) < 0:
            raise ValueError("seeds: must be integers from 0")

    def cells(self, out: Path, more: Sequence[str] = ()) -> list[CellJob]:
        """A run a combination, in folders under `out`; `more` are arguments for every run.

        Seeds vary slowest, so that a sweep that is stopped early has every task and agent.
        """
        shared = ["--preset", self.preset, "--out", str(out)]
        for name, value in self.settings.items():
            shared += [f"--{name.replace('_', '-')}", str(value)]
        return [
            CellJob(
                ("--env", env, "--agent", agent, "--seed", str(seed), *shared, *more),
                out / env / agent / f"seed{seed}",
            )
            for seed in self.seeds
            for env in self.envs
            for agent in self.agents
        ]


def read_grid(name: str) -> Grid:
    """The grid of a YAML file, or the packaged one of the name "paper".

    Raises:
        UsageError: not readable, or not a grid; the message names what does not fit.
        UnknownTaskError: a task that is none.
    """
    try:
        if name == PAPER:
            text = resources.files("aaren_rl.configs.paper").joinpath("table1.yaml").read_text(encoding="utf-8")
        else:
            text = Path(name).read_text(encoding="utf-8")
        grid = read(Grid, yaml.safe_load(text))
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"{name}: {one_line(error)}") from error
    except ValueError as error:
        what = "a grid has preset, envs, agents, seeds and, where wanted, settings"
        raise UsageError(f"{name}: {one_line(error, 2000)}; {what}") from error
    for env in grid.envs:
        get_task(env)
    return grid
