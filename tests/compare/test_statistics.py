"""Statistics over training seeds: by hand, and beside rliable on the same numbers."""

import dataclasses
import math

import numpy as np
import pytest
from rliable import library, metrics
from scipy import stats
from synthetic import README, make_cell, make_cells

from aaren_rl.compare.statistics import Estimate, aggregate, differences, group, improvements, profiles, summarize

ENVS = ["hopper-medium", "walker2d-medium", "halfcheetah-medium"]
# What lies below a 2.5 % quantile of 10,000 resamples, of 1,000 others: standard deviation 0.005.
RESAMPLES, RESAMPLING_ERROR = 1_000, 0.016


def random_cells(runs=(5, 5)):
    """Runs of two agents on three tasks, and their scores (runs, tasks)."""
    rng = np.random.default_rng(0)
    matrices = {
        "decision-aaren": rng.normal([70, 40, 42], [10, 5, 2], (runs[0], 3)),
        "decision-transformer": rng.normal([60, 42, 42], [12, 5, 2], (runs[1], 3)),
    }
    cells = []
    for column, env in enumerate(ENVS):
        cells += make_cells({agent: matrix[:, column].tolist() for agent, matrix in matrices.items()}, env=env)
    return cells, matrices


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
    assert summary.mean.value == 4.0
    assert summary.std == pytest.approx(math.sqrt((9 + 4 + 1 + 36) / 3))
    assert summary.iqm.value == 2.5
    assert summary.best == 11.5
    assert (summary.mean_of_last, summary.mean_of) == (2.75, (3,))


def test_one_task_as_rliable_has_it():
    cells, matrices = random_cells()
    summary = summarize(cells)[0]
    scores = matrices[summary.agent][:, :1]
    assert_same(summary.mean, metrics.aggregate_mean, scores)
    assert_same(summary.iqm, metrics.aggregate_iqm, scores)


def test_all_tasks_as_rliable_has_them():
    cells, matrices = random_cells()
    found = aggregate(cells)
    assert [(a.agent, a.envs, a.runs) for a in found] == [(agent, tuple(ENVS), 15) for agent in matrices]
    for over in found:
        assert_same(over.mean, metrics.aggregate_mean, matrices[over.agent])
        assert_same(over.iqm, metrics.aggregate_iqm, matrices[over.agent])


def test_tasks_are_strata():
    # Runs of a task are all alike: resampled within their task they have one mean, resampled among all many.
    cells = [cell for i, env in enumerate(ENVS) for cell in make_cells({"decision-aaren": [10.0 * i] * 4}, env=env)]
    (over,) = aggregate(cells)
    assert over.mean == Estimate(10.0, (10.0, 10.0))
    assert over.iqm == Estimate(10.0, (10.0, 10.0))


def test_a_mean_over_tasks_weighs_them_alike_whatever_their_seeds():
    cells = make_cells({"decision-aaren": [10.0] * 3}) + make_cells({"decision-aaren": [20.0] * 9}, env=ENVS[1])
    assert aggregate(cells)[0].mean.value == 15.0


def test_improvement_as_rliable_and_mann_and_whitney_have_it():
    cells, matrices = random_cells(runs=(5, 4))
    first, second = matrices.values()
    *by_task, over = improvements(cells)
    assert [i.env for i in by_task] == ENVS and over.env is None
    assert (over.first, over.second, over.runs) == ("decision-aaren", "decision-transformer", (15, 12))
    for column, found in enumerate(by_task):
        assert found.runs == (5, 4)
        u = stats.mannwhitneyu(first[:, column], second[:, column]).statistic
        assert found.estimate.value == pytest.approx(u / 20, rel=1e-12)
    assert_same(over.estimate, metrics.probability_of_improvement, first, second)


def test_differences_as_rliable_has_them():
    cells, matrices = random_cells(runs=(5, 4))
    first, second = matrices.values()
    *by_task, over = differences(cells)
    assert [d.env for d in by_task] == ENVS and over.env is None
    assert (over.first, over.second, over.runs) == ("decision-aaren", "decision-transformer", (15, 12))

    def difference(a, b):
        return a.mean() - b.mean()

    for column, found in enumerate(by_task):
        assert found.runs == (5, 4)
        assert_same(found.estimate, difference, first[:, [column]], second[:, [column]])
    assert_same(over.estimate, difference, first, second)


def test_a_difference_needs_normalised_scores_of_both():
    cells = make_cells(README, reference=None) + make_cells(README, env=ENVS[1])
    (found,) = differences(cells)
    assert (found.env, found.estimate.value) == (ENVS[1], pytest.approx(np.subtract(*map(np.mean, README.values()))))
    assert len(improvements(cells)) == 3  # two tasks, and over both


