"""Tasks, offline data and simulation: names to episodes, episodes to scores."""

from .episodes import Episode, Episodes, returns_to_go
from .errors import DataError, EnvsError, SimulationError, UnknownTaskError, UsageError
from .rollout import Rollouts, SequencePolicy, rollout
from .scores import normalized_score
from .sources import load_episodes, load_task, task_name
from .specs import REFERENCE_RETURNS, TASKS, D4RLTask, Reference, Task, get_task, make_env

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
    "load_episodes",
    "load_task",
    "make_env",
    "normalized_score",
    "returns_to_go",
    "rollout",
    "task_name",
]
