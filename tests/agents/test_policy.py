"""The policy: normalization, return-to-go bookkeeping and the three rollout modes, against the model run by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from policies import ACTION, MEAN, OBSERVATION, SCALE, STD, TARGET, draw_episode, make_policy
from torch import Tensor

from aaren_rl.agents import MIXERS, ROLLOUTS, NonFiniteActionError, Policy, PolicyState
from aaren_rl.agents.model.decision import middle_and_half
from aaren_rl.agents.scan.rows import state_bytes

every_mixer = pytest.mark.parametrize("mixer", MIXERS)
every_rollout = pytest.mark.parametrize("rollout", ROLLOUTS)


def make(mixer: str = "aaren", rollout: str = "recurrent", context_length: int = 8, tokens_per_step: int = 1) -> Policy:
    # A tree of as many terms as tokens: what acts is the tree, and what it must equal is the model.
    settings = {"tree_budget": 1.0, "tokens_per_step": tokens_per_step, "max_timestep": 40}
    policy = make_policy(mixer, rollout, context_length, **settings)
    return replace(policy, action_low=-1.0, action_high=1.0, return_range=None)


def play(policy: Policy, observations: np.ndarray, rewards: np.ndarray) -> tuple[Tensor, list[PolicyState]]:
    """Actions (B, T, A) and the states after every step."""
    state, actions, states = policy.initial_state(rewards.shape[1], TARGET), [], []
    for observation, reward in zip(observations, rewards, strict=True):
        action, state = policy.act(observation, reward, state)
        actions.append(torch.tensor(action))
        states.append(state)
    return torch.stack(actions, 1), states


def inputs(observations: np.ndarray, rewards: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """What the model must be given, by the definition: (B, T, O) normalized, (B, T) scaled, (B, T) timesteps."""
    to_go = TARGET - torch.from_numpy(rewards).double().cumsum(0)
    timesteps = torch.arange(len(rewards)).expand(rewards.shape[1], -1)
    return ((torch.from_numpy(observations) - MEAN) / STD).transpose(0, 1), (to_go / SCALE).float().T, timesteps


def last_of_slice(policy: Policy, data: tuple[Tensor, ...], actions: Tensor, begin: int, t: int) -> Tensor:
    """The prediction of step t from steps begin..t alone, by `DecisionModel.forward`."""
    observations, to_go, timesteps = (part[:, begin : t + 1] for part in data)
    predicted, _ = policy.model(observations, actions[:, begin : t + 1], to_go, timesteps)
    return predicted[:, -1]


@every_mixer
@torch.no_grad()
def test_recurrent_is_forward_over_all_steps(mixer):
    """R_0 = target, R_t = R_{t-1} - r_{t-1}; normalized, scaled; the action pushed is the one handed out."""
    policy, (observations, rewards) = make(mixer), draw_episode(50, 2)
    actions, states = play(policy, observations, rewards)
    to_go = TARGET - rewards.astype(np.float64).cumsum(0)
    np.testing.assert_allclose([state.return_to_go for state in states], to_go, rtol=0, atol=1e-10)
    assert [int(state.timestep) for state in states] == list(range(1, 51))
    observed, *others = inputs(observations, rewards)
    whole, _ = policy.model(observed, actions, *others)
    torch.testing.assert_close(actions, whole, rtol=0, atol=1e-5)


@every_mixer
@pytest.mark.parametrize("context_length", [2, 8])
@torch.no_grad()
def test_window_is_forward_over_the_last_steps(mixer, context_length):
    policy, (observations, rewards) = make(mixer, "window", context_length), draw_episode(20, 2)
    actions, states = play(policy, observations, rewards)
    data = inputs(observations, rewards)
    for t in range(20):
        begin = max(0, t + 1 - context_length)
        torch.testing.assert_close(actions[:, t], last_of_slice(policy, data, actions, begin, t), rtol=0, atol=1e-5)
        assert states[t].memory.observations.shape[1] == context_length


@every_mixer
@pytest.mark.parametrize("context_length", [2, 3, 8])
@torch.no_grad()
def test_staggered_is_forward_over_a_recent_stretch(mixer, context_length):
    """The acting state's age stays between K / 2 and K, and it has seen exactly the last `age` steps."""
    policy, (observations, rewards) = make(mixer, "staggered", context_length), draw_episode(30, 2)
    actions, _ = play(policy, observations, rewards)
    data, half = inputs(observations, rewards), context_length // 2
    ages = []
    for t in range(30):
        # Dropped every K / 2 steps; the one that replaces it was begun K / 2 steps before.
        ages.append(t + 1 - half * max(0, t // half - 1))
        fresh = last_of_slice(policy, data, actions, t + 1 - ages[-1], t)
        torch.testing.assert_close(actions[:, t], fresh, rtol=0, atol=1e-5)
    assert max(ages) <= context_length
    assert min(ages[context_length:]) >= context_length / 2
    assert len(set(ages[context_length:])) == half  # it does move, so that the check above is not of one age


@every_rollout
@pytest.mark.parametrize("convert", [Tensor.double, np.asarray, Tensor.tolist])
@torch.no_grad()
def test_the_executed_action_is_what_is_pushed(rollout, convert):
    policy, (observations, rewards) = make("attention", rollout), draw_episode(30, 2)
    executed = torch.rand(30, 2, ACTION, generator=torch.Generator().manual_seed(2)) * 2 - 1
    state, handed_out = policy.initial_state(2, TARGET), []
    for t in range(30):
        action, state = policy.act(observations[t], rewards[t], state)
        handed_out.append(torch.tensor(action))
        state = state._replace(previous_action=convert(executed[t]))
    first = policy.initial_state(2, TARGET)  # before which there was no action, whatever a loop puts there
    told = first._replace(previous_action=convert(executed[0]))
    begun, same = (policy.act(observations[0], rewards[0], state)[0] for state in (first, told))
    np.testing.assert_array_equal(begun, same)
    begin = {"recurrent": 0, "staggered": 24, "window": 22}[rollout]  # of what step 29 has seen, K = 8
    data = inputs(observations, rewards)
    last = last_of_slice(policy, data, executed.transpose(0, 1), begin, 29)
    torch.testing.assert_close(handed_out[-1], last, rtol=0, atol=1e-5)
    pushed_its_own = last_of_slice(policy, data, torch.stack(handed_out, 1), begin, 29)
    assert float((handed_out[-1] - pushed_its_own).abs().max()) > 1e-4


ZEROS = {"observation": np.zeros((3, OBSERVATION)), "reward": np.zeros(3), "previous_action": np.zeros((3, ACTION))}


def with_nan(name: str, *at: int) -> np.ndarray:
    value = ZEROS[name].copy()
    value[at] = np.nan
    return value


@every_rollout
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("observation", np.zeros((3, 1)), r"observation: must have shape \(3, 11\) .*, not \(3, 1\)"),
        ("observation", "nothing", "observation: must be numbers, not str"),
        ("reward", np.zeros(1), r"reward: must have shape \(3,\) .*, not \(1,\)"),
        ("reward", 0.0, r"reward: .*not \(\)"),
        ("previous_action", np.zeros(ACTION), r"previous_action: .*not \(3,\)"),
        ("observation", with_nan("observation", 2, 4), "observation: row 2, column 4 is nan at step 1"),
        ("reward", with_nan("reward", 1), "reward: row 1 is nan at step 1"),
        ("previous_action", with_nan("previous_action", 0, 1), "previous_action: row 0, column 1 is nan at step 1"),
    ],
)
def test_an_argument_of_another_shape_or_not_finite_is_named(rollout, name, value, message):
    policy, given = make(rollout=rollout), {**ZEROS, name: value}
    _, state = policy.act(ZEROS["observation"], ZEROS["reward"], policy.initial_state(3, TARGET))
    state = state._replace(previous_action=given["previous_action"])
    with pytest.raises(NonFiniteActionError if "nan" in message else ValueError, match=message):
        policy.act(given["observation"], given["reward"], state)


