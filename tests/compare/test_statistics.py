"""Statistics over training seeds: by hand, and beside rliable on the same numbers."""

import dataclasses
import math
from itertools import combinations

import numpy as np
import pytest
from rliable import library, metrics
from scipy import stats
from synthetic import README, make_cell, make_cells
from table1_statistics import differences, error_difference_over_tasks, error_differences

from aaren_rl.compare.measure import Cell
from aaren_rl.compare.report import format_comparison
from aaren_rl.compare.statistics import Estimate, aggregate, group, imitation, improvements, summarize
from aaren_rl.evaluate.scores import ActionError

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
    assert summary.mean_of_last == 2.75
    first, second = make_cells({"decision-aaren": [1.0, 2.0]})
    (summary,) = summarize([first, dataclasses.replace(second, best=None)])
    assert (summary.mean_of_last, summary.best) == (0.25, None)


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
    assert (over.first, over.second) == AGENTS
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
    assert found == {env: {agent: [0, 1, 2] for agent in agents} for env in ENVS[:2]}
    assert list(found) == ENVS[:2] and list(found[ENVS[0]]) == agents
    assert [(i.first, i.second) for i in improvements(cells) if i.env is None] == list(combinations(agents, 2))


def with_error(
    error: ActionError | None, agent: str = AGENTS[0], seed: int = 0, env: str = "hopper-medium", mean: float = 30.0
) -> Cell:
    """`mean` is the mean return of all its data."""
    return make_cell(agent=agent, seed=seed, env=env, action_error=error, data_returns={"mean": mean})


def two_agents(episodes: int = 30) -> list[Cell]:
    """Episodes differ by far more than the agents do: `first` errs by 0.01 less a step, whatever the episode."""
    rng, cells = np.random.default_rng(0), []
    for seed in range(3):
        lengths, per_step = rng.integers(5, 50, episodes), rng.uniform(0.1, 1.0, episodes)
        for agent, more in zip(AGENTS, (0.0, 0.01), strict=True):
            noise = rng.normal(0, 0.001, episodes)
            error = ActionError((lengths * (per_step + more + noise)).tolist(), lengths.tolist(), floor=0.02)
            cells.append(with_error(error, agent, seed))
    return cells


def test_an_agents_error_by_hand():
    known = [ActionError([1.0, 2.0, 6.0], [10, 10, 20], floor=0.1), ActionError([1.0, 1.0], [2, 2], floor=0.3), None]
    cells = [with_error(error, seed=seed) for seed, error in enumerate(known)]
    (found,) = imitation(cells)
    assert (found.env, found.agent, found.seeds, found.episodes) == ("hopper-medium", AGENTS[0], (0, 1), 5)
    assert found.error.value == pytest.approx((9 / 40 + 0.5) / 2)
    assert found.above_floor.value == pytest.approx(found.error.value - 0.2)
    low, high = found.error.interval
    # The second seed's episodes are alike; the first's are from 0.1 to 0.3 a step.
    assert 0.3 <= low < found.error.value < high <= 0.4
    assert found.above_floor.interval == pytest.approx((low - 0.2, high - 0.2))
    assert imitation([*cells, with_error(ActionError([1.0], [2]), seed=3)])[0].above_floor is None


def test_paired_episodes_tell_apart_what_means_do_not():
    cells = two_agents()
    first, second = (i.error for i in imitation(cells))
    assert first.interval[1] > second.interval[0]  # they overlap
    (found,) = error_differences(cells)
    assert (found.first, found.second, found.seeds, found.episodes) == (*AGENTS, (0, 1, 2), 90)
    assert found.difference.value == pytest.approx(first.value - second.value)
    low, high = found.difference.interval
    assert -0.011 < low < found.difference.value < high < -0.009


def test_over_tasks_every_task_weighs_alike():
    """Of the one task there are three seeds and a clear difference, of the other one seed and none."""
    other = ActionError([1.0] * 400, [10] * 400)
    cells = [*two_agents(), *(with_error(other, agent, env="walker2d-medium") for agent in AGENTS)]
    one, none = error_differences(cells)
    over = error_difference_over_tasks(cells, *AGENTS)
    assert (over.env, over.seeds, over.episodes) == (None, (0, 1, 2), one.episodes + none.episodes)
    assert over.difference.value == pytest.approx(one.difference.value / 2)
    assert over.difference.interval == pytest.approx(np.divide(one.difference.interval, 2))


def test_a_differences_interval_is_over_seeds_too():
    """Of each seed all episodes are alike, and the seeds disagree: episodes alone would give no width."""
    cells = [with_error(ActionError([1.0] * 5, [10] * 5), AGENTS[1], seed) for seed in range(3)]
    cells += [with_error(ActionError([float(seed)] * 5, [10] * 5), AGENTS[0], seed) for seed in range(3)]
    (found,) = error_differences(cells)
    assert found.difference.value == pytest.approx(0.0, abs=1e-12)
    # Of 27 draws of three seeds one is all of the lowest: 3.7 % of means are at the end.
    assert found.difference.interval == pytest.approx((-0.1, 0.1))


def test_the_report_says_it():
    cells = two_agents()
    printed, own = format_comparison(cells), imitation(cells)[0]
    assert all(f"{value:.4f} [" in printed for value in (own.error.value, own.above_floor.value))


def test_other_episodes_are_no_pairs():
    """The third pair's are as long, of other data; the last's floors differ as floats do on another processor."""
    same, other = ActionError([1.0, 1.0], [4, 6], floor=0.0281), ActionError([1.0, 1.0, 1.0], [4, 6, 5])
    near = dataclasses.replace(same, floor=0.02815)
    pairs = [(same, other, 30.0), (same, same, 30.0), (same, same, 31.0), (same, None, 30.0), (same, near, 30.0 + 1e-6)]
    cells = []
    for seed, (first, second, mean) in enumerate(pairs):
        cells += [with_error(first, AGENTS[0], seed), with_error(second, AGENTS[1], seed, mean=mean)]
    (found,) = error_differences(cells)
    assert (found.seeds, found.episodes) == ((1, 4), 4)
    assert error_differences(cells[:2]) == []


def test_of_discrete_actions_it_is_the_likelihood_and_named_so():
    cells = two_agents()
    for agent, more in zip(AGENTS, (0.0, 0.2), strict=True):
        error = ActionError([4.0 + more, 6.0], [10, 10], correct=[9, 7])
        cells += [with_error(error, agent, seed, "cartpole") for seed in range(2)]
    found = {(i.env, i.agent): i for i in imitation(cells)}
    own = found["cartpole", AGENTS[0]]
    assert (own.measure, own.error.value, own.accuracy) == ("negative log-likelihood", 0.5, 0.8)
    assert found["hopper-medium", AGENTS[0]].measure == "action MSE" and own.above_floor is None
    text = format_comparison(cells)
    assert "| negative log-likelihood | 0.5000 [" in text and "accuracy 0.800" in text
