"""Environments at different steps of their episodes in one batch, against the episodes played apart."""

from dataclasses import replace

import numpy as np
import pytest
from policies import ACTION, COMPILED, CONSTANT_STATE, GROWING, OBSERVATION, draw_episode, make_policy, onnx_policy_of

from aaren_rl.agents import MIXERS, ROLLOUTS, DecisionModel, NonFiniteActionError, Policy, PolicyState
from aaren_rl.agents.policy.base import BasePolicy

STEPS, BATCH = 24, 16
CONSTANT = [(mixer, rollout) for mixer in CONSTANT_STATE for rollout in ROLLOUTS]
ONE_BATCH = [*CONSTANT, *((mixer, "window") for mixer in GROWING)]
STATES = [(mixer, rollout) for mixer in CONSTANT_STATE for rollout in ("recurrent", "staggered")]
WINDOWS = [("aaren", "window"), ("attention", "window")]
ENGINES = [(*one, "compiled" if one[0] in COMPILED else "plain") for one in STATES + WINDOWS]
PLAYED = [*ENGINES, ("aaren", "staggered", "plain"), ("aaren", "recurrent", "exported")]
STARTS = {0: range(BATCH), 2: [3, 5], 7: [0, 1, 2], 9: [15], 13: range(4, 12), 14: [4]}
TARGETS = np.random.default_rng(1).uniform(50, 300, (STEPS, BATCH))


def make(mixer: str = "aaren", rollout: str = "recurrent", **changes) -> Policy:
    return replace(make_policy(mixer, rollout, max_timestep=12, max_return_estimate=True), **changes)


def episode() -> tuple[np.ndarray, np.ndarray]:
    """Observations (T, B, O) and the rewards of the steps before, (T, B), 0 at an episode's first."""
    observations, rewards = draw_episode(STEPS, BATCH)
    for t, rows in STARTS.items():
        rewards[t, list(rows)] = 0
    return observations, rewards


def together(policy: BasePolicy) -> tuple[np.ndarray, list[PolicyState]]:
    """Actions (T, B, A) of one batch whose environments begin at `STARTS`, and the states before every step."""
    observations, rewards = episode()
    state, actions, states = policy.initial_state(BATCH, TARGETS[0]), [], []
    for t in range(STEPS):
        if t in STARTS and t:
            state = policy.reset(state, list(STARTS[t]), TARGETS[t, list(STARTS[t])])
        states.append(state)
        action, state = policy.act(observations[t], rewards[t], state)
        actions.append(action)
    return np.stack(actions), states


def apart(policy: BasePolicy) -> np.ndarray:
    """The same by a batch of its own, all at one step, for every set of environments that begin at once."""
    observations, rewards = episode()
    actions = np.full((STEPS, BATCH, ACTION), np.nan, np.float32)
    for begin, rows in STARTS.items():
        state = policy.initial_state(BATCH, TARGETS[begin])
        for t in range(begin, STEPS):
            action, state = policy.act(observations[t], rewards[t], state)
            actions[t, list(rows)] = action[list(rows)]
    return actions


def rounding(policy: BasePolicy) -> float:
    return 0 if isinstance(policy, Policy) and policy.batch_invariant else 2e-6


@pytest.mark.parametrize(("mixer", "rollout", "engine"), PLAYED)
def test_an_episode_in_a_mixed_batch_is_the_episode_alone(mixer, rollout, engine):
    """To the last bit by the compiled step alone: a processor may add up other products in another order, and the
    actions that came of it are seen again. Over more steps than the table of time steps has rows, and than the window
    is long.
    """
    policy: BasePolicy = make(mixer, rollout, compiled=engine == "compiled")
    if engine == "exported":
        pytest.importorskip("onnxscript")
        policy = onnx_policy_of(policy)
    mixed, states = together(policy)
    np.testing.assert_allclose(mixed, apart(policy), rtol=0, atol=rounding(policy))
    assert states[-1].timestep[[0, 3, 4, 5, 12]].tolist() == [16, 21, 9, 10, 23]
    assert np.abs(np.diff(mixed, axis=0)).min(-1).max(-1).min() > 1e-4  # actions that say something
    (observations, rewards), rows = episode(), np.array([15, 3, 0, 4] * 4)
    acted, _ = policy.act(observations[20, rows], rewards[20, rows], policy.select(states[20], rows))
    np.testing.assert_allclose(acted, mixed[20, rows], rtol=0, atol=rounding(policy))


