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
FIRST_OFFSET = [-1.12583983, -1.15236020, -0.25057858]
PATHS = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])


def prepare(critic: Critic, deviation: torch.Tensor) -> None:
    """Weights of networks that agree in most, with biases."""
    critic.draw(3)
    for weight, bias in zip(critic.weights, critic.biases, strict=True):
        weight.data = 0.9 * weight[:1] + 0.1 * weight
        bias.data = torch.linspace(-0.5, 0.5, bias.numel()).view(bias.shape)
    critic.deviation.copy_(deviation)


def make(rollout: str = "recurrent", *, compiled: bool = True, critic: bool = True, **changes) -> Policy:
    """A policy whose critic prefers some actions, by weights that nobody fitted; its own actions reach their limits."""
    estimates = {"max_return_estimate": True, "mean_return_estimate": True}
    policy = make_policy("aaren", rollout, **{**estimates, "critic": critic, **changes})
    policy.model.head.weight.data *= 4
    if policy.model.critic is not None:
        prepare(policy.model.critic, DEVIATION)
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
                    x = np.maximum((x - x.mean()) / np.sqrt(x.var() + 1e-5), 0) if i < 2 else x
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


def test_the_compiled_choice_is_that_of_pytorch() -> None:
    compiled, eager = make(), make(compiled=False)
    state, other, improved = compiled.initial_state(3), eager.initial_state(3), 0
    plain = compiled.initial_state(3, candidates=1)
    for t, (observation, reward) in enumerate(steps(300, 3)):
        action, state = compiled.act(observation, reward, state)
        expected, other = eager.act(observation, reward, other)
        np.testing.assert_allclose(action, expected, rtol=0, atol=1e-5, err_msg=f"step {t}")
        own, plain = compiled.act(observation, reward, plain)
        plain = plain._replace(previous_action=action)
        improved += int((action != own).any(1).sum())
    assert improved > 300  # of 900


@PATHS
@pytest.mark.parametrize("rollout", ROLLOUTS)
def test_a_number_is_followed_as_without_a_critic(rollout: str, compiled: bool) -> None:
    """To the last bit, beside environments that choose, and with a single candidate."""
    policy, without = make(rollout, compiled=compiled), make(rollout, compiled=compiled, critic=False)
    loaded = without.model.load_state_dict(policy.model.state_dict(), strict=False)
    assert not loaded.missing_keys and all(name.startswith("critic.") for name in loaded.unexpected_keys)
    without = replace(without)  # with these weights
    beside = [200.0, np.inf]
    for target, candidates in ((200.0, None), ([200.0, 300.0], None), ("auto", 1), (None, 1), (beside, None)):
        state, other = policy.initial_state(2, target, candidates=candidates), without.initial_state(2, target)
        for observation, reward in steps(20, 2):
            action, state = policy.act(observation, reward, state)
            expected, other = without.act(observation, reward, other)
            rows = np.flatnonzero(~state.improves)
            assert len(rows) == (1 if target is beside else 2)
            np.testing.assert_array_equal(action[rows], expected[rows])
    assert other.improves is None


def test_the_best_is_asked_for_by_no_target_or_by_auto() -> None:
    policy = make()
    for asked, expected in (
        ({}, [True, True]),
        ({"target_return": "auto"}, [True, True]),
        ({"target_return": 5.0}, [False, False]),
        ({"target_return": [np.inf, 5.0]}, [True, False]),
        ({"candidates": 1}, [False, False]),
        ({"target_return": 5.0, "candidates": COUNT}, [True, True]),
    ):
        assert policy.initial_state(2, **asked).improves.tolist() == expected, asked
    assert policy.candidates == COUNT and make(critic=False).candidates == 1
    with pytest.raises(ValueError, match="candidates: must be 1 or 16, not 8"):
        policy.initial_state(2, candidates=8)
    with pytest.raises(ValueError, match="candidates: must be an integer, not float"):
        policy.initial_state(2, candidates=16.0)
    with pytest.raises(ValueError, match="candidates: must be 1 for a policy without a critic, not 16"):
        make(critic=False).initial_state(2, candidates=COUNT)
    with pytest.raises(ValueError, match=r"state: improves: must have shape \(2,\)"):
        policy.act(*next(steps(1, 2)), policy.initial_state(2)._replace(improves=np.ones(3, bool)))
    with pytest.raises(ValueError, match="state: improves: must be bool"):
        policy.act(*next(steps(1, 2)), policy.initial_state(2)._replace(improves=None))


def test_reset_and_select_keep_who_chooses() -> None:
    policy = make()
    state = policy.initial_state(3, [np.inf, 5.0, 5.0])
    _, state = policy.act(*next(steps(1, 3)), state)
    assert policy.select(state, [1, 0]).improves.tolist() == [False, True]
    begun = policy.reset(state, [0, 2], [7.0, np.inf])
    assert begun.improves.tolist() == [False, False, True] and state.improves.tolist() == [True, False, False]
    assert policy.reset(state, [1]).improves.tolist() == [True, True, False]
    assert policy.reset(state, [0, 1], candidates=1).improves.tolist() == [False, False, False]
    assert policy.reset(state, [1], 5.0, candidates=COUNT).improves.tolist() == [True, True, False]


