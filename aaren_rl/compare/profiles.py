"""Performance profiles of Agarwal et al. 2021: the share of runs that score above a threshold, against the threshold.

The tests hold them against the authors' library, rliable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .cells import Cell
from .statistics import CONFIDENCE, MIN_SEEDS, Floats, shared_scores

RESAMPLES = 2_000  # of a whole curve


@dataclass(frozen=True)
class Profile:
    """The share of an agent's runs that score above a threshold, over tasks of equal weight; a performance profile.

    Attributes:
        agent: the agent.
        thresholds: normalised scores, ascending, (T,).
        shares: of the runs, from 1 down to 0, (T,).
        low: the lower end of a pointwise 95 % interval, (T,); as `shares` where a task has fewer than `MIN_SEEDS` runs.
        high: the upper end, (T,).
    """

    agent: str
    thresholds: Floats
    shares: Floats
    low: Floats
    high: Floats


def profiles(cells: Sequence[Cell], thresholds: Floats, seed: int = 0) -> list[Profile]:
    """Every agent's performance profile over the tasks that `aggregate` takes; nothing where there are none."""
    envs, strata = shared_scores(cells)
    return [_profile(agent, scores, thresholds, seed) for agent, scores in strata.items() if envs]


def _profile(agent: str, strata: list[Floats], thresholds: Floats, seed: int) -> Profile:
    shares = _shares(thresholds, *strata)
    if min(map(len, strata)) < MIN_SEEDS:
        return Profile(agent, thresholds, shares, shares, shares)
    rng = np.random.default_rng(seed)
    drawn = [scores[rng.integers(len(scores), size=(RESAMPLES, len(scores)))] for scores in strata]
    low, high = np.quantile(_shares(thresholds, *drawn), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return Profile(agent, thresholds, shares, low, high)


def _shares(thresholds: Floats, *strata: Floats) -> Floats:
    """Scores (..., S) of every task to shares above the thresholds, (..., T)."""
    return np.asarray(np.mean([(s[..., None] > thresholds).mean(axis=-2) for s in strata], axis=0))
