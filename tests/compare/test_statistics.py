"""Statistics over training seeds: by hand, and beside rliable on the same numbers."""

import dataclasses
import math
from itertools import combinations

import numpy as np
import pytest
from rliable import library, metrics
from scipy import stats
from synthetic import README, make_cell, make_cells
from table1_statistics import differences

from aaren_rl.compare.statistics import Estimate, aggregate, group, improvements, summarize

AGENTS = ("decision-aaren", "decision-transformer")
ENVS = ["hopper-medium", "walker2d-medium", "halfcheetah-medium"]
# What lies below a 2.5 % quantile of 10,000 resamples, of 1,000 others: standard deviation 0.005.
RESAMPLES, RESAMPLING_ERROR = 1_000, 0.016


def random_cells(runs=(5, 5)):
    """Runs of two agents on three tasks, and their scores (runs, tasks)."""
    rng = np.random.default_rng(0)
    means, deviations = ([70, 40, 42], [60, 42, 42]), ([10, 5, 2], [12, 5, 2])
    matrices = dict(zip(AGENTS, map(rng.normal, means, deviations, [(count, 3) for count in runs]), strict=True))
    by_env = [{agent: matrix[:, i].tolist() for agent, matrix in matrices.items()} for i in range(3)]
    return [cell for env, scores in zip(ENVS, by_env, strict=True) for cell in make_cells(scores, env=env)], matrices


def assert_same(ours: Estimate, metric, *scores):
    """The value is rliable's, and of its resamples 2.5 % lie below the interval and 2.5 % above it.

    Its own interval is not compared: resamples of few runs have few values, and a quantile jumps from one to the next.
    """
    assert ours.value == pytest.approx(metric(*scores), rel=1e-12)
    kind = library.StratifiedBootstrap if len(scores) == 1 else library.StratifiedIndependentBootstrap
    np.random.seed(0)  # rliable draws from NumPy's global generator, whatever random state it is given
    resamples = kind(*scores).apply(lambda *x: np.array([metric(*x)]), RESAMPLES)
    low, high = ours.interval
    for outside in (low - resamples, resamples - high):
        beyond, up_to = np.mean(outside > 1e-9), np.mean(outside > -1e-9)
        assert beyond - RESAMPLING_ERROR < 0.025 < up_to + RESAMPLING_ERROR


def test_a_summary_by_hand():
    (summary,) = summarize(make_cells({"decision-aaren": [1.0, 2.0, 3.0, 10.0]}))
    assert (summary.env, summary.agent, summary.seeds) == ("hopper-medium", "decision-aaren", (0, 1, 2, 3))
    assert summary.scores == (1.0, 2.0, 3.0, 10.0) and summary.normalized
    assert (summary.mean.value, summary.iqm.value, summary.best) == (4.0, 2.5, 11.5)
    assert summary.std == pytest.approx(math.sqrt((9 + 4 + 1 + 36) / 3))
    assert (summary.mean_of_last, summary.mean_of) == (2.75, (3,))
    first, second = make_cells({"decision-aaren": [1.0, 2.0]})
    (summary,) = summarize([first, dataclasses.replace(second, mean_of=2, best=None)])
    assert (summary.mean_of_last, summary.mean_of, summary.best) == (0.25, (2, 3), None)


def test_means_as_rliable_has_them():
    cells, matrices = random_cells()
    summary, found = summarize(cells)[0], aggregate(cells)
    assert_same(summary.mean, metrics.aggregate_mean, matrices[summary.agent][:, :1])
    assert_same(summary.iqm, metrics.aggregate_iqm, matrices[summary.agent][:, :1])
    assert [(a.agent, a.envs, a.runs) for a in found] == [(agent, tuple(ENVS), 15) for agent in matrices]
    for over in found:
        assert_same(over.mean, metrics.aggregate_mean, matrices[over.agent])
        assert_same(over.iqm, metrics.aggregate_iqm, matrices[over.agent])


def test_tasks_have_equal_weight_whatever_their_numbers_of_runs():
    """One run of 0 on a task weighs as much as three of 6, 7 and 8 on another: of 0, 0, 0, 6, 7, 8 the middle four."""
    cells = make_cells({"bc": [0.0]}) + make_cells({"bc": [6.0, 7.0, 8.0]}, env=ENVS[1])
    (over,) = aggregate(cells)
    assert (over.mean.value, over.iqm.value, over.runs) == (3.5, 13 / 4, 4)


BETTER, FURTHER = metrics.probability_of_improvement, lambda first, second: first.mean() - second.mean()


@pytest.mark.parametrize(("compared", "metric"), [(improvements, BETTER), (differences, FURTHER)])
@pytest.mark.slow
def test_pairs_as_rliable_has_them(compared, metric):
    cells, matrices = random_cells(runs=(5, 4))
    first, second = matrices.values()
    *by_task, over = compared(cells)
    assert [pair.env for pair in by_task] == ENVS and over.env is None
    assert (over.first, over.second, over.runs, by_task[0].runs) == (*AGENTS, (15, 12), (5, 4))
    for column, found in enumerate(by_task):
        assert_same(found.estimate, metric, first[:, [column]], second[:, [column]])
    assert_same(over.estimate, metric, first, second)


def test_improvement_is_mann_and_whitneys_where_a_tie_counts_half():
    scores = [2.0, 3.0, 4.0], [1.0, 3.0]
    (found,) = improvements(make_cells(dict(zip(AGENTS, scores, strict=True))))
    assert found.estimate.value == stats.mannwhitneyu(*scores).statistic / 6


def test_too_few_seeds_have_no_interval():
    cells = make_cells({"decision-aaren": [50.0, 60.0], "decision-transformer": [40.0] * 5})
    aaren, transformer = summarize(cells)
    assert aaren.mean.interval is None and aaren.iqm.interval is None and summarize(cells[:1])[0].std is None
    assert transformer.mean.interval == (40.0, 40.0)
    assert improvements(cells)[0].estimate == Estimate(1.0, None)
    assert aggregate(cells + make_cells({agent: [9.0] * 5 for agent in README}, env=ENVS[1]))[0].mean.interval is None


def test_returns_are_summarized_but_not_averaged_over_tasks():
    cells = make_cells(README, reference=None) + make_cells(README, env=ENVS[1]) + make_cells(README, env=ENVS[2])
    assert [s.normalized for s in summarize(cells)] == [False, False, True, True, True, True]
    assert summarize(cells)[0].mean.value == pytest.approx(np.mean(README["decision-aaren"]))
    assert [a.envs for a in aggregate(cells)] == [tuple(ENVS[1:])] * 2
    assert [d.env for d in differences(cells)] == [*ENVS[1:], None]
    assert aggregate(cells[:12]) == []
    lacking = [cell for cell in cells if (cell.env, cell.agent) != (ENVS[1], AGENTS[1])]
    assert aggregate(lacking) == [] and [i.env for i in improvements(lacking)] == [ENVS[0], ENVS[2], None]


def test_groups_are_in_order_whatever_the_order_of_the_runs():
    agents = ["decision-aaren", "decision-transformer", "bc"]
    cells = [make_cell(agent=a, seed=seed, env=env) for env in ENVS[:2] for seed in (2, 0, 1) for a in agents[::-1]]
    found = {env: {a: [cell.seed for cell in runs] for a, runs in of.items()} for env, of in group(cells).items()}
    assert [(env, *of.items()) for env, of in found.items()] == [
        (e, *((a, [0, 1, 2]) for a in agents)) for e in ENVS[:2]
    ]
    assert [(i.first, i.second) for i in improvements(cells) if i.env is None] == list(combinations(agents, 2))
