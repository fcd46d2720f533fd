"""The estimate of the best return in reach: the expectile, and policies that ask for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from aaren_rl.agents import ROLLOUTS, DecisionModel, ModelConfig, Policy, expectile_loss

OBSERVATION, ACTION, SCALE = 5, 2, 50.0
MEAN, STD = torch.linspace(-1, 1, OBSERVATION), torch.linspace(0.5, 2, OBSERVATION)
every_rollout = pytest.mark.parametrize("rollout", ROLLOUTS)


def make(rollout: str = "carry", *, best_return: bool = True, compiled: bool = True) -> Policy:
    torch.manual_seed(0)
    config = ModelConfig(OBSERVATION, ACTION, width=16, layers=2, heads=2, max_timestep=40, best_return=best_return)
    return Policy(DecisionModel(config), MEAN, STD, SCALE, rollout, 8, compiled=compiled)


def steps(length: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(length)
    rewards = rng.uniform(0, 30, (length, batch))
    rewards[0] = 0
    return rng.normal(size=(length, batch, OBSERVATION)).astype(np.float32), rewards


def estimate(policy: Policy, observation: np.ndarray) -> Tensor:
    """By its definition, in float64 and the environment's units."""
    best = policy.model.best_return
    assert best is not None
    x = ((torch.from_numpy(observation) - MEAN) / STD).double()
    for layer in (best.first, best.second):
        x = (x @ layer.weight.double().T + layer.bias.double()).clamp(min=0)
    return (x @ best.last.weight.double().T + best.last.bias.double()).squeeze(-1) * SCALE


@pytest.mark.parametrize("expectile", [0.5, 0.9, 0.99])
def test_the_loss_is_least_at_the_expectile(expectile: float) -> None:
    returns = torch.from_numpy(np.random.default_rng(0).gamma(2.0, size=2000))
    value = returns.mean().clone().requires_grad_()
    for _ in range(2000):
        (slope,) = torch.autograd.grad(expectile_loss(value.expand(2000), returns, expectile), value)
        value = (value - 0.5 * slope).detach().requires_grad_()
    above, below = (returns - value).clamp(min=0).mean(), (value - returns).clamp(min=0).mean()
    assert expectile * above.item() == pytest.approx((1 - expectile) * below.item(), rel=1e-6)  # Newey & Powell, (2.7)
    assert value.item() == pytest.approx(returns.mean().item()) if expectile == 0.5 else value > returns.mean()


@every_rollout
def test_infinity_asks_for_the_estimate_at_every_step(rollout: str) -> None:
    policy = make(rollout)
    observations, rewards = steps(12, 2)
    infinite, told = policy.initial_state(2, np.inf), policy.initial_state(2, 0.0)
    for observation, reward in zip(observations, rewards, strict=True):
        told = told._replace(return_to_go=estimate(policy, observation).numpy() + reward)
        action, infinite = policy.act(observation, reward, infinite)
        expected, told = policy.act(observation, reward, told)
        np.testing.assert_allclose(action, expected, rtol=0, atol=1e-6)
        assert np.isposinf(infinite.return_to_go).all()


def test_numbers_beside_infinity_are_asked_for_as_alone() -> None:
    policy = make()
    observations, rewards = steps(6, 3)
    mixed, alone = policy.initial_state(3, np.array([40.0, np.inf, 7.0])), policy.initial_state(3, 40.0)
    for observation, reward in zip(observations, rewards, strict=True):
        action, mixed = policy.act(observation, reward, mixed)
        expected, alone = policy.act(observation, reward, alone)
        np.testing.assert_array_equal(action[0], expected[0])
        assert np.abs(action[1:] - expected[1:]).max() > 1e-6


def test_an_episode_that_asks_for_the_best_is_the_same_beside_others() -> None:
    policy = make()
    assert policy.rows_independent
    observations, rewards = steps(20, 37)
    many, one = policy.initial_state(37, np.inf), policy.initial_state(1, np.inf)
    for observation, reward in zip(observations, rewards, strict=True):
        action, many = policy.act(observation, reward, many)
        expected, one = policy.act(observation[5:6], reward[5:6], one)
        np.testing.assert_array_equal(action[5:6], expected)


def test_select_keeps_what_is_asked_for() -> None:
    policy = make()
    state = policy.select(policy.initial_state(3, np.array([40.0, np.inf, 7.0])), np.array([2, 1]))
    assert state.return_to_go.tolist() == [7.0, np.inf]


def test_a_policy_without_an_estimate_says_so() -> None:
    policy = make(best_return=False)
    with pytest.raises(ValueError, match=r"holds no estimate of the best return in reach: ask for a return"):
        policy.initial_state(2, np.array([3.0, np.inf]))
    assert policy.initial_state(2, 3.0).return_to_go.tolist() == [3.0, 3.0]


def test_the_estimate_leaves_the_rest_of_the_model_as_it_was() -> None:
    with_it, without = make().model, make(best_return=False).model
    states = with_it.state_dict()
    assert without.state_dict().keys() == {name for name in states if not name.startswith("best_return")}
    assert all(torch.equal(tensor, states[name]) for name, tensor in without.state_dict().items())
    assert not any(p.requires_grad for name, p in with_it.named_parameters() if name.startswith("best_return"))


def test_a_copy_with_another_rollout_asks_too() -> None:
    policy = replace(make(), rollout="window")
    action, _ = policy.act(*(part[0] for part in steps(1, 2)), policy.initial_state(2, np.inf))
    assert np.isfinite(action).all()
