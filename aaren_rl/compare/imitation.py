"""Imitation of held-out episodes over training seeds: every agent's action error, and agents episode by episode.

Of discrete actions the error is the negative log-likelihood, which `measure` says. Scores of two training seeds differ
by tens of points where their action errors differ by a percent, so this tells agents apart with few seeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ..evaluate.scores import ActionError
from .cells import Cell
from .statistics import Estimate, Floats, group, interval_of, resample, rows_of

Errors = dict[int, Floats]  # by training seed: of every episode its steps' sum and their number, (E, 2)

RESAMPLES = 2_000  # fewer than of scores: a data set may have thousands of held-out episodes
SAME_FLOOR = 1e-4  # relative: rounding changes the sixth digit of a floor, other episodes the third


@dataclass(frozen=True)
class Imitation:
    """One agent's action error on the held-out episodes of one task, mean over its training seeds.

    `episodes` are those of all seeds together. The interval is over the episodes of each seed, for these very seeds.
    `above_floor`: the error minus the noise variance (excess MSE); None where that is not known. `accuracy`: of
    discrete actions, the mean over seeds.
    """

    env: str
    agent: str
    seeds: tuple[int, ...]
    episodes: int
    error: Estimate
    above_floor: Estimate | None
    measure: str
    accuracy: float | None


@dataclass(frozen=True)
class ImitationDifference:
    """The action error of `first` minus that of `second`, on the same held-out episodes; below 0, `first` is better.

    `env` is None for the mean over all tasks that have both; `episodes`: pairs of an episode's errors. The interval is
    over seeds, and over the episodes of every seed drawn.
    """

    env: str | None
    first: str
    second: str
    seeds: tuple[int, ...]
    episodes: int
    difference: Estimate
    measure: str


def imitation(cells: Sequence[Cell]) -> list[Imitation]:
    """Every agent on every task, where episodes were held out of any of its runs."""
    return [_imitation(env, agent, errors) for env, agent, runs in rows_of(cells) if (errors := _action_errors(runs))]


def imitation_differences(cells: Sequence[Cell]) -> list[ImitationDifference]:
    """Every pair of agents on every task, where runs of one seed kept the same episodes from both."""
    pairs = [(env, of, *two) for env, of in group(cells).items() for two in combinations(of, 2)]
    paired = [(env, of[first], first, second, _paired(of[first], of[second])) for env, of, first, second in pairs]
    return [
        _difference(env, first, second, [errors], _measure(runs))
        for env, runs, first, second, errors in paired
        if errors
    ]


def imitation_difference_over_tasks(cells: Sequence[Cell], first: str, second: str) -> ImitationDifference:
    """The mean over the tasks of what `imitation_differences` has of two agents, which have to share one."""
    by_task = [_paired(runs.get(first, []), runs.get(second, [])) for runs in group(cells).values()]
    return _difference(None, first, second, [pairs for pairs in by_task if pairs], _measure(cells))


def _action_errors(runs: list[Cell]) -> dict[int, ActionError]:
    return {cell.seed: cell.last.action_error for cell in runs if cell.last.action_error is not None}


def _measure(runs: Sequence[Cell]) -> str:
    return next(cell.last.action_error.measure for cell in runs if cell.last.action_error is not None)


def _paired(first: list[Cell], second: list[Cell]) -> Errors:
    ours, theirs = _action_errors(first), _action_errors(second)
    both = {seed: (error, theirs[seed]) for seed, error in ours.items() if seed in theirs}
    return {seed: _episodes(a, b.sums) for seed, (a, b) in both.items() if _of_same_episodes(a, b)}


def _of_same_episodes(one: ActionError, other: ActionError) -> bool:
    """Floors are of the states, and lengths may all be alike."""
    alike = np.isclose(one.floor or 0.0, other.floor or 0.0, rtol=SAME_FLOOR, atol=0.0)
    return one.lengths == other.lengths and bool(alike)


def _episodes(error: ActionError, less: Sequence[float] | float = 0.0) -> Floats:
    return np.stack([np.subtract(error.sums, less), error.lengths], axis=1)


def _imitation(env: str, agent: str, errors: dict[int, ActionError]) -> Imitation:
    rng, found = np.random.default_rng(0), list(errors.values())
    low, high = interval_of(np.mean([_mean(resample(_episodes(error), RESAMPLES, rng)) for error in found], axis=0))
    value = float(np.mean([error.mean for error in found]))
    floors = [error.floor for error in found if error.floor is not None]
    floor = float(np.mean(floors)) if len(floors) == len(found) else None
    above = None if floor is None else Estimate(value - floor, (low - floor, high - floor))
    episodes = sum(len(error.sums) for error in found)
    rates = [error.accuracy for error in found if error.accuracy is not None]
    accuracy = float(np.mean(rates)) if rates else None
    estimate = Estimate(value, (low, high))
    return Imitation(env, agent, tuple(errors), episodes, estimate, above, found[0].measure, accuracy)


def _difference(env: str | None, first: str, second: str, tasks: Sequence[Errors], measure: str) -> ImitationDifference:
    rng = np.random.default_rng(0)
    value = np.mean([np.mean([_mean(episodes) for episodes in task.values()]) for task in tasks])
    drawn = interval_of(np.mean([_over_seeds(list(task.values()), rng) for task in tasks], axis=0))
    seeds, count = sorted(set().union(*tasks)), sum(len(episodes) for task in tasks for episodes in task.values())
    return ImitationDifference(env, first, second, tuple(seeds), count, Estimate(float(value), drawn), measure)


def _over_seeds(seeds: Sequence[Floats], rng: np.random.Generator) -> Floats:
    """Means over as many seeds as there are, drawn with replacement; each has episodes of its own, (resamples,)."""
    # (drawn, seeds, resamples)
    means = np.array([[_mean(resample(episodes, RESAMPLES, rng)) for episodes in seeds] for _ in seeds])
    drawn = rng.integers(len(seeds), size=(len(seeds), 1, RESAMPLES))
    return np.asarray(np.take_along_axis(means, drawn, axis=1).mean(axis=(0, 1)))


def _mean(episodes: Floats) -> Floats:
    return np.asarray(episodes[..., 0].sum(axis=-1) / episodes[..., 1].sum(axis=-1))
