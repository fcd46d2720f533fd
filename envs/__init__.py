"""Tasks, offline data and simulation: names to episodes, episodes to scores."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .data.episodes import Episode, Episodes, returns_to_go
    from .data.load import load_episodes, load_task
    from .data.names import is_own, task_name
    from .errors import DataError, EnvsError, SimulationError, UnknownTaskError, UsageError
    from .simulation.rollout import Rollouts, SequencePolicy, rollout
    from .tasks.environment import make_env
    from .tasks.scores import normalized_score
    from .tasks.table import REFERENCE_RETURNS, TASKS, D4RLTask, Reference, Task, get_task

__all__ = [
    "REFERENCE_RETURNS",
    "TASKS",
    "D4RLTask",
    "DataError",
    "EnvsError",
    "Episode",
    "Episodes",
    "Reference",
    "Rollouts",
    "SequencePolicy",
    "SimulationError",
    "Task",
    "UnknownTaskError",
    "UsageError",
    "get_task",
    "is_own",
    "load_episodes",
    "load_task",
    "make_env",
    "normalized_score",
    "returns_to_go",
    "rollout",
    "task_name",
]

_HOMES = {
    "data.episodes": ("Episode", "Episodes", "returns_to_go"),
    "data.load": ("load_episodes", "load_task"),
    "data.names": ("is_own", "task_name"),
    "errors": ("DataError", "EnvsError", "SimulationError", "UnknownTaskError", "UsageError"),
    "simulation.rollout": ("Rollouts", "SequencePolicy", "rollout"),
    "tasks.environment": ("make_env",),
    "tasks.scores": ("normalized_score",),
    "tasks.table": ("REFERENCE_RETURNS", "TASKS", "D4RLTask", "Reference", "Task", "get_task"),
}


def __getattr__(name: str) -> object:
    """Imports a name's module on demand: `aaren_rl.errors` needs the errors alone, without Gymnasium and h5py."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
