"""Tasks, offline data and simulation: names to episodes, episodes to scores."""

from .episodes import Episode, Episodes, returns_to_go
from .errors import DataError, EnvsError, SimulationError, UnknownTaskError, UsageError
from .rollout import Rollouts, SequencePolicy, rollout
from .scores import REFERENCE_RETURNS, normalized_score
from .sources import load_episodes
from .specs import TASKS, Task, get_task, make_env

__all__ = [
    "REFERENCE_RETURNS",
    "TASKS",
    "DataError",
    "EnvsError",
    "Episode",
    "Episodes",
    "Rollouts",
    "SequencePolicy",
    "SimulationError",
    "Task",
    "UnknownTaskError",
    "UsageError",
    "get_task",
    "load_episodes",
    "make_env",
    "normalized_score",
    "returns_to_go",
    "rollout",
]
