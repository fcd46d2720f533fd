"""The held-out action error: what a policy does step by step is what the model says of whole episodes in parallel."""

import dataclasses

import numpy as np
import pytest
import torch
from policies import ACTION, HIGH, LOW, MEAN, OBSERVATION, SCALE, STD, make_policy

from aaren_rl.envs.data.episodes import Episodes
from aaren_rl.evaluate import held_out
from aaren_rl.evaluate.held_out import ActionError, HeldOut, action_error, hold_out

LENGTHS = (7, 1, 12, 12, 5)


@pytest.fixture
def episodes() -> Episodes:
    rng = np.random.default_rng(0)
    steps = sum(LENGTHS)
    low, high = LOW.numpy(), HIGH.numpy()
    return Episodes(
        observations=rng.standard_normal((steps, OBSERVATION)).astype(np.float32),
        actions=rng.uniform(low, high, (steps, ACTION)).astype(np.float32),
        rewards=rng.standard_normal(steps).astype(np.float32),
        offsets=np.cumsum((0, *LENGTHS)).astype(np.int64),
        terminated=np.ones(len(LENGTHS), bool),
    )


def expected(policy, episodes: Episodes, context: int | None) -> list[float]:
    """Every episode through the model in parallel; with a context, every step from the last `context` steps alone."""
    middle, half = (HIGH + LOW) / 2, (HIGH - LOW) / 2
    sums = []
    for episode in episodes:
        observations = (torch.from_numpy(episode.observations) - MEAN) / STD
        actions = (torch.from_numpy(episode.actions) - middle) / half
        to_go = torch.from_numpy(episode.rewards.astype(np.float64)).flip(0).cumsum(0).flip(0).float() / SCALE
        times = torch.arange(len(episode))
        total = 0.0
        for t in range(len(episode)):
            part = slice(0 if context is None else max(0, t + 1 - context), t + 1)
            with torch.no_grad():
                found, _ = policy.model(*(x[part].unsqueeze(0) for x in (observations, actions, to_go, times)))
            total += float((found[0, -1] - actions[t]).square().mean())
        sums.append(total)
    return sums


@pytest.mark.parametrize("mixer", ["aaren", "attention"])
@pytest.mark.parametrize(("rollout", "context"), [("recurrent", None), ("window", 4)])
def test_it_is_the_models_error_on_whole_episodes(mixer, rollout, context, episodes):
    policy = dataclasses.replace(make_policy(mixer, rollout, context or 8), return_range=None)
    found = action_error(policy, HeldOut(episodes), LOW, HIGH)
    np.testing.assert_allclose(found.sums, expected(policy, episodes, context), rtol=1e-4)
    assert found.lengths == list(LENGTHS)
    assert found.mean == pytest.approx(sum(found.sums) / sum(LENGTHS))


def test_it_does_not_matter_how_many_are_played_at_once(episodes, monkeypatch):
    policy = make_policy()
    together = action_error(policy, HeldOut(episodes, 0.5), LOW, HIGH)
    monkeypatch.setattr(held_out, "AT_ONCE", 2)
    apart = action_error(policy, HeldOut(episodes), LOW, HIGH)
    np.testing.assert_allclose(apart.sums, together.sums, rtol=1e-6)
    assert together.floor == 0.5


def test_floor_and_interval():
    error = ActionError([1.0, 2.0, 6.0], [10, 10, 20], floor=0.1)
    assert error.mean == pytest.approx(9 / 40)
    assert error.above_floor == pytest.approx(9 / 40 - 0.1)
    low, high = error.interval()
    assert 0.1 <= low < error.mean < high <= 0.3
    assert "0.2250" in str(error) and "excess MSE 0.1250" in str(error)
    assert ActionError([1.0], [10]).above_floor is None
    many = np.random.default_rng(1).exponential(size=400)
    low, high = ActionError(many.tolist(), [1] * 400).interval()
    half = 1.96 * many.std() / 20  # of the normal distribution
    assert (many.mean() - low, high - many.mean()) == pytest.approx((half, half), rel=0.15)


def test_errors_weigh_what_would_be_drawn():
    """The best half of 200 episodes of 1,000 steps alone; and of what is held out the best, if none is drawn."""
    rewards = np.repeat(np.arange(200.0), 1000)
    many = Episodes.from_arrays(
        np.zeros((200_000, 1)), np.zeros((200_000, 1)), rewards, ends=np.arange(1, 200_001) % 1000 == 0
    )
    half, few = hold_out(many, 0.1, 0, "best", 0.5), hold_out(many, 0.1, 0, "best", 0.005)
    assert half is not None and few is not None
    assert half.weights.tolist() == (half.episodes.returns >= 100_000).tolist()
    assert few.weights.sum() == 1 and few.weights[few.episodes.returns.argmax()] == 1
    drawn = hold_out(many, 0.1, 0, "return", 0.2).weights
    assert drawn.argmax() == few.weights.argmax() and 0 < np.count_nonzero(drawn) < 12
    error = ActionError([1.0, 2.0, 6.0], [10, 10, 20], weights=[0.0, 1.0, 0.5])
    assert error.mean == pytest.approx(5 / 20) and "2 episodes effective" in str(error)