@pytest.mark.parametrize("guidance", [1.0, 1.5])
def test_a_choice_does_not_depend_on_other_environments(guidance: float) -> None:
    """To the last bit, alone against among seven."""
    policy = with_guidance(make(), guidance)
    assert policy.batch_invariant
    many, alone = policy.initial_state(7, [np.inf, 5.0] * 3 + [np.inf]), policy.initial_state(1)
    alone = alone._replace(return_to_go=np.array([np.inf]))
    for observation, reward in steps(60, 7):
        action, many = policy.act(observation, reward, many)
        own, alone = policy.act(observation[6:], reward[6:], alone)
        np.testing.assert_array_equal(own[0], action[6])


def test_a_guided_policy_chooses_around_the_guided_action() -> None:
    policy = with_guidance(make(), 1.5)
    plain, state, other = policy.initial_state(2, candidates=1), policy.initial_state(2), 0
    for observation, reward in steps(20, 2):
        own, plain = policy.act(observation, reward, plain)
        action, state = policy.act(observation, reward, state)
        for row in range(2):
            expected, number = by_the_formula(policy.model.critic, observation[row], own[row])
            np.testing.assert_allclose(action[row], expected, rtol=0, atol=2e-6)
            other += number > 0
        plain = plain._replace(previous_action=action)
    assert other > 10


@PATHS
def test_where_no_candidate_is_better_or_any_is_nan_the_action_is_the_policys(compiled: bool) -> None:
    """In a tie, and where a network gives NaN: to the last bit."""
    for weight in (0.0, np.nan):
        policy = make(compiled=compiled)
        policy.model.critic.weights[2].data[1] = weight
        policy = replace(policy)
        state, plain = policy.initial_state(4), policy.initial_state(4, candidates=1)
        for observation, reward in steps(5, 4):
            action, state = policy.act(observation, reward, state)
            own, plain = policy.act(observation, reward, plain)
            np.testing.assert_array_equal(action, own)


def test_choose_returns_the_best_of_the_candidates_in_the_units_of_the_model() -> None:
    critic = Critic(OBSERVATION, ACTION)
    prepare(critic, DEVIATION)
    critic.double()
    observation, action = torch.randn(50, OBSERVATION).double(), torch.rand(50, ACTION).double() * 2 - 1
    candidates = critic.candidates(action)
    assert candidates.shape == (50, COUNT, ACTION) and candidates.abs().max() == 1
    assert torch.equal(candidates[:, 0], action)
    chosen = critic.choose(observation, action)
    gain = (critic(observation, chosen) - critic(observation, action)).amin(0)
    for k in range(COUNT):
        other = (critic(observation, candidates[:, k]) - critic(observation, action)).amin(0)
        assert (gain >= other - 1e-12).all()
    assert (gain > 1e-3).sum() > 25


def test_the_offsets_are_the_same_for_everybody_and_nothing_else_is_drawn() -> None:
    torch.manual_seed(0)
    first = make_model_with_critic()
    after = torch.rand(1)
    torch.manual_seed(0)
    DecisionModel(ModelConfig(OBSERVATION, ACTION, width=16, heads=2))
    assert torch.rand(1) == after
    assert torch.equal(first.critic.offsets, Critic(4, ACTION).offsets)
    assert first.critic.offsets[0].tolist() == pytest.approx(FIRST_OFFSET, abs=1e-6)
    assert not any(parameter.requires_grad for parameter in first.critic.parameters())


def make_model_with_critic() -> DecisionModel:
    return DecisionModel(ModelConfig(OBSERVATION, ACTION, width=16, heads=2, critic=True))


def test_discrete_actions_have_no_critic() -> None:
    with pytest.raises(ValueError, match="critic: needs continuous actions"):
        ModelConfig(4, 2, width=16, heads=2, discrete=True, critic=True)


@pytest.mark.parametrize("target", [None, "auto", 5.0])
def test_environments_that_begin_when_they_like_choose_as_alone(target: float | str | None) -> None:
    policy, begins = make(), np.zeros((12, 3), bool)
    begins[0], begins[5, 1], begins[7, 2] = True, True, True
    vector, state, own = VectorPolicy(policy, n_envs=3, target_return=target), None, [None] * 3
    for (observation, reward), begun in zip(steps(12, 3), begins, strict=True):
        action, state = vector.act(observation, reward, begun, state)
        for row in range(3):
            here = slice(row, row + 1)
            if begun[row]:
                own[row] = policy.initial_state(1, target)
            alone, own[row] = policy.act(observation[here], np.float32(reward[here] * ~begun[here]), own[row])
            np.testing.assert_array_equal(alone[0], action[row])
            assert own[row].improves == (target != 5.0)