@pytest.mark.parametrize(("mixer", "rollout"), [*((m, "staggered") for m in CONSTANT_STATE), ("attention", "window")])
def test_a_mixed_state_is_a_value(mixer, rollout):
    policy, (observations, rewards) = make(mixer, rollout), episode()
    actions, states = together(policy)
    for t in (6, 8, 20):
        policy.reset(states[t], [0, 1], 10.0)
        policy.act(observations[t + 1], rewards[t + 1], policy.act(observations[t], rewards[t], states[t])[1])
        np.testing.assert_array_equal(policy.act(observations[t], rewards[t], states[t])[0], actions[t])


@pytest.mark.parametrize("mixer", [*MIXERS, "aaren-rsa with a mask"])
@pytest.mark.parametrize("rollout", ROLLOUTS)
def test_which_policies_reset(mixer, rollout):
    policy = make(mixer.partition(" ")[0], rollout)
    if "mask" in mixer:
        policy = replace(policy, model=DecisionModel(replace(policy.model.config, rem_max_power=5)))
    assert policy.supports_reset == ((mixer, rollout) in ONE_BATCH or rollout == "window")
    if not policy.supports_reset:
        with pytest.raises(ValueError, match="grows with the episode"):
            policy.reset(policy.initial_state(2, 1.0), [0], 1.0)


@pytest.mark.parametrize("index", [[2], [-1], 0, [[0]], ["a"], [0.5], None, [10**30]], ids=repr)
def test_indices_of_no_environment_are_refused(index):
    policy = make()
    with pytest.raises(ValueError, match="indices: must be"):
        policy.reset(policy.initial_state(2, 1.0), index, 1.0)


def test_a_state_that_was_changed_into_nonsense_is_refused():
    policy, zeros = make(), (np.zeros((2, OBSERVATION)), np.zeros(2))
    _, state = policy.act(*zeros, policy.initial_state(2, 1.0))
    with pytest.raises(ValueError, match="previous_action: is None"):
        policy.act(*zeros, state._replace(previous_action=None))
    with pytest.raises(ValueError, match=r"state: timestep: must have shape \(2,\) .*, not \(1,\)"):
        policy.act(*zeros, state._replace(timestep=np.ones(1, np.int64)))
    for negative in (-1, np.array([0, -1])):
        with pytest.raises(ValueError, match="state: timestep: must be at least 0, not -1"):
            policy.act(*zeros, state._replace(timestep=negative))
    with pytest.raises(ValueError, match=r"target_return: .*shape \(1,\)"):
        policy.reset(state, [0], [1.0, 2.0])


def test_messages_name_the_step_of_the_row():
    policy, (observations, rewards) = make(), episode()
    _, states = together(policy)
    observations[20, 4, 1] = np.nan
    with pytest.raises(NonFiniteActionError, match="observation: row 4, column 1 is nan at step 6"):
        policy.act(observations[20], rewards[20], states[20])


@pytest.mark.parametrize("reward", [-np.inf, np.inf])
def test_an_infinite_reward_does_not_ask_for_the_best(reward):
    policy, zeros = make(), np.zeros((2, OBSERVATION))
    _, state = policy.act(zeros, np.zeros(2), policy.initial_state(2, [100.0, np.inf]))
    with pytest.raises(NonFiniteActionError, match=f"reward: row 1 is {reward} at step 1"):
        policy.act(zeros, np.array([0.0, reward]), state)


def test_the_policys_own_return_is_asked_for_by_default():
    own = make(target_return=123.0)
    assert own.initial_state(2).return_to_go.tolist() == [123.0, 123.0]
    assert own.reset(own.initial_state(2, 5.0), [1]).return_to_go.tolist() == [5.0, 123.0]
    with pytest.raises(ValueError, match="this policy names none of its own"):
        make().initial_state(2)
