"""Statistics over training seeds, with intervals that claim no more than so few seeds can tell.

Mean, interquartile mean, stratified bootstrap and probability of improvement are those of Agarwal et al. 2021, "Deep
Reinforcement Learning at the Edge of the Statistical Precipice"; the tests hold them against its library, rliable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy import stats

from ..policies.names import AGENTS
from .cells import Cell

Floats = npt.NDArray[np.float64]

CONFIDENCE = 0.95
RESAMPLES = 10_000
# Resampled, two scores have only three means, and one has a single one: an interval would show nothing but the scores.
MIN_SEEDS = 3


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % bootstrap interval (low, high).

    The interval is None where a task has fewer than `MIN_SEEDS` training seeds. From few seeds it is too narrow: of
    three, it reaches from the worst to the best and no further.
    """

    value: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Summary:
    """One agent on one task, over its training seeds.

    Attributes:
        env: the task.
        agent: the agent.
        seeds: the training seeds, ascending.
        scores: of the last update, seed by seed: normalised scores, or returns where there is no reference.
        normalized: which of the two.
        mean: of the scores.
        std: their standard deviation over seeds with n - 1 in the denominator; None for one seed.
        iqm: interquartile mean: of the scores without the lowest and the highest quarter (rounded down).
        best: mean over seeds of the best score during training; None where a seed has none.
        mean_of_last: mean over seeds of the mean of the last evaluations; None where a seed has none.
        mean_of: how many evaluations those are: one count, or several where it differs between seeds.
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
    mean_of_last: float | None
    mean_of: tuple[int, ...]


@dataclass(frozen=True)
class Aggregate:
    """One agent over several tasks: the mean of the tasks' means, and the interquartile mean of all runs."""

    agent: str
    envs: tuple[str, ...]
    runs: int
    mean: Estimate
    iqm: Estimate


@dataclass(frozen=True)
class Improvement:
    """How probable it is that a run of `first` scores above a run of `second`, ties counting half.

    Attributes:
        env: the task; None: the mean over all tasks that have runs of both agents.
        first: an agent.
        second: another.
        runs: how many of each there are.
        probability: 0.5 where neither is better.
    """

    env: str | None
    first: str
    second: str
    runs: tuple[int, int]
    probability: Estimate


@dataclass(frozen=True)
class Difference:
    """The mean score of `first` less that of `second`; above 0, `first` is better.

    Attributes:
        env: the task; None: the mean over all tasks that have normalised scores of both agents.
        first: an agent.
        second: another.
        runs: how many of each there are.
        difference: of the means over training seeds.
    """

    env: str | None
    first: str
    second: str
    runs: tuple[int, int]
    difference: Estimate


def group(cells: Sequence[Cell]) -> dict[str, dict[str, list[Cell]]]:
    """Task -> agent -> runs by training seed; tasks in order of appearance, the package's agents before others."""
    known = [*AGENTS, *(cell.agent for cell in cells)]
    ordered = sorted(cells, key=lambda cell: (known.index(cell.agent), cell.seed))
    return {
        env: {
            agent: [cell for cell in ordered if (cell.env, cell.agent) == (env, agent)]
            for agent in dict.fromkeys(cell.agent for cell in ordered if cell.env == env)
        }
        for env in dict.fromkeys(cell.env for cell in cells)
    }


def summarize(cells: Sequence[Cell], seed: int = 0) -> list[Summary]:
    """Every agent on every task. `seed` is the bootstrap's, which makes the intervals repeatable."""
    return [
        _summary(env, agent, runs, seed) for env, by_agent in group(cells).items() for agent, runs in by_agent.items()
    ]


def aggregate(cells: Sequence[Cell], seed: int = 0) -> list[Aggregate]:
    """Every agent over the tasks that all agents have normalised scores of; nothing where those are fewer than two.

    Returns of different tasks have different units, so tasks without normalised scores are left out.
    """
    envs, strata = shared_scores(cells)
    if len(envs) < 2:
        return []
    return [
        Aggregate(
            agent,
            tuple(envs),
            sum(map(len, scores)),
            _estimate(_mean_of_means, scores, seed),
            _estimate(_interquartile_mean, scores, seed),
        )
        for agent, scores in strata.items()
    ]


def shared_scores(cells: Sequence[Cell]) -> tuple[list[str], dict[str, list[Floats]]]:
    """The tasks that all agents have normalised scores of, and every agent's scores on them, a task after another."""
    groups = group(cells)
    agents = _agents(groups)
    envs = [
        env
        for env, by_agent in groups.items()
        if len(by_agent) == len(agents) and all(map(_normalized, by_agent.values()))
    ]
    return envs, {agent: [_scores(groups[env][agent]) for env in envs] for agent in agents}


