"""Tasks, offline data and simulation: names to episodes, episodes to scores."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..base.errors import AarenRLError, DataError, SimulationError, UnknownTaskError, UsageError
    from .data.episodes import Episode, Episodes, returns_to_go
    from .load import load_episodes, load_task
    from .simulation import Rollouts, SequencePolicy, rollout
    from .tasks.environment import make_env
    from .tasks.table import BUILT_IN, REFERENCE_RETURNS, TASKS, D4RLTask, Reference, Task, get_task, normalized_score

__all__ = [
    "BUILT_IN", "REFERENCE_RETURNS", "TASKS", "AarenRLError", "D4RLTask", "DataError", "Episode", "Episodes",
    "Reference", "Rollouts", "SequencePolicy", "SimulationError", "Task", "UnknownTaskError", "UsageError",
    "get_task", "load_episodes", "load_task", "make_env", "normalized_score", "returns_to_go", "rollout",
]  # fmt: skip

# Those that import little first: a name is looked for in them in this order.
_HOMES = "..base.errors .tasks.table .data.episodes .tasks.environment .simulation .load"


def __getattr__(name: str) -> object:
    """Imports a name's module on demand: a name of the table needs neither Gymnasium nor h5py."""
    for home in _HOMES.split() if name in __all__ else ():
        if hasattr(module := import_module(home, __name__), name):
            globals()[name] = getattr(module, name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
