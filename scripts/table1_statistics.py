"""Differences of two agents, of scores and of errors on the same held-out episodes, for docs/benchmark.md.

Scores of two seeds differ by tens of points where their action errors differ by a percent, so the latter tells agents
apart with few seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from aaren_rl.compare.measure import Cell
from aaren_rl.compare.statistics import Floats, Pair, action_errors, compared, group, mean_of_means
from aaren_rl.evaluate.scores import ActionError, Estimate, bootstrap, episodes_mean

Errors = dict[int, Floats]  # by training seed: of every episode its steps' sum and their number, (E, 2)
SAME_MEAN = 1e-6  # relative difference of the same data's mean return on another processor


@dataclass(frozen=True)
class ErrorDifference:
    """The action error of `first` minus that of `second`, on the same held-out episodes; below 0, `first` is better.

    All episodes count alike, as agents may draw them differently.

    `env` is None for the mean over all tasks that have both; `episodes`: pairs of an episode's errors. The interval is
    over seeds, and over the episodes of every seed drawn.
    """

    env: str | None
    first: str
    second: str
    seeds: tuple[int, ...]
    episodes: int
    difference: Estimate


def differences(cells: Sequence[Cell]) -> list[Pair]:
    """The first agent's mean normalized score minus the second's, by task and over all; above 0 the first is better."""
    normalized = [cell for cell in cells if cell.last.normalized_score_mean is not None]
    return compared(normalized, lambda *strata: mean_of_means(*strata[::2]) - mean_of_means(*strata[1::2]))


def error_differences(cells: Sequence[Cell]) -> list[ErrorDifference]:
    """Every pair of agents on every task, where runs of one seed kept the same episodes from both."""
    pairs = [(env, of, *two) for env, of in group(cells).items() for two in combinations(of, 2)]
    paired = [(env, first, second, _paired(of[first], of[second])) for env, of, first, second in pairs]
    return [_difference(env, first, second, [errors]) for env, first, second, errors in paired if errors]


def error_difference_over_tasks(cells: Sequence[Cell], first: str, second: str) -> ErrorDifference:
    """The mean over the tasks of what `error_differences` has of two agents, which have to share one."""
    by_task = [_paired(runs.get(first, []), runs.get(second, [])) for runs in group(cells).values()]
    return _difference(None, first, second, [pairs for pairs in by_task if pairs])


def _paired(first: list[Cell], second: list[Cell]) -> Errors:
    """By seed: of every episode the first's sum minus the second's."""
    ours, theirs = action_errors(first), action_errors(second)
    means = [{cell.seed: cell.last.data_returns.get("mean", 0.0) for cell in runs} for runs in (first, second)]
    return {
        seed: np.stack([np.subtract(error.sums, theirs[seed].sums), error.lengths], axis=1)
        for seed, error in ours.items()
        if seed in theirs and _of_same_episodes(error, theirs[seed], *(mean[seed] for mean in means))
    }


def _of_same_episodes(one: ActionError, other: ActionError, mean: float, other_mean: float) -> bool:
    """Of one seed the same are held out of the same data: as long, and with the mean return of all data."""
    return one.lengths == other.lengths and math.isclose(mean, other_mean, rel_tol=SAME_MEAN)


def _difference(env: str | None, first: str, second: str, tasks: Sequence[Errors]) -> ErrorDifference:
    of_tasks = [list(task.values()) for task in tasks]
    value = np.mean([np.mean([episodes_mean(episodes) for episodes in seeds]) for seeds in of_tasks])
    # Of every task as many seeds as there are, drawn with replacement, and for each of them episodes of every seed.
    counts = [n for seeds in of_tasks for n in (len(seeds), *(len(episodes) for _ in seeds for episodes in seeds))]

    def mean(*drawn: npt.NDArray[np.int64]) -> Floats:
        rest, means = iter(drawn), []
        for seeds in of_tasks:
            chosen = np.moveaxis(next(rest), -1, 0)[:, None]
            errors = np.array([[episodes_mean(episodes[next(rest)]) for episodes in seeds] for _ in seeds])
            means.append(np.take_along_axis(errors, chosen, axis=1).mean(axis=(0, 1)))
        return np.asarray(np.mean(means, axis=0))

    seeds, count = sorted(set().union(*tasks)), sum(len(episodes) for of_task in of_tasks for episodes in of_task)
    estimate = Estimate(float(value), bootstrap(mean, [np.arange(count) for count in counts]))
    return ErrorDifference(env, first, second, tuple(seeds), count, estimate)
