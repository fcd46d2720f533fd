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

import yaml

from ..envs import get_task
from ..errors import UsageError
from ..policies.names import AGENTS
from ..train.config import SECTIONS
from ..train.settings import preset_names
from .processes import CellJob

PAPER = "paper"  # the grid that ships with the package


@dataclass(frozen=True)
class Grid:
    """The runs of a comparison."""

    preset: str
    envs: list[str]
    agents: list[str]
    seeds: list[int]
    settings: dict[str, str | int | float] = field(default_factory=dict)

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
        tree = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{name}: {' '.join(str(error).split())}") from error
    keys = {item.name for item in dataclasses.fields(Grid)}
    if not isinstance(tree, dict) or not keys - {"settings"} <= set(tree) <= keys:
        raise UsageError(f"{name}: a grid has preset, envs, agents, seeds and, where wanted, settings")
    grid = Grid(**tree)
    _check(name, grid)
    return grid


def _check(name: str, grid: Grid) -> None:
    known = {item.name for section in SECTIONS.values() for item in dataclasses.fields(section)}
    for what, given, allowed in (
        ("preset", [grid.preset], preset_names()),
        ("agents", grid.agents, list(AGENTS)),
        ("settings", grid.settings, sorted(known)),
    ):
        if not isinstance(given, list | dict) or (not given and what != "settings"):
            raise UsageError(f"{name}: {what}: must be a list")
        if unknown := [str(value) for value in given if value not in allowed]:
            raise UsageError(f"{name}: {what}: {', '.join(unknown)} is not one of {', '.join(allowed)}")
    if not isinstance(grid.seeds, list) or not all(type(seed) is int and seed >= 0 for seed in grid.seeds):
        raise UsageError(f"{name}: seeds: must be a list of integers from 0")
    if not isinstance(grid.envs, list) or not all(isinstance(env, str) for env in grid.envs):
        raise UsageError(f"{name}: envs: must be a list of names")
    for env in grid.envs:
        get_task(env)
