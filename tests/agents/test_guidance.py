"""Guidance: the policy run twice, against two policies run once; and that it is a policy like any other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from aaren_rl.agents import ROLLOUTS, DecisionModel, ModelConfig, Policy, with_guidance
from aaren_rl.vector import VectorPolicy

OBSERVATION, ACTION, SCALE = 5, 2, 50.0
MEAN, STD = torch.linspace(-1, 1, OBSERVATION), torch.linspace(0.5, 2, OBSERVATION)
LOW, HIGH = torch.tensor([-0.5, -2.0]), torch.tensor([1.0, 0.25])


def make(rollout: str = "carry", *, compiled: bool = True, mixer: str = "aaren", typical: bool = True) -> Policy:
    torch.manual_seed(0)
    shape = {"width": 16, "layers": 2, "heads": 2, "max_timestep": 40, "best_return": True, "typical_return": typical}
    model = DecisionModel(ModelConfig(OBSERVATION, ACTION, mixer, **shape))
    with torch.no_grad():
        model.embed_return.weight.mul_(10.0)  # what is asked for matters before any training
    return Policy(model, MEAN, STD, SCALE, rollout, 8, LOW, HIGH, compiled=compiled, target_return=20.0)


def steps(length: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(length)
    rewards = rng.uniform(0, 30, (length, batch))
    rewards[0] = 0
    return rng.normal(size=(length, batch, OBSERVATION)).astype(np.float32), rewards


def expected_return(policy: Policy, observation: np.ndarray) -> torch.Tensor:
    """The estimate, in the environment's units."""
    assert policy.model.typical_return is not None
    normalised = (torch.from_numpy(observation) - MEAN) / STD
    return policy.model.typical_return.double()(normalised) * SCALE


@pytest.mark.parametrize("rollout", ROLLOUTS)
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("guidance", [1.25, 40.0])
def test_it_goes_away_from_what_asking_for_the_typical_return_gives(
    rollout: str, compiled: bool, guidance: float
) -> None:
    """By its formula with two policies, each of which is told what was executed; so strong that limits are met, too."""
    policy = make(rollout, compiled=compiled)
    guided = with_guidance(policy, guidance)
    targets, (observations, rewards) = np.array([40.0, np.inf, -300.0]), steps(14, 3)
    asked, expected = policy.initial_state(3, targets), policy.initial_state(3, 0.0)
    state, clipped = guided.initial_state(3, targets), 0
    for observation, reward in zip(observations, rewards, strict=True):
        wanted, asked = policy.act(observation, reward, asked)
        expected = expected._replace(return_to_go=expected_return(policy, observation) + torch.from_numpy(reward))
        ordinary, expected = policy.act(observation, reward, expected)
        far = ordinary + guidance * (wanted - ordinary)
        action, state = guided.act(observation, reward, state)
        np.testing.assert_allclose(action, np.clip(far, LOW.numpy(), HIGH.numpy()), rtol=0, atol=2e-6 * guidance)
        clipped += int((action != far.astype(np.float32)).sum())
        asked, expected = (part._replace(previous_action=torch.from_numpy(action)) for part in (asked, expected))
        assert state.return_to_go[:3].tolist() == asked.return_to_go.tolist()
    assert (np.abs(wanted - ordinary).max() > 1e-3) and (clipped > 20 if guidance == 40 else True)


def test_what_was_executed_instead_can_be_told() -> None:
    guided, (observations, rewards) = with_guidance(make(), 2.0), steps(2, 3)
    _, state = guided.act(observations[0], rewards[0], guided.initial_state(3))
    executed = np.linspace(-0.4, 0.2, 6, dtype=np.float32).reshape(3, 2)
    one = guided.act(observations[1], rewards[1], state._replace(previous_action=executed))[0]
    both = state._replace(previous_action=torch.from_numpy(np.concatenate([executed, executed])))
    np.testing.assert_array_equal(one, guided.act(observations[1], rewards[1], both)[0])
    assert (one != guided.act(observations[1], rewards[1], state)[0]).all()


def test_rows_are_selected_and_alone_act_as_beside_others() -> None:
    guided, (observations, rewards) = with_guidance(make(), 1.5), steps(9, 7)
    assert guided.rows_independent
    state = guided.initial_state(7, np.array([40.0, np.inf, -300.0, 0.0, 9.0, 70.0, 8.0]))
    chosen, few = np.array([5, 1]), None
    for t, (observation, reward) in enumerate(zip(observations, rewards, strict=True)):
        if t == 4:
            few = guided.select(state, chosen)
        action, state = guided.act(observation, reward, state)
        if few is not None:
            alone, few = guided.act(observation[chosen], reward[chosen], few)
            np.testing.assert_array_equal(alone, action[chosen])


@pytest.mark.parametrize("rollout", ROLLOUTS)
def test_environments_begin_when_they_like(rollout: str) -> None:
    """As each alone, to the last bit."""
    guided, (observations, rewards) = with_guidance(make(rollout), 1.5), steps(12, 3)
    assert guided.restarts
    begins = np.zeros((12, 3), bool)
    begins[0], begins[5, 1], begins[7, 2] = True, True, True
    targets = np.array([40.0, np.inf, -300.0])
    vector, state = VectorPolicy(guided, n_envs=3, target_return=targets), None
    acted = []
    for observation, reward, begun in zip(observations, rewards, begins, strict=True):
        action, state = vector.act(observation, reward, begun, state)
        acted.append(action)
    for row in range(3):
        own = None
        for t in range(12):
            reward = rewards[t, row : row + 1]
            if begins[t, row]:
                own, reward = guided.initial_state(1, targets[row]), np.zeros(1)
            action, own = guided.act(observations[t, row : row + 1], np.float32(reward), own)
            np.testing.assert_allclose(action[0], acted[t][row], rtol=0, atol=0 if guided.rows_independent else 1e-6)


def test_without_guidance_it_is_the_policy_and_a_copy_keeps_it() -> None:
    policy = make()
    assert with_guidance(policy, 1) is policy
    guided = replace(with_guidance(policy, 1.5), rollout="window")
    assert guided.rollout == "window" and guided.guidance == 1.5 and with_guidance(guided, 2.0).guidance == 2.0


@pytest.mark.parametrize("guidance", [0.5, np.nan, np.inf, -1.0])
def test_a_guidance_below_one_is_refused(guidance: float) -> None:
    with pytest.raises(ValueError, match="guidance must be a number from 1, not"):
        with_guidance(make(), guidance)


def test_a_policy_that_expects_nothing_says_so() -> None:
    with pytest.raises(ValueError, match="holds no estimate of the return to expect"):
        with_guidance(make(typical=False), 1.5)


def test_arguments_of_other_shapes_are_named_as_the_caller_gave_them() -> None:
    guided = with_guidance(make(), 1.5)
    with pytest.raises(
        ValueError, match=r"observation: must have shape \(2, 5\) for this policy and state, not \(3, 5\)"
    ):
        guided.act(np.zeros((3, 5)), np.zeros(2), guided.initial_state(2))
    with pytest.raises(ValueError, match="rows: must be indices of 2 environments"):
        guided.select(guided.initial_state(2), np.array([2]))
    with pytest.raises(ValueError, match="state: must be what initial_state or act gave"):
        guided.act(np.zeros((2, 5)), np.zeros(2), None)
