"""Tasks, offline data and simulation: names to episodes, episodes to scores."""

from .episodes import Episode, Episodes, returns_to_go
from .errors import DataError, EnvsError, SimulationError, UnknownTaskError, UsageError
from .rollout import Rollouts, SequencePolicy, rollout
from .scores import normalized_score
from .sources import load_episodes
from .specs import REFERENCE_RETURNS, TASKS, D4RLTask, Reference, Task, get_task, make_env
from .tasks import is_own, load_task, task_name

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
