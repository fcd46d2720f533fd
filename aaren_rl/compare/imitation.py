"""Imitation of held-out episodes over training seeds: every agent's action error, and agents episode by episode.

Of discrete actions the error is the negative log-likelihood, which `measure` says. Scores of two training seeds differ
by tens of points where their action errors differ by a percent, so this tells agents apart with few seeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from ..evaluate.scores import ActionError, Estimate, bootstrap
from .cells import Cell
from .statistics import Floats, group, rows_of

Errors = dict[int, Floats]  # by training seed: of every episode its steps' sum and their number, (E, 2)

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
    found = list(errors.values())
    episodes = [_episodes(error) for error in found]

    def mean(*drawn: npt.NDArray[np.int64]) -> Floats:
        return np.asarray(np.mean([_mean(of_seed[i]) for of_seed, i in zip(episodes, drawn, strict=True)], axis=0))

    low, high = bootstrap(mean, [np.arange(len(of_seed)) for of_seed in episodes])
    value = float(np.mean([error.mean for error in found]))
    floors = [error.floor for error in found if error.floor is not None]
    floor = float(np.mean(floors)) if len(floors) == len(found) else None
    above = None if floor is None else Estimate(value - floor, (low - floor, high - floor))
    rates = [error.accuracy for error in found if error.accuracy is not None]
    accuracy = float(np.mean(rates)) if rates else None
    estimate = Estimate(value, (low, high))
    return Imitation(env, agent, tuple(errors), sum(map(len, episodes)), estimate, above, found[0].measure, accuracy)


def _difference(env: str | None, first: str, second: str, tasks: Sequence[Errors], measure: str) -> ImitationDifference:
    of_tasks = [list(task.values()) for task in tasks]
    value = np.mean([np.mean([_mean(episodes) for episodes in seeds]) for seeds in of_tasks])
    # Of every task as many seeds as there are, drawn with replacement, and for each of them episodes of every seed.
    counts = [n for seeds in of_tasks for n in (len(seeds), *(len(episodes) for _ in seeds for episodes in seeds))]

    def mean(*drawn: npt.NDArray[np.int64]) -> Floats:
        rest, means = iter(drawn), []
        for seeds in of_tasks:
            chosen = np.moveaxis(next(rest), -1, 0)[:, None]
            errors = np.array([[_mean(episodes[next(rest)]) for episodes in seeds] for _ in seeds])
            means.append(np.take_along_axis(errors, chosen, axis=1).mean(axis=(0, 1)))
        return np.asarray(np.mean(means, axis=0))

    seeds, count = sorted(set().union(*tasks)), sum(len(episodes) for of_task in of_tasks for episodes in of_task)
    estimate = Estimate(float(value), bootstrap(mean, [np.arange(count) for count in counts]))
    return ImitationDifference(env, first, second, tuple(seeds), count, estimate, measure)


def _mean(episodes: Floats) -> Floats:
    return np.asarray(episodes[..., 0].sum(axis=-1) / episodes[..., 1].sum(axis=-1))