def test_profiles_as_rliable_has_them():
    cells, matrices = random_cells()
    thresholds = np.linspace(0, 100, 21)
    np.random.seed(0)
    values, intervals = library.create_performance_profile(matrices, thresholds, reps=2_000)
    for found in profiles(cells, thresholds):
        np.testing.assert_allclose(found.shares, values[found.agent], rtol=1e-12)
        np.testing.assert_allclose([found.low, found.high], intervals[found.agent], atol=0.07)  # steps of 1/15
        assert (found.low <= found.shares).all() and (found.shares <= found.high).all() and found.low.min() == 0


def test_profiles_by_hand():
    (found,) = profiles(make_cells({"decision-aaren": [10.0, 30.0]}), np.array([0.0, 10.0, 20.0, 30.0]))
    assert found.shares.tolist() == found.low.tolist() == found.high.tolist() == [1.0, 0.5, 0.5, 0.0]
    assert profiles(make_cells(README, reference=None), np.array([0.0])) == []


@pytest.mark.parametrize(
    ("first", "second", "probability"),
    [
        ([2.0, 3.0, 4.0], [1.0, 1.5, 0.0], 1.0),
        ([1.0, 3.0], [2.0, 2.0], 0.5),
        ([2.0, 3.0], [1.0, 2.0], 0.875),  # three pairs won, one tied
        ([1.0], [1.0], 0.5),
        ([0.0], [1.0], 0.0),
    ],
)
def test_a_tie_counts_half(first, second, probability):
    (found,) = improvements(make_cells({"decision-aaren": first, "decision-transformer": second}))
    assert found.estimate.value == probability


def test_three_seeds_reach_from_the_worst_to_the_best():
    aaren, transformer = summarize(make_cells(README))
    assert aaren.mean.interval == pytest.approx((63.8, 83.7)) and aaren.iqm.interval == pytest.approx((63.8, 83.7))
    assert transformer.mean.interval == pytest.approx((41.1, 68.7))


@pytest.mark.parametrize("scores", [[50.0], [50.0, 60.0]])
def test_too_few_seeds_have_no_interval(scores):
    cells = make_cells({"decision-aaren": scores, "decision-transformer": [40.0] * 5})
    aaren, transformer = summarize(cells)
    assert aaren.mean.interval is None and aaren.iqm.interval is None
    assert transformer.mean.interval == (40.0, 40.0)
    assert (aaren.std is None) == (len(scores) == 1)
    assert improvements(cells)[0].estimate == Estimate(1.0, None)
    assert aggregate(cells + make_cells({agent: [9.0] * 5 for agent in README}, env=ENVS[1]))[0].mean.interval is None


def test_intervals_are_repeatable_and_depend_on_the_seed():
    cells, _ = random_cells()
    assert summarize(cells) == summarize(cells)
    assert summarize(cells, seed=1) != summarize(cells)


def test_returns_are_summarized_but_not_averaged_over_tasks():
    cells = make_cells(README, reference=None) + make_cells(README, env=ENVS[1]) + make_cells(README, env=ENVS[2])
    assert [s.normalized for s in summarize(cells)] == [False, False, True, True, True, True]
    assert summarize(cells)[0].mean.value == pytest.approx(np.mean(README["decision-aaren"]))
    assert [a.envs for a in aggregate(cells)] == [tuple(ENVS[1:])] * 2
    assert aggregate(cells[:12]) == []


def test_a_mean_over_tasks_leaves_out_a_task_that_an_agent_lacks():
    cells = [cell for env in ENVS for cell in make_cells(README, env=env)]
    cells = [cell for cell in cells if (cell.env, cell.agent) != (ENVS[0], "decision-transformer")]
    assert [a.envs for a in aggregate(cells)] == [tuple(ENVS[1:])] * 2
    assert [i.env for i in improvements(cells)] == [*ENVS[1:], None]


def test_runs_without_evaluations_during_training_have_no_mean_of_the_last():
    first, second = make_cells({"decision-aaren": [1.0, 2.0]})
    (summary,) = summarize([first, dataclasses.replace(second, mean_of=0)])
    assert (summary.mean_of_last, summary.mean_of) == (None, (0, 3))


def test_weights_that_nobody_scored_have_no_best():
    first, second = make_cells({"decision-aaren": [1.0, 2.0]})
    assert summarize([first, dataclasses.replace(second, best=None)])[0].best is None


def test_groups_are_in_order_whatever_the_order_of_the_runs():
    cells = [
        make_cell(agent=agent, seed=seed, env=env)
        for env in ENVS[:2]
        for seed in (2, 0, 1)
        for agent in ("another", "decision-transformer", "decision-aaren")
    ]
    groups = group(cells)
    assert list(groups) == ENVS[:2]
    for by_agent in groups.values():
        assert list(by_agent) == ["decision-aaren", "decision-transformer", "another"]
        assert [[cell.seed for cell in runs] for runs in by_agent.values()] == [[0, 1, 2]] * 3
    assert [(i.first, i.second) for i in improvements(cells) if i.env is None] == [
        ("decision-aaren", "decision-transformer"),
        ("decision-aaren", "another"),
        ("decision-transformer", "another"),
    ]
