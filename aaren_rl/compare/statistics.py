"""Statistics over training seeds, with intervals that claim no more than so few seeds can tell.

Of scores, and of the error on held-out episodes. Means, stratified bootstrap and probability of improvement are those
of Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice"; they are tested against
its library, rliable.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy import stats

from ..evaluate.scores import ActionError, Estimate, bootstrap, episodes_mean
from ..policies.table import AGENTS
from .measure import Cell

Floats = npt.NDArray[np.float64]
Statistic = Callable[..., Floats]  # of strata, (..., N) each

RESAMPLES = 10_000
# Resampled, two scores have only three means, and one has a single one: an interval would show nothing but the scores.
MIN_SEEDS = 3


@dataclass(frozen=True)
class Summary:
    """One agent on one task, over its training seeds.

    Attributes:
        scores: after the last gradient step, seed by seed: normalized scores, or returns where there is no reference.
        std: the scores' standard deviation with n - 1 in the denominator; None for one seed.
        iqm: interquartile mean: of the scores without the lowest and the highest quarter (rounded down).
        best: mean of the best score during training; None where a seed has none.
        mean_of_last: mean of the mean of the last evaluations.
    """

    env: str
    agent: str
    seeds: tuple[int, ...]
    scores: tuple[float, ...]
    normalized: bool
    mean: Estimate
    std: float | None
    iqm: Estimate
    best: float | None
    mean_of_last: float


@dataclass(frozen=True)
class Aggregate:
    """One agent over several tasks: the mean of the tasks' means, and the interquartile mean of all runs.

    Tasks have equal weight in both.
    """

    agent: str
    envs: tuple[str, ...]
    runs: int
    mean: Estimate
    iqm: Estimate


@dataclass(frozen=True)
class Pair:
    """Two agents on one task, or on average over the tasks that have both (`env` None)."""

    env: str | None
    first: str
    second: str
    estimate: Estimate


def group(cells: Sequence[Cell]) -> dict[str, dict[str, list[Cell]]]:
    """Task -> agent -> runs by training seed; tasks in order of appearance."""
    known = agents_of(cells)
    groups: dict[str, dict[str, list[Cell]]] = {cell.env: {} for cell in cells}
    for cell in sorted(cells, key=lambda cell: (known.index(cell.agent), cell.seed)):
        groups[cell.env].setdefault(cell.agent, []).append(cell)
    return groups


def rows_of(cells: Sequence[Cell]) -> list[tuple[str, str, list[Cell]]]:
    """Task, agent and runs, in the order of `group`."""
    return [(env, agent, runs) for env, by_agent in group(cells).items() for agent, runs in by_agent.items()]


def agents_of(cells: Sequence[Cell]) -> list[str]:
    """The agents, in the package's order."""
    there = {cell.agent for cell in cells}
    return [agent for agent in AGENTS if agent in there]


def summarize(cells: Sequence[Cell]) -> list[Summary]:
    """Every agent on every task."""
    return [_summary(*row) for row in rows_of(cells)]


def aggregate(cells: Sequence[Cell]) -> list[Aggregate]:
    """Every agent over the tasks that all agents have normalized scores of; nothing where those are fewer than two."""
    groups, agents, found = group(cells), agents_of(cells), []
    envs = [env for env, of in groups.items() if len(of) == len(agents) and all(map(_normalized, of.values()))]
    for agent in agents if len(envs) > 1 else ():
        scores = [_scores(groups[env][agent]) for env in envs]
        means = _estimate(mean_of_means, scores), _estimate(_interquartile_mean, scores)
        found.append(Aggregate(agent, tuple(envs), sum(map(len, scores)), *means))
    return found


def improvements(cells: Sequence[Cell]) -> list[Pair]:
    """How probable it is that a run of the first agent scores above one of the second, by task, then over them."""
    return compared(cells, _superiority)


def compared(cells: Sequence[Cell], statistic: Statistic) -> list[Pair]:
    """A statistic of every two agents by task, then over the tasks that have both.

    It takes the scores of the first, of the second, of the first on the next task, and so on, (..., N) each.
    """
    groups, agents, found = group(cells), agents_of(cells), []
    for pair in combinations(agents, 2):
        both = {env: of for env, of in groups.items() if set(pair) <= set(of)}
        strata: dict[str | None, list[Floats]] = {env: [_scores(of[a]) for a in pair] for env, of in both.items()}
        if len(strata) > 1:
            strata[None] = [scores for of_task in strata.values() for scores in of_task]
        for env, scores in strata.items():
            found.append(Pair(env, *pair, _estimate(statistic, scores)))
    return found


