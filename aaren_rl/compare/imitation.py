"""Imitation of held-out episodes over training seeds: every agent's action error, and agents episode by episode.

Scores of two training seeds differ by tens of points where their action errors differ by a percent, so this tells
agents apart with few seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from ..evaluate.scores import ActionError
from .cells import Cell
from .statistics import CONFIDENCE, Estimate, Floats, group

# By training seed: of every episode a sum over its steps, (E,), and its steps, (E,).
Pairs = dict[int, tuple[Floats, npt.NDArray[np.int64]]]

RESAMPLES = 2_000  # fewer than of scores: a data set may have thousands of held-out episodes
SAME_FLOOR = 1e-4  # relative: rounding changes the sixth digit of a floor, other episodes the third


@dataclass(frozen=True)
class Imitation:
    """One agent's action error on the held-out episodes of one task, mean over its training seeds.

    Attributes:
        env: the task.
        agent: the agent.
        seeds: the training seeds it was measured for, ascending.
        episodes: held out, of these seeds together.
        error: as `ActionError.mean`; the interval is over the episodes of each seed, for these very seeds.
        above_floor: what of it is the policies' own; None where the behaviour's noise is not known.
    """

    env: str
    agent: str
    seeds: tuple[int, ...]
    episodes: int
    error: Estimate
    above_floor: Estimate | None


@dataclass(frozen=True)
class ImitationDifference:
    """The action error of `first` less that of `second`, on the same held-out episodes; below 0, `first` is better.

    Attributes:
        env: the task; None: the mean over all tasks that have both.
        first: an agent.
        second: another.
        seeds: the training seeds that kept the same episodes from both, ascending.
        episodes: how many pairs of an episode's errors there are.
        difference: its mean over the seeds; the interval is over seeds, and over the episodes of every seed drawn.
    """

    env: str | None
    first: str
    second: str
    seeds: tuple[int, ...]
    episodes: int
    difference: Estimate


def imitation(cells: Sequence[Cell], seed: int = 0) -> list[Imitation]:
    """Every agent on every task, where episodes were held out of any of its runs."""
    return [
        _imitation(env, agent, errors, seed)
        for env, by_agent in group(cells).items()
        for agent, runs in by_agent.items()
        if (errors := _action_errors(runs))
    ]


def imitation_differences(cells: Sequence[Cell], seed: int = 0) -> list[ImitationDifference]:
    """Every pair of agents on every task, where runs of one seed kept the same episodes from both."""
    return [
        ImitationDifference(env, *agents, tuple(pairs), _episodes(pairs), _estimate([pairs], seed))
        for env, by_agent in group(cells).items()
        for agents in combinations(by_agent, 2)
        if (pairs := _paired(by_agent, agents))
    ]


def imitation_difference_over_tasks(
    cells: Sequence[Cell], first: str, second: str, seed: int = 0
) -> ImitationDifference:
    """The mean over the tasks of what `imitation_differences` has of two agents; seeds: those of any task.

    Raises:
        ValueError: no task has both.
    """
    tasks = [
        pairs
        for by_agent in group(cells).values()
        if {first, second} <= set(by_agent) and (pairs := _paired(by_agent, (first, second)))
    ]
    if not tasks:
        raise ValueError(f"no task has runs of {first} and of {second} that kept the same episodes")
    seeds = tuple(sorted({s for pairs in tasks for s in pairs}))
    return ImitationDifference(None, first, second, seeds, sum(map(_episodes, tasks)), _estimate(tasks, seed))


def _paired(by_agent: Mapping[str, list[Cell]], agents: tuple[str, str]) -> Pairs:
    """By training seed: the differences of the episodes' errors, summed over steps, and the episodes' steps."""
    ours, theirs = (_action_errors(by_agent[agent]) for agent in agents)
    return {
        s: (np.subtract(ours[s].sums, theirs[s].sums), np.array(ours[s].lengths))
        for s in ours
        if s in theirs and _of_same_episodes(ours[s], theirs[s])
    }


def _of_same_episodes(one: ActionError, other: ActionError) -> bool:
    """Whether they are, as of one seed, share and data; floors are of the states, and lengths may all be alike."""
    alike = np.isclose(one.floor or 0.0, other.floor or 0.0, rtol=SAME_FLOOR, atol=0.0)
    return one.lengths == other.lengths and bool(alike)


def _episodes(pairs: Pairs) -> int:
    return sum(len(lengths) for _, lengths in pairs.values())


def _action_errors(runs: list[Cell]) -> dict[int, ActionError]:
    """By training seed."""
    return {cell.seed: cell.last.action_error for cell in runs if cell.last.action_error is not None}


def _imitation(env: str, agent: str, errors: dict[int, ActionError], seed: int) -> Imitation:
    rng = np.random.default_rng(seed)
    found = list(errors.values())
    means = np.mean([_resampled(np.array(e.sums), np.array(e.lengths), rng) for e in found], axis=0)
    value, (low, high) = float(np.mean([e.mean for e in found])), _ends(means)
    floors = [e.floor for e in found if e.floor is not None]
    above = None
    if len(floors) == len(found):
        floor = float(np.mean(floors))
        above = Estimate(value - floor, (low - floor, high - floor))
    return Imitation(env, agent, tuple(errors), sum(len(e.sums) for e in found), Estimate(value, (low, high)), above)


def _estimate(tasks: Sequence[Pairs], seed: int) -> Estimate:
    """The mean over tasks of the mean over seeds of what their episodes give a step."""
    rng = np.random.default_rng(seed)
    means = [np.mean([sums.sum() / lengths.sum() for sums, lengths in pairs.values()]) for pairs in tasks]
    resamples = np.mean([_over_seeds(list(pairs.values()), rng) for pairs in tasks], axis=0)
    return Estimate(float(np.mean(means)), _ends(resamples))


def _over_seeds(pairs: Sequence[tuple[Floats, npt.NDArray[np.int64]]], rng: np.random.Generator) -> Floats:
    """Means over as many seeds as there are, drawn with replacement; each has episodes of its own, (resamples,)."""
    means = np.array([[_resampled(*pair, rng) for pair in pairs] for _ in pairs])  # (drawn, seeds, resamples)
    drawn = rng.integers(len(pairs), size=(len(pairs), 1, RESAMPLES))
    return np.asarray(np.take_along_axis(means, drawn, axis=1).mean(axis=(0, 1)))


def _resampled(sums: Floats, lengths: npt.NDArray[np.int64], rng: np.random.Generator) -> Floats:
    """Means over the steps of as many episodes as there are, drawn with replacement, (resamples,)."""
    chosen = rng.integers(len(sums), size=(RESAMPLES, len(sums)))
    return np.asarray(sums[chosen].sum(axis=1) / lengths[chosen].sum(axis=1))


def _ends(resamples: Floats) -> tuple[float, float]:
    low, high = np.quantile(resamples, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
