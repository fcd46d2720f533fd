"""A critic that chooses among candidate actions: which one, where, and what stays as it is without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from policies import ACTION, HIGH, LOW, MEAN, OBSERVATION, STD, TARGET, make_policy

from aaren_rl.agents import ROLLOUTS, Critic, DecisionModel, ModelConfig, Policy, with_guidance
from aaren_rl.agents.model import critic as constants
from aaren_rl.vector import VectorPolicy

COUNT, DEVIATION = constants.CANDIDATES, torch.tensor([0.25, 0.1, 0.2])
MIDDLE, HALF = ((HIGH + LOW) / 2).double().numpy(), ((HIGH - LOW) / 2).double().numpy()
PATHS = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])


def make(rollout: str = "recurrent", *, compiled: bool = True, critic: bool = True, **changes) -> Policy:
    """A policy whose critic prefers some actions, by weights that nobody fitted; its own actions reach their limits."""
    estimates = {"max_return_estimate": True, "mean_return_estimate": True}
    policy = make_policy("aaren", rollout, **{**estimates, "critic": critic, **changes})
    policy.model.head.weight.data *= 4
    if policy.model.critic is not None:
        policy.model.critic.draw(3)
        for bias in policy.model.critic.biases:
            bias.data = torch.linspace(-0.5, 0.5, bias.numel()).view(bias.shape)
        policy.model.critic.deviation.copy_(DEVIATION)
    return replace(policy, compiled=compiled, target_return=TARGET)


def steps(length: int, batch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of every step the observations and the rewards before, 0 at the first."""
    rng = np.random.default_rng(length)
    for t in range(length):
        yield rng.normal(size=(batch, OBSERVATION)).astype(np.float32), rng.uniform(0, 3, batch) * (t > 0)


def by_the_formula(critic: Critic, observation: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, int]:
    """The action (A,) and the number of its candidate for an observation (O,) and the policy's action (A,), plainly."""
    weights, biases = ([x.double().numpy() for x in part] for part in (critic.weights, critic.biases))
    seen = (observation - MEAN.double().numpy()) / STD.double().numpy()
    own = (action - MIDDLE) / HALF
    offsets = 0.5 * critic.deviation.double().numpy() * critic.offsets.double().numpy()
    candidates = [own, *(np.clip(own + offset, -1, 1) for offset in offsets)]
    least = []
    for candidate in candidates:
        gains = []
        for j in range(constants.NETWORKS):
            values = []
            for of in (candidate, own):
                x = np.concatenate([seen, of])
                for i in range(3):
                    x = x @ weights[i][j] + biases[i][j, 0]
                    x = np.maximum(x, 0) if i < 2 else x
                values.append(x[0])
            gains.append(values[0] - values[1])
        least.append(min(gains))
    best = int(np.argmax(least))
    return MIDDLE + HALF * candidates[best], best


@PATHS
@pytest.mark.parametrize("rollout", ROLLOUTS)
def test_the_candidate_with_the_largest_smallest_advantage_is_taken_and_remembered(
    rollout: str, compiled: bool
) -> None:
    """Against the formula, around the actions of the policy alone, which is told what was executed."""
    policy = make(rollout, compiled=compiled)
    alone, state, numbers = policy.initial_state(2, candidates=1), policy.initial_state(2), []
    for observation, reward in steps(30, 2):
        own, alone = policy.act(observation, reward, alone)
        action, state = policy.act(observation, reward, state)
        for row in range(2):
            expected, number = by_the_formula(policy.model.critic, observation[row], own[row])
            np.testing.assert_allclose(action[row], expected, rtol=0, atol=2e-6)
            assert number or (action[row] == own[row]).all()
            numbers.append(number)
        np.testing.assert_array_equal(state.previous_action, action)
        alone = alone._replace(previous_action=action)
    assert len(set(numbers)) > 5 and 0 in numbers
    assert (np.abs(action) <= np.abs([LOW.numpy(), HIGH.numpy()]).max(0)).all()


@pytest.mark.parametrize("mixer", ["aaren", "aaren-rsa"])
def test_the_compiled_choice_is_that_of_pytorch(mixer: str) -> None:
    compiled = make()
    state, other = compiled.initial_state(3), make(compiled=False).initial_state(3)
    for t, (observation, reward) in enumerate(steps(300, 3)):
        action, state = compiled.act(observation, reward, state)
        expected, other = make_eager().act(observation, reward, other)
        np.testing.assert_allclose(action, expected, rtol=0, atol=1e-5, err_msg=f"step {t}")
