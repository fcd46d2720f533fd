"""The action error on held-out episodes over training seeds: by hand, and what intervals are over."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from synthetic import make_cell

from aaren_rl.compare.cells import Cell
from aaren_rl.compare.report import format_comparison
from aaren_rl.compare.statistics import imitation, imitation_difference_over_tasks, imitation_differences
from aaren_rl.evaluate.scores import ActionError

AGENTS = ("decision-aaren", "decision-transformer")


def with_error(error: ActionError | None, agent: str = AGENTS[0], seed: int = 0, env: str = "hopper-medium") -> Cell:
    return make_cell(agent=agent, seed=seed, env=env, action_error=error)


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


def test_an_agents_error_by_hand() -> None:
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


def test_paired_episodes_tell_apart_what_means_do_not() -> None:
    cells = two_agents()
    first, second = (i.error for i in imitation(cells))
    assert first.interval[1] > second.interval[0]  # they overlap
    (found,) = imitation_differences(cells)
    assert (found.first, found.second, found.seeds, found.episodes) == (*AGENTS, (0, 1, 2), 90)
    assert found.difference.value == pytest.approx(first.value - second.value)
    low, high = found.difference.interval
    assert -0.011 < low < found.difference.value < high < -0.009


def test_over_tasks_every_task_weighs_alike() -> None:
    """Of the one task there are three seeds and a clear difference, of the other one seed and none."""
    other = ActionError([1.0] * 400, [10] * 400)
    cells = [*two_agents(), *(with_error(other, agent, env="walker2d-medium") for agent in AGENTS)]
    one, none = imitation_differences(cells)
    over = imitation_difference_over_tasks(cells, *AGENTS)
    assert (over.env, over.seeds, over.episodes) == (None, (0, 1, 2), one.episodes + none.episodes)
    assert over.difference.value == pytest.approx(one.difference.value / 2)
    assert over.difference.interval == pytest.approx(np.divide(one.difference.interval, 2))


def test_a_differences_interval_is_over_seeds_too() -> None:
    """Of each seed all episodes are alike, and the seeds disagree: episodes alone would give no width."""
    cells = [with_error(ActionError([1.0] * 5, [10] * 5), AGENTS[1], seed) for seed in range(3)]
    cells += [with_error(ActionError([float(seed)] * 5, [10] * 5), AGENTS[0], seed) for seed in range(3)]
    (found,) = imitation_differences(cells)
    assert found.difference.value == pytest.approx(0.0, abs=1e-12)
    # Of 27 draws of three seeds one is all of the lowest: 3.7 % of means are at the end.
    assert found.difference.interval == pytest.approx((-0.1, 0.1))


def test_other_episodes_are_no_pairs() -> None:
    same, other = ActionError([1.0, 1.0], [4, 6]), ActionError([1.0, 1.0, 1.0], [4, 6, 5])
    floors = [dataclasses.replace(same, floor=floor) for floor in (0.0281, 0.0282)]  # as long, of other data
    pairs = [(same, other), (same, same), (same, None), floors]
    cells = [with_error(e, a, seed) for seed, pair in enumerate(pairs) for a, e in zip(AGENTS, pair, strict=True)]
    (found,) = imitation_differences(cells)
    assert (found.seeds, found.episodes) == ((1,), 2)
    assert imitation_differences(cells[:2]) == []


def test_the_report_says_it() -> None:
    cells = two_agents()
    (difference,), own = imitation_differences(cells), imitation(cells)[0]
    printed = format_comparison(cells)
    for value in (own.error.value, own.above_floor.value, difference.difference.value):
        assert f"{value:.4f} [" in printed
    assert "Decision-Aaren minus Decision Transformer" in printed


def test_of_discrete_actions_it_is_the_likelihood_and_named_so() -> None:
    cells = two_agents()
    for agent, more in zip(AGENTS, (0.0, 0.2), strict=True):
        error = ActionError([4.0 + more, 6.0], [10, 10], correct=[9, 7])
        cells += [with_error(error, agent, seed, "cartpole") for seed in range(2)]
    found = {(i.env, i.agent): i for i in imitation(cells)}
    own = found["cartpole", AGENTS[0]]
    assert (own.measure, own.error.value, own.accuracy) == ("negative log-likelihood", 0.5, 0.8)
    assert found["hopper-medium", AGENTS[0]].measure == "action MSE" and own.above_floor is None
    of_task = {d.env: d for d in imitation_differences(cells)}
    assert of_task["cartpole"].measure == own.measure
    assert of_task["cartpole"].difference.value == pytest.approx(-0.01)
    text = format_comparison(cells)
    assert "| negative log-likelihood | 0.5000 [" in text and "accuracy 0.800" in text