def _summary(env: str, agent: str, runs: list[Cell]) -> Summary:
    scores = _scores(runs)
    best = [value for cell in runs if (value := cell.best_headline) is not None]
    return Summary(
        env=env,
        agent=agent,
        seeds=tuple(cell.seed for cell in runs),
        scores=tuple(scores.tolist()),
        normalized=_normalized(runs),
        mean=_estimate(mean_of_means, [scores]),
        std=None if len(runs) == 1 else float(scores.std(ddof=1)),
        iqm=_estimate(_interquartile_mean, [scores]),
        best=float(np.mean(best)) if len(best) == len(runs) else None,
        mean_of_last=float(np.mean([cell.mean_of_last for cell in runs])),
    )


def _scores(runs: list[Cell]) -> Floats:
    return np.array([cell.last.headline for cell in runs])


def _normalized(runs: list[Cell]) -> bool:
    return all(cell.last.normalized_score_mean is not None for cell in runs)


def _estimate(statistic: Statistic, strata: Sequence[Floats]) -> Estimate:
    several = min(map(len, strata)) >= MIN_SEEDS
    return Estimate(float(statistic(*strata)), bootstrap(statistic, strata, RESAMPLES) if several else None)


def mean_of_means(*strata: Floats) -> Floats:
    """The mean over tasks of the means of their runs (..., N): (...)."""
    return np.asarray(np.mean([stratum.mean(axis=-1) for stratum in strata], axis=0))


def _interquartile_mean(*strata: Floats) -> Floats:
    # Tasks have equal weight also where one has more runs: 1 and 3 runs count as 3 and 3.
    count = math.lcm(*(stratum.shape[-1] for stratum in strata))
    even = [np.repeat(stratum, count // stratum.shape[-1], axis=-1) for stratum in strata]
    return np.asarray(stats.trim_mean(np.concatenate(even, axis=-1), 0.25, axis=-1))


def _superiority(*strata: Floats) -> Floats:
    """Mann and Whitney's U over the number of pairs, averaged over tasks."""
    pairs = zip(strata[::2], strata[1::2], strict=True)
    signs = [np.sign(first[..., :, None] - second[..., None, :]).mean(axis=(-2, -1)) for first, second in pairs]
    return np.asarray(np.mean([0.5 + 0.5 * sign for sign in signs], axis=0))


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


def imitation(cells: Sequence[Cell]) -> list[Imitation]:
    """Every agent on every task, where episodes were held out of any of its runs."""
    return [_imitation(env, agent, errors) for env, agent, runs in rows_of(cells) if (errors := action_errors(runs))]


def action_errors(runs: Sequence[Cell]) -> dict[int, ActionError]:
    """By training seed, where episodes were held out."""
    return {cell.seed: cell.last.action_error for cell in runs if cell.last.action_error is not None}


def _imitation(env: str, agent: str, errors: dict[int, ActionError]) -> Imitation:
    found = list(errors.values())
    episodes = [error.episodes() for error in found]

    def mean(*drawn: npt.NDArray[np.int64]) -> Floats:
        of_seeds = [episodes_mean(of_seed[i]) for of_seed, i in zip(episodes, drawn, strict=True)]
        return np.asarray(np.mean(of_seeds, axis=0))

    low, high = bootstrap(mean, [np.arange(len(of_seed)) for of_seed in episodes])
    value = float(np.mean([error.mean for error in found]))
    floors = [error.floor for error in found if error.floor is not None]
    floor = float(np.mean(floors)) if len(floors) == len(found) else None
    above = None if floor is None else Estimate(value - floor, (low - floor, high - floor))
    rates = [error.accuracy for error in found if error.accuracy is not None]
    accuracy = float(np.mean(rates)) if rates else None
    estimate = Estimate(value, (low, high))
    return Imitation(env, agent, tuple(errors), sum(map(len, episodes)), estimate, above, found[0].measure, accuracy)
