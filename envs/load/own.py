"""Data outside D4RL's table with their tasks: what an environment says of them, and what only the data say."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.errors import DataError, UsageError
from ..data.episodes import Episodes
from ..data.minari.env_spec import Described
from ..data.minari.read import read_minari
from ..tasks.built_in import BUILT_IN
from ..tasks.environment import check_reference, own_task
from ..tasks.table import TASKS, Reference, Task
from .fit import arranged, check_fit, held_to_horizon

MARGIN = 0.05  # of the range of an action in the data, on either side
_SPACE = ("n_actions", "action_low", "action_high")
LEAST_LIMIT = 1000  # steps that are played where there is no time limit; or twice the longest episode of the data


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What a user says of the environment of own data; None: nothing."""

    env_id: str | None = None
    env_kwargs: Mapping[str, Any] | None = None
    max_episode_steps: int | None = None
    reference: Reference | None = None

    def task(self, name: str, env_id: str) -> Task:
        """The task of `env_id`, as `own_task`."""
        options: dict[str, Any] = {"env_kwargs": self.env_kwargs, "max_episode_steps": self.max_episode_steps}
        return own_task(name, env_id, reference=self.reference, **options)

    def without(self, name: str, episodes: Episodes) -> Task:
        """The task of data without an environment, open; UsageError: what goes with one is given."""
        if self.env_kwargs:
            raise UsageError("--env-kwargs: no environment is named to make with them; add --env-id ID")
        check_reference(self.reference)
        dim, any_bound = episodes.action_dim, () if episodes.discrete else (np.inf,) * episodes.action_dim
        return Task(
            name=name,
            env_id="",
            observation_dim=episodes.observation_dim,
            action_dim=dim,
            n_actions=1 if episodes.discrete else None,
            horizon=0,
            action_low=tuple(-bound for bound in any_bound),
            action_high=any_bound,
            reference=self.reference,
            layout=episodes.layout,
        )


def settled(task: Task, episodes: Episodes) -> tuple[Task, Episodes]:
    """A task with what its environment leaves open, by its data, which note it: bounds, the time limit, or all."""
    if not task.env_id:
        return _without_environment(task, episodes)
    notes = list[str]()
    if not task.horizon:
        horizon = max(LEAST_LIMIT, 2 * int(episodes.lengths.max()))
        task = replace(task, horizon=horizon, env_kwargs={**task.env_kwargs, "max_episode_steps": horizon})
        notes.append(
            f"{task.env_id} has no time limit: an evaluation ends episodes after {horizon:,} steps; "
            "--max-episode-steps gives another"
        )
    bounds = np.array([task.action_low, task.action_high])
    if not np.isfinite(bounds).all():
        low, high = np.where(np.isfinite(bounds), bounds, _bounds(episodes.actions))
        if (odd := np.flatnonzero(low >= high)).size:
            raise DataError(
                f"{episodes.path}: action {odd[0]} is {episodes.actions[:, odd[0]].max():g} at most, and "
                f"{task.env_id} takes {task.action_low[odd[0]]:g} to {task.action_high[odd[0]]:g}; choose the "
                "environment it was recorded on"
            )
        task = replace(task, action_low=tuple(low.tolist()), action_high=tuple(high.tolist()))
        notes.append(
            f"{task.env_id} has unbounded actions: the policy acts within the data's range and {MARGIN:.0%} more, "
            f"{_ranges(low, high)}"
        )
    return task, replace(episodes, notes=(*episodes.notes, *notes))


def _without_environment(task: Task, episodes: Episodes) -> tuple[Task, Episodes]:
    """Discrete actions are numbered from 0 on, or from the smallest."""
    if task.n_actions is not None:
        first = min(task.action_start, int(episodes.actions.min()))
        last = max(task.action_start + task.n_actions - 1, int(episodes.actions.max()))
        n = last - first + 1
        task = replace(task, action_dim=n, n_actions=n, action_start=first)
        told = f"actions are {first} to {last}"
    else:
        bounds, by_data = np.array([task.action_low, task.action_high]), _bounds(episodes.actions)
        usual = (episodes.actions.min(axis=0) >= -1) & (episodes.actions.max(axis=0) <= 1)
        low, high = np.where(np.isfinite(bounds), bounds, np.where(usual, by_data.clip(-1, 1), by_data))
        task = replace(task, action_low=tuple(low.tolist()), action_high=tuple(high.tolist()))
        told = f"actions are within {_ranges(low, high)}"
    named = episodes.env_id or "ID"
    near = difflib.get_close_matches(task.name, [*TASKS, *BUILT_IN], n=1, cutoff=0.85)
    hint = f" (did you mean --env {near[0]}?)" if near else ""
    note = f"no environment is named, so nothing is played and nothing scored; --env-id {named} names one{hint}; {told}"
    task = replace(task, horizon=int(episodes.lengths.max()))
    return task, replace(episodes, notes=(*episodes.notes, note))


def _bounds(actions: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The range of every action (N, A) and a margin, (2, A)."""
    low, high = actions.min(axis=0).astype(np.float64), actions.max(axis=0).astype(np.float64)
    wide = MARGIN * np.where(high > low, high - low, np.maximum(np.abs(low), 1.0))
    return np.array([low - wide, high + wide])


def _ranges(low: npt.NDArray[np.float64], high: npt.NDArray[np.float64]) -> str:
    shown = [f"[{a:.4g}, {b:.4g}]" for a, b in zip(low[:4], high[:4], strict=True)]
    return " x ".join(shown) + (f" x ... ({len(low)} in all)" if len(low) > 4 else "")


def load_minari(
    name: str, dataset_id: str, given: Environment, *, clip_actions: bool, progress: bool
) -> tuple[Task, Episodes]:
    """A Minari dataset and its open task, in the environment `given`, else in its eval_env_spec, else in its env_spec.

    Raises the errors of `read_minari` and `own_task`, and DataError where the data do not fit the environment.
    """
    named = given.env_id
    episodes, spec = read_minari(dataset_id, progress=progress, clip_actions=clip_actions, plays=False)
    given = replace(given, reference=given.reference or spec.reference)
    played = spec.evaluated or spec.recorded
    notes, known = list[str](), [each for each in (spec.recorded, spec.evaluated) if each and each.env_id == named]
    if named is not None and spec.env_id is not None and not known:
        notes.append(f"{dataset_id} was recorded on {spec.env_id}; {named}, of --env-id, is played")
    if named is not None:
        played = known[0] if known and known[0].problem is None else Described(named)
    if played is None:
        space: dict[str, Any] = {"layout": spec.unflat, "action_start": spec.action_start}
        space |= {key: value for key in _SPACE if (value := getattr(spec, key)) is not None}
        return replace(given.without(name, episodes), **space), episodes
    if played.problem is not None:
        raise DataError(played.problem)
    if played is spec.evaluated:
        told = ", ".join(f"{key}={value!r}" for key, value in played.env_kwargs.items())
        notes += [f"evaluated in the dataset's eval_env_spec, {played.env_id}({told})", *played.notes]
    kwargs = {**played.env_kwargs, **(given.env_kwargs or {})}
    limit = given.max_episode_steps or played.max_episode_steps
    task = replace(given, env_kwargs=kwargs, max_episode_steps=limit).task(name, played.env_id)
    clips = clip_actions or (spec.recorded is not None and spec.recorded.clips)
    episodes = arranged(task, replace(episodes, notes=(*episodes.notes, *notes)))
    episodes = check_fit(task, episodes, clips)
    return task, episodes if played is spec.evaluated else held_to_horizon(task, episodes)
