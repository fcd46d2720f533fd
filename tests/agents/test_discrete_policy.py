"""Discrete actions: logits in parallel and step by step, the choice among them, and what a caller may hand over."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from policies import draw_episode
from scipy import stats
from torch.nn import functional as F

from aaren_rl.agents import MIXERS, ROLLOUTS, DecisionModel, ModelConfig, Policy
from aaren_rl.agents.policy.base import choose, next_seeds

OBSERVATION, ACTIONS, START, TARGET, SCALE, STEPS = 4, 3, -1, 30.0, 50.0, 40


def make(mixer: str = "aaren", rollout: str = "recurrent", tokens_per_step: int = 1, **changes: Any) -> Policy:
    torch.manual_seed(0)
    shape = {"width": 16, "layers": 2, "heads": 2, "max_timestep": 60, "tree_budget": 1.0}
    config = ModelConfig(
        OBSERVATION, ACTIONS, mixer, tokens_per_step=tokens_per_step, timestep_std=1.0, discrete=True, **shape
    )
    model = DecisionModel(config)
    model.embed_action.weight.data *= 5  # an action that is left out shows
    model.head.weight.data *= 5
    statistics = torch.linspace(-1, 1, OBSERVATION), torch.linspace(0.5, 2, OBSERVATION)
    return Policy(model, *statistics, SCALE, rollout, 8, action_start=START, **changes)


def steps(batch: int = 2) -> tuple[np.ndarray, np.ndarray]:
    return draw_episode(STEPS, batch, OBSERVATION)


def play(policy: Policy, batch: int = 2, **begin: Any) -> tuple[np.ndarray, np.ndarray]:
    """Logits (T, B, n) and actions (T, B)."""
    state, logits, actions = policy.initial_state(batch, TARGET, **begin), [], []
    for observation, reward in zip(*steps(batch), strict=True):
        found, state = policy.logits(observation, reward, state)
        logits.append(found)
        actions.append(state.previous_action)
    return np.stack(logits), np.stack(actions)


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("tokens_per_step", [1, 3])
@torch.no_grad()
def test_logits_step_by_step_are_those_in_parallel(mixer, tokens_per_step):
    """Of the whole episode, whose previous actions are one-hot vectors; the compiled step is one of those held."""
    policy, (observations, rewards) = make(mixer, tokens_per_step=tokens_per_step, temperature=3.0), steps()
    logits, actions = play(policy)
    assert actions.dtype == np.int64 and set(np.unique(actions)) == {-1, 0, 1}
    seen = (torch.from_numpy(observations) - policy.observation_mean) / policy.observation_std
    to_go = torch.from_numpy((TARGET - rewards.cumsum(0)) / SCALE).float()
    taken = F.one_hot(torch.from_numpy(actions - START), ACTIONS).float()
    times = torch.arange(STEPS).expand(2, -1)
    whole, _ = policy.model(seen.transpose(0, 1), taken.transpose(0, 1), to_go.T, times)
    np.testing.assert_allclose(logits.transpose(1, 0, 2), whole.numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("rollout", ROLLOUTS)
@pytest.mark.parametrize("mixer", ["aaren", "attention"])
def test_what_was_executed_is_seen_and_act_is_the_choice(mixer, rollout):
    """In every rollout mode; compiled as in plain operations."""
    policy, (observations, rewards) = make(mixer, rollout), steps()
    logits, actions = play(policy)
    plain, _ = play(dataclasses.replace(policy, compiled=False))
    np.testing.assert_allclose(logits, plain, rtol=0, atol=2e-5)
    np.testing.assert_array_equal(actions, logits.argmax(2) + START)
    state = policy.initial_state(2, TARGET)
    acted, state = policy.act(observations[0], rewards[0], state)
    np.testing.assert_array_equal(acted, actions[0])
    other = np.array([START, START]) + (actions[0] == START)
    replaced, _ = policy.logits(observations[1], rewards[1], state._replace(previous_action=other))
    same, _ = policy.logits(observations[1], rewards[1], state)
    np.testing.assert_array_equal(same, logits[1])
    assert (np.abs(replaced - same).max(1) > 1e-3).all()


def test_samples_follow_the_softmax_of_the_logits():
    """Over seeds and over steps; at a temperature near 0 they are the most likely action, near infinity uniform."""
    logits, count = np.array([[0.5, -1.0, 2.0]], np.float32), 4000
    for temperature in (0.5, 1.0, 3.0):
        wanted = np.exp(logits[0].astype(float) / temperature)
        for seeds, times in ((np.arange(count), 5), (np.full(count, 3), np.arange(count))):
            drawn = choose(logits.repeat(count, 0), 7, temperature, seeds, times)
            found = np.bincount(drawn - 7, minlength=3)
            assert stats.chisquare(found, count * wanted / wanted.sum()).pvalue > 1e-3
    assert set(choose(logits.repeat(count, 0), 0, 1e-300, np.arange(count), 5)) == {2}
    assert np.bincount(choose(logits.repeat(count, 0), 0, 1e30, np.arange(count), 5)).min() > count / 4


def test_an_episodes_draws_depend_on_its_seed_and_step_alone():
    policy = make(temperature=1.0)
    _, together = play(policy, 2, seed=[5, 9])
    np.testing.assert_array_equal(together, play(policy, 2, seed=[5, 9])[1])
    assert (together != play(policy, 2, seed=[6, 9])[1]).any(0).tolist() == [True, False]
    observations, rewards = steps()
    state = policy.select(policy.initial_state(2, TARGET, seed=[5, 9]), [1])
    for t in range(STEPS):
        action, state = policy.act(observations[t, [1]], rewards[t, [1]], state)
        assert action == together[t, 1]
    assert policy.initial_state(3, TARGET, seed=4).seeds.tolist() == [4, 5, 6]
    seeds = np.array([5, 9])
    state, seeds[:] = policy.initial_state(2, TARGET, seed=seeds), 0
    assert state.seeds.tolist() == [5, 9]
    assert make().initial_state(3, TARGET, seed=4).seeds is None


def test_an_episode_begun_again_draws_anew_and_the_same_every_time():
    policy = make(temperature=1.0)
    state = policy.initial_state(3, TARGET, seed=4)
    twice = [policy.reset(state, [0, 2], TARGET).seeds.tolist() for _ in range(2)]
    assert twice[0] == twice[1] and twice[0][1] == 5
    assert len({*twice[0], 4, 5, 6}) == 5 and state.seeds.tolist() == [4, 5, 6]
    assert (next_seeds(np.array([0, 2**63 - 1])) >= 0).all()


@pytest.mark.parametrize("temperature", [0, float("nan"), "1", True])
def test_a_temperature_that_cannot_be(temperature):
    with pytest.raises(ValueError, match=r"^temperature: [^\n]*$"):
        make(temperature=temperature)


def test_a_temperature_is_for_discrete_actions():
    model = DecisionModel(ModelConfig(OBSERVATION, 2, width=16, layers=1, heads=2))
    statistics = torch.zeros(OBSERVATION), torch.ones(OBSERVATION)
    with pytest.raises(ValueError, match="continuous"):
        Policy(model, *statistics, SCALE, "recurrent", 8, temperature=1.0)
    policy = Policy(model, *statistics, SCALE, "recurrent", 8)
    with pytest.raises(ValueError, match="continuous"):
        policy.logits(np.zeros((1, OBSERVATION)), np.zeros(1), policy.initial_state(1, TARGET))


WRONG_ACTIONS = {
    "floats": np.zeros(2, np.float32),
    "n": np.array([0, START + ACTIONS]),
    "too small": np.array([START - 1, 0]),
    "one-hot": np.eye(ACTIONS, dtype=np.int64)[:2],
    "a column": np.zeros((2, 1), np.int64),
    "text": np.array(["0", "1"]),
    "objects": [None, None],
}


@pytest.mark.parametrize("action", WRONG_ACTIONS.values(), ids=WRONG_ACTIONS)
def test_a_previous_action_that_cannot_be(action):
    policy, (observations, rewards) = make(), steps()
    _, state = policy.act(observations[0], rewards[0], policy.initial_state(2, TARGET))
    with pytest.raises(ValueError, match=r"^previous_action: [^\n]*$"):
        policy.act(observations[1], rewards[1], state._replace(previous_action=action))


@pytest.mark.parametrize("seed", [-1, [1], 0.5, "7", None, 2**63, [[1, 2]]], ids=str)
def test_a_seed_that_cannot_be(seed):
    policy = make(temperature=1.0)
    with pytest.raises(ValueError, match=r"^seed: [^\n]*$"):
        policy.initial_state(2, TARGET, seed=seed)
    bad = policy.initial_state(2, TARGET)._replace(seeds=None)
    with pytest.raises(ValueError, match=r"^state: seeds: [^\n]*$"):
        policy.act(*(part[0] for part in steps()), bad)