@every_rollout
def test_a_state_of_another_rollout_mode_is_refused(rollout):
    state = make(rollout=rollout).initial_state(3, TARGET)
    _, after = make(rollout=rollout).act(ZEROS["observation"], ZEROS["reward"], state)
    for other in set(ROLLOUTS) - {rollout}:
        for given in (state, after):
            with pytest.raises(ValueError, match=f"the rollout mode {rollout}, and this policy's is {other}"):
                make(rollout=other).act(ZEROS["observation"], ZEROS["reward"], given)
    with pytest.raises(ValueError, match="memory must be what act gave, not list"):  # as JSON gives it back
        make(rollout=rollout).act(ZEROS["observation"], ZEROS["reward"], state._replace(memory=[[0.0]]))


@pytest.mark.parametrize(
    "target", [np.nan, np.inf, 1e300, [1.0, np.nan], [1.0], np.zeros((2, 1)), "much", "auto", ["auto", 1.0]], ids=repr
)
def test_a_target_return_that_cannot_be(target):
    with pytest.raises(ValueError, match=r"target_return: must|no estimate"):
        make().initial_state(2, target)


@every_rollout
def test_states_are_values_arrays_and_tensors_go_in_and_float32_arrays_come_out(rollout):
    """What is done to a returned action does not reach into its state."""
    policy, (observations, rewards) = make(rollout=rollout), draw_episode(13, 2)
    _, states = play(policy, observations[:12], rewards[:12])
    expected = policy.act(observations[12], rewards[12], states[-1])[0].copy()
    assert expected.dtype == np.float32 and expected.shape == (2, ACTION)
    for convert in (np.float64, torch.from_numpy, lambda x: torch.from_numpy(x).double()):
        action, state = policy.act(convert(observations[12]), convert(rewards[12]), states[-1])
        assert isinstance(action, np.ndarray) and np.array_equal(action, expected)
        action[:] = 7.0
        assert isinstance(state.previous_action, np.ndarray) and np.array_equal(state.previous_action, expected)


