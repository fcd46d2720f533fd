"""The action error on held-out episodes over training seeds: by hand, and what intervals are over."""

import dataclasses

import numpy as np
import pytest
from synthetic import make_cell
from table1_statistics import error_difference_over_tasks, error_differences

from aaren_rl.compare.measure import Cell
from aaren_rl.compare.report import format_comparison
from aaren_rl.compare.statistics import imitation
from aaren_rl.evaluate.scores import ActionError

AGENTS = ("decision-aaren", "decision-transformer")


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


def test_the_report_says_it():
    cells = two_agents()
    printed, own = format_comparison(cells), imitation(cells)[0]
    assert all(f"{value:.4f} [" in printed for value in (own.error.value, own.above_floor.value))


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