def differences(cells: Sequence[Cell], seed: int = 0) -> list[Difference]:
    """Every pair of agents on every task that has normalised scores of both, then over these tasks where several."""
    return [
        Difference(env, first, second, runs, _estimate(_mean_difference, strata, seed))
        for env, first, second, runs, strata in _pairs(cells, normalized=True)
    ]


def improvements(cells: Sequence[Cell], seed: int = 0) -> list[Improvement]:
    """Every pair of agents on every task that has both, then the mean over these tasks where there are several."""
    return [
        Improvement(env, first, second, runs, _estimate(_superiority, strata, seed))
        for env, first, second, runs, strata in _pairs(cells, normalized=False)
    ]


def _pairs(
    cells: Sequence[Cell], *, normalized: bool
) -> Iterator[tuple[str | None, str, str, tuple[int, int], list[Floats]]]:
    """Task, two agents, how many runs of each and their scores (first, second, first, ...); None is all tasks."""
    groups = group(cells)
    agents = _agents(groups)
    for first, second in combinations(sorted(agents, key=[*AGENTS, *agents].index), 2):
        both = {
            env: (by_agent[first], by_agent[second])
            for env, by_agent in groups.items()
            if {first, second} <= set(by_agent)
        }
        if normalized:
            both = {env: pair for env, pair in both.items() if all(map(_normalized, pair))}
        strata: dict[str | None, list[Floats]] = {env: list(map(_scores, pair)) for env, pair in both.items()}
        if len(strata) > 1:
            strata[None] = [scores for pair in strata.values() for scores in pair]
        for env, scores in strata.items():
            yield env, first, second, (sum(map(len, scores[::2])), sum(map(len, scores[1::2]))), scores


def _agents(groups: Mapping[str, Mapping[str, Sequence[Cell]]]) -> list[str]:
    return list(dict.fromkeys(agent for by_agent in groups.values() for agent in by_agent))


def _summary(env: str, agent: str, runs: list[Cell], seed: int) -> Summary:
    scores = _scores(runs)
    best = [value for cell in runs if (value := cell.best_headline) is not None]
    counts = tuple(sorted({cell.mean_of for cell in runs}))
    return Summary(
        env=env,
        agent=agent,
        seeds=tuple(cell.seed for cell in runs),
        scores=tuple(scores.tolist()),
        normalized=_normalized(runs),
        mean=_estimate(_mean_of_means, [scores], seed),
        std=None if len(runs) == 1 else float(scores.std(ddof=1)),
        iqm=_estimate(_interquartile_mean, [scores], seed),
        best=float(np.mean(best)) if len(best) == len(runs) else None,
        mean_of_last=float(np.mean([cell.mean_of_last for cell in runs])) if counts[0] else None,
        mean_of=counts,
    )


def _scores(runs: list[Cell]) -> Floats:
    return np.array([cell.last.headline for cell in runs])


def _normalized(runs: list[Cell]) -> bool:
    return all(cell.last.normalized_score_mean is not None for cell in runs)


def _estimate(statistic: Callable[..., Floats], strata: list[Floats], seed: int) -> Estimate:
    """`statistic(*strata, axis=-1)` with its interval: every stratum is resampled on its own."""
    value = float(statistic(*strata, axis=-1))
    if min(map(len, strata)) < MIN_SEEDS:
        return Estimate(value, None)
    found = stats.bootstrap(
        strata,
        statistic,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        vectorized=True,
        axis=-1,
        # Of rliable's methods the one that is defined for scores that are all alike, too.
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Estimate(value, (float(found.low), float(found.high)))


def _mean_of_means(*strata: Floats, axis: int) -> Floats:
    return np.asarray(np.mean([stratum.mean(axis=axis) for stratum in strata], axis=0))


def _mean_difference(*strata: Floats, axis: int) -> Floats:
    """Of the means over tasks; strata: first, second, first, second, ..."""
    return _mean_of_means(*strata[::2], axis=axis) - _mean_of_means(*strata[1::2], axis=axis)


def _interquartile_mean(*strata: Floats, axis: int) -> Floats:
    return np.asarray(stats.trim_mean(np.concatenate(strata, axis=axis), 0.25, axis=axis))


def _superiority(*strata: Floats, axis: int) -> Floats:
    """Mann and Whitney's U over the number of pairs, averaged over tasks; strata: first, second, first, second, ..."""
    if axis != -1:
        raise ValueError(f"axis: -1, not {axis}")
    probabilities = []
    for first, second in zip(strata[::2], strata[1::2], strict=True):
        difference = first[..., :, None] - second[..., None, :]
        probabilities.append(0.5 + 0.5 * np.sign(difference).mean(axis=(-2, -1)))
    return np.asarray(np.mean(probabilities, axis=0))
