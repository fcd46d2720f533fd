"""Grids of training runs in YAML: every agent on every task with every seed.

preset: paper
envs: [hopper-medium, walker2d-medium]
agents: [decision-transformer, decision-aaren]
seeds: [0, 1, 2]
agent_seeds: {bc: [0, 1]}       # optional: other seeds for one of the agents
settings: {updates: 20000}      # optional: further settings of aaren_rl.train
data:                           # optional: the same for one of the envs alone; so custom datasets get a name
  mine: {env_id: MyEnv-v0, source: mine.hdf5, ref_min_score: 0.0, ref_max_score: 500.0}
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from ..base.errors import UsageError, one_line
from ..base.files import read_small
from ..base.json_dataclass import read
from ..train.settings import Request
from .pool import request_run

PACKAGED = ("paper", "local")  # the grids that ship with the package


@dataclass(frozen=True)
class Grid:
    """The runs of a comparison."""

    preset: str  # of all runs
    envs: list[str]  # tasks, or names of one's own for data that `data` or `settings` name
    agents: list[str]  # names in AGENTS
    seeds: list[int]  # training seeds
    agent_seeds: dict[str, list[int]] = field(default_factory=dict)  # the same, for the runs of one of `agents`
    settings: dict[str, Any] = field(default_factory=dict)  # of `aaren_rl.train`, for all runs
    data: dict[str, dict[str, Any]] = field(default_factory=dict)  # the same, for the runs of one of `envs`

    def __post_init__(self) -> None:
        """Raises ValueError for what no run would miss; the settings of a run are checked with the run."""
        for what, given, known in (("agent_seeds", self.agent_seeds, self.agents), ("data", self.data, self.envs)):
            if unknown := [name for name in given if name not in known]:
                raise ValueError(f"{what}: {', '.join(unknown)} is not one of {', '.join(known)}")
        if own := {"env", "agent", "seed"} & set(chain(self.settings, *self.data.values())):
            raise ValueError(f"settings, data: {', '.join(sorted(own))}: the lists of the grid have it")
        if not all((self.envs, self.agents, self.seeds, *self.agent_seeds.values())):
            raise ValueError("envs, agents, seeds and those of agent_seeds must not be empty")

    def requests(self, out: Path, more: Sequence[str] = ()) -> list[Request]:
        """A run for each combination, in folders under `out`; `more` are arguments for every run."""
        # Seeds vary slowest, so that a sweep that is stopped early has every task and agent.
        seeds = dict.fromkeys(chain(self.seeds, *self.agent_seeds.values()))
        combinations = [
            {"env": e, "agent": a, "seed": s, **self.settings, **self.data.get(e, {})}
            for s in seeds
            for e in dict.fromkeys(self.envs)
            for a in dict.fromkeys(self.agents)
            if s in self.agent_seeds.get(a, self.seeds)
        ]
        return [request_run(given, out, more, self.preset) for given in combinations]


def read_grid(name: str) -> Grid:
    """The grid of a YAML file, or the packaged one of a name in PACKAGED.

    Raises UsageError if it is not readable, or not a grid; the message names what does not fit.
    """
    try:
        if name in PACKAGED:
            text = resources.files(f"aaren_rl.configs.{name}").joinpath("table1.yaml").read_text(encoding="utf-8")
        else:
            text = read_small(Path(name))
        return read(Grid, yaml.safe_load(text))
    except (OSError, RecursionError, ValueError, yaml.YAMLError) as error:
        what = "a grid has preset, envs, agents, seeds and, where wanted, agent_seeds, settings and data"
        raise UsageError(f"{name}: {one_line(error, 2000)}; {what}") from error