@every_rollout
def test_aarens_state_does_not_grow_and_attentions_cache_does(rollout):
    """From the step on at which "staggered" and "window" are full (K = 8), the same bytes for ever."""
    early, late = (20, 100) if rollout != "recurrent" else (10, 500)
    _, states = play(make(rollout=rollout), *draw_episode(late, 1))
    assert state_bytes(states[early - 1]) == state_bytes(states[late - 1])
    _, states = play(make("attention"), *draw_episode(100, 2))
    assert state_bytes(states[99]) > 5 * state_bytes(states[9])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: replace(p, rollout="forget"), "'forget' is not one of recurrent, staggered, window"),
        (lambda p: replace(p, context_length=1), "context_length must be an integer from 2 to 1,048,576, not 1"),
        (lambda p: replace(p, observation_mean=MEAN[:4]), r"statistics must have shape \(11,\)"),
        (lambda p: replace(p, observation_std=STD[None]), r"statistics must have shape \(11,\)"),
        (lambda p: replace(p, action_low=-torch.ones(2)), r"must be numbers or have shape \(3,\)"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        change(make())


def test_saturated_actions_are_inside_the_bounds():
    """Of bounds with two decimals, where the middle plus half the range rounds to a number above one in twenty."""
    low, high = (torch.from_numpy(x) for x in np.sort(np.random.default_rng(0).uniform(-9, 9, (2, 10_000)).round(2), 0))
    middle, half = middle_and_half(low, high)
    assert bool((middle + half <= high.float()).all()) and bool((middle - half >= low.float()).all())
    torch.testing.assert_close(half.double(), (high - low) / 2, rtol=0, atol=2e-6)


def test_bounds_between_two_float32_numbers_are_kept():
    """0.3 in float64 is below float32's 0.3, and 0.1 above is."""
    bounds = torch.tensor([0.3, 0.1, 0.7], dtype=torch.float64)
    middle, half = middle_and_half(-bounds, bounds)
    assert bool((middle == 0).all() and ((bounds - 1e-7 < half.double()) & (half.double() <= bounds)).all())


def test_an_observation_may_be_a_view_that_runs_backward():
    policy, (observations, rewards) = make("attention", rollout="window", context_length=4), draw_episode(1, 2)
    turned = np.ascontiguousarray(observations[0][:, ::-1])[:, ::-1]
    actions = [
        policy.act(seen, rewards[0], policy.initial_state(len(seen), TARGET))[0] for seen in (observations[0], turned)
    ]
    np.testing.assert_array_equal(*actions)
