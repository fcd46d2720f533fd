"""Whether data fit a task: its environment, the order of its observations, its horizon, the sizes of its actions."""

from dataclasses import replace

import numpy as np

from ...base.errors import DataError, UsageError
from ..data.columns import hold_to_bounds, hold_to_choices
from ..data.episodes import Episodes
from ..tasks.environment import same_dynamics, unversioned
from ..tasks.spaces import parts_of
from ..tasks.table import TASKS, Task


def arranged(task: Task, episodes: Episodes) -> Episodes:
    """The episodes with their observations' parts in the order of the task's, noted; DataError: it has other parts."""
    try:
        found = episodes.arranged(task.layout)
    except ValueError as error:
        raise DataError(
            f"{episodes.path or episodes.dataset}: observations {error}, which are those of {task.env_id}; choose the "
            "environment it was recorded on"
        ) from error
    if found is episodes:
        return episodes
    order = ", ".join(name.partition("/")[2] for name in parts_of(found.layout or {}))
    return replace(found, notes=(*found.notes, f"observations are in the order of {task.env_id}: {order}"))


def chosen_env_id(episodes: Episodes, env_id: str | None, *, same_dynamics_only: bool = False) -> Episodes:
    """Data of a file whose environment the user has named, often a newer version than the file's: with a note.

    UsageError: both are robots of D4RL, of which two have the same sizes, and not the same one, or with
    `same_dynamics_only` not the same dynamics.
    """
    there = episodes.env_id
    if env_id is None or there in (None, env_id):
        return episodes
    ours = {unversioned(there), unversioned(env_id)}
    other = len(ours) > 1 or (same_dynamics_only and there not in same_dynamics(env_id))
    if other and ours <= {unversioned(task.env_id) for task in TASKS.values()}:
        raise UsageError(f"--env-id {env_id}: {episodes.path} was recorded on {there}; leave --env-id out")
    note = f"the file names the environment {there}; {env_id} is used, whose sizes and bounds fit"
    return replace(episodes, env_id=env_id, notes=(*episodes.notes, note))


def held_to_horizon(task: Task, episodes: Episodes) -> Episodes:
    """The episodes; DataError: one is longer than the task's, if these end."""
    longest = int(episodes.lengths.max())
    if task.horizon and longest > max(task.horizon, task.data_horizon):  # a built-in task's data may be longer
        # Minari's episodes are as they were recorded, and the option is the environment's time limit.
        steps = longest if episodes.source == "minari" else task.horizon
        raise DataError(
            f"{episodes.path}: has an episode of {longest:,} steps, {task.env_id} ends at {task.horizon}; "
            f"pass --max-episode-steps {steps}"
        )
    return episodes


def check_fit(task: Task, episodes: Episodes, clip_actions: bool) -> Episodes:
    """Raises DataError where data that were read by themselves do not fit an environment."""
    path = episodes.path or episodes.dataset
    found = episodes.observation_dim, episodes.action_dim
    wanted = task.observation_dim, 1 if task.n_actions else task.action_dim
    if found != wanted or episodes.discrete != bool(task.n_actions):
        kinds = ["discrete" if discrete else "continuous" for discrete in (episodes.discrete, task.n_actions)]
        raise DataError(
            f"{path}: has {found[0]} observation and {found[1]} {kinds[0]} action columns, {task.env_id} has "
            f"{wanted[0]} and {wanted[1]} {kinds[1]}; choose the environment it was recorded on"
        )
    if task.n_actions:
        hold_to_choices(path, episodes.actions, task.n_actions, task.action_start)
        return episodes
    notes, actions = list[str](), episodes.actions.copy() if clip_actions else episodes.actions
    bounds = np.array(task.action_low, np.float32), np.array(task.action_high, np.float32)
    hold_to_bounds(path, actions, bounds, clip_actions, notes)
    return replace(episodes, actions=actions, notes=(*episodes.notes, *notes))
