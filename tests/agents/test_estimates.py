"""What a model estimates of returns, and asking for the maximum."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from policies import MEAN, OBSERVATION, SCALE, STD, draw_episode, make_policy

from aaren_rl.agents import (
    ROLLOUTS,
    DecisionModel,
    NonFiniteActionError,
    Policy,
    ReturnEstimate,
    ReturnRange,
    expectile_loss,
)


def make(rollout: str = "recurrent", *, estimates: bool = True) -> Policy:
    policy = make_policy(rollout=rollout, max_return_estimate=estimates)
    policy.model.embed_return.weight.data.mul_(10.0)  # what is asked for matters before any training
    return replace(policy, return_range=None, target_return=20.0)


def estimated(estimate: ReturnEstimate | None, observation: np.ndarray) -> np.ndarray:
    """By its definition, in float64 and the environment's units."""
    assert estimate is not None
    x = ((torch.from_numpy(observation) - MEAN) / STD).double()
    for layer in (estimate.first, estimate.second):
        x = (x @ layer.weight.double().T + layer.bias.double()).clamp(min=0)
    return ((x @ estimate.last.weight.double().T + estimate.last.bias.double()).squeeze(-1) * SCALE).numpy()


@pytest.mark.parametrize("expectile", [0.5, 0.9])
def test_the_loss_is_least_at_the_expectile(expectile):
    returns = torch.from_numpy(np.random.default_rng(0).gamma(2.0, size=2000))
    value = returns.mean().clone().requires_grad_()
    for _ in range(2000):
        (slope,) = torch.autograd.grad(expectile_loss(value.expand(2000), returns, expectile), value)
        value = (value - 0.5 * slope).detach().requires_grad_()
    above, below = (returns - value).clamp(min=0).mean(), (value - returns).clamp(min=0).mean()
    assert expectile * above.item() == pytest.approx((1 - expectile) * below.item(), rel=1e-6)  # Newey & Powell, (2.7)
    assert value.item() == pytest.approx(returns.mean().item()) if expectile == 0.5 else value > returns.mean()


@pytest.mark.parametrize("rollout", ROLLOUTS)
def test_auto_is_the_estimate_at_every_step(rollout):
    """In one environment; in the one beside it a number is asked for, as if it were alone."""
    policy = make(rollout)
    infinite, told = policy.initial_state(2, [np.inf, 40.0]), policy.initial_state(2, 40.0)
    for automatic in (policy.initial_state(2, "auto"), replace(policy, target_return="auto").initial_state(2)):
        assert np.isposinf(automatic.return_to_go).all()
    for observation, reward in zip(*draw_episode(12, 2, OBSERVATION), strict=True):
        told.return_to_go[0] = estimated(policy.model.max_return_estimate, observation)[0] + reward[0]
        action, infinite = policy.act(observation, reward, infinite)
        expected, told = policy.act(observation, reward, told)
        np.testing.assert_allclose(action, expected, rtol=0, atol=1e-6)
        assert np.isposinf(infinite.return_to_go[0]) and infinite.return_to_go[1] == told.return_to_go[1]


def test_a_model_without_estimates_says_so_and_is_otherwise_the_same():
    policy, states = make(estimates=False), []
    with pytest.raises(ValueError, match=r"holds no estimate of the maximum achievable return: give a target return"):
        policy.initial_state(2, np.array([3.0, np.inf]))
    with pytest.raises(ValueError, match="holds no estimate of the maximum"):
        policy.initial_state(2, "auto")
    for estimates in (False, True):
        torch.manual_seed(0)
        states.append(DecisionModel(replace(policy.model.config, max_return_estimate=estimates)).state_dict())
    without, extended = states
    assert all(torch.equal(tensor, extended.pop(name)) for name, tensor in without.items())
    assert extended and all(name.startswith("max_return_estimate") for name in extended)


def test_a_return_to_go_that_is_not_finite_is_named_and_not_fed():
    policy = replace(make(), return_range=ReturnRange(5, np.array([[-100.0, 30.0]])))
    for number in (-np.inf, np.nan):
        state = policy.initial_state(2, 20.0)._replace(return_to_go=np.array([1.0, number]))
        with pytest.raises(NonFiniteActionError, match=f"state: return_to_go: row 1 is {number} at step 0"):
            policy.act(np.ones((2, OBSERVATION)), np.zeros(2), state)
