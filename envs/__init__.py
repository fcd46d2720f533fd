"""Tasks, offline data and simulation: names to episodes, episodes to scores."""

from .data.episodes import Episode, Episodes, returns_to_go
from .data.load import is_own, load_episodes, load_task, task_name
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
