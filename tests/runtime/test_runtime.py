"""An exported policy's state and errors; `tests/export` holds its steps against PyTorch's."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from policies import OBSERVATION, TARGET, make_policy, onnx_policy_of

from aaren_rl.agents import NonFiniteActionError
from aaren_rl.base.errors import AarenRLError, UsageError
from aaren_rl.runtime import OnnxPolicy

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

STEPS = 30


@pytest.fixture(scope="module")
def onnx_policy() -> OnnxPolicy:
    return onnx_policy_of(make_policy())


@pytest.fixture(scope="module")
def able() -> OnnxPolicy:
    """It estimates the maximum achievable return."""
    return onnx_policy_of(make_policy(max_return_estimate=True, layers=1))


def episode(batch: int, length: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    """Raw observations (T, B, O) and the reward before each step (T, B), 0 at the first."""
    rng = np.random.default_rng(batch)
    rewards = rng.uniform(0, 3, (length, batch)).astype(np.float32)
    rewards[0] = 0
    return rng.normal(size=(length, batch, OBSERVATION)).astype(np.float32), rewards


def test_some_environments_begin_anew(onnx_policy: OnnxPolicy) -> None:
    """Each as if it were alone, whatever the others do; and in any selection of them."""
    observations, rewards = episode(16, 14)
    begins = {0: range(16), 3: [1, 4], 8: [4, 9]}
    for begin, rows in begins.items():
        rewards[begin, list(rows)] = 0
    state, mixed = onnx_policy.initial_state(16, TARGET), []
    for t in range(14):
        if t in begins and t:
            state = onnx_policy.reset(state, begins[t], TARGET + t)
        kept, (action, state) = state, onnx_policy.act(observations[t], rewards[t], state)
        mixed.append(action)
    for begin, rows in begins.items():
        alone = onnx_policy.initial_state(16, TARGET + begin)
        for t in range(begin, 14):
            action, alone = onnx_policy.act(observations[t], rewards[t], alone)
            going = [row for row in rows if not any(row in begins[b] for b in begins if begin < b <= t)]
            np.testing.assert_allclose(mixed[t][going], action[going], rtol=0, atol=1e-6)
    rows = np.array([9, 1, 4, 0] * 4)
    some, _ = onnx_policy.act(observations[13, rows], rewards[13, rows], onnx_policy.select(kept, rows))
    np.testing.assert_allclose(some, mixed[13][rows], rtol=0, atol=1e-6)


def test_a_state_that_was_changed_into_nonsense_is_refused(onnx_policy: OnnxPolicy) -> None:
    (first, second), (zero, reward) = episode(2, 2)
    begun = onnx_policy.reset(onnx_policy.initial_state(2, TARGET), [1], TARGET)  # no action was handed out
    _, state = onnx_policy.act(first, zero, begun)
    with pytest.raises(UsageError, match="previous_action: is None"):
        onnx_policy.act(second, reward, state._replace(previous_action=None))
    with pytest.raises(UsageError, match="state: timestep: must be at least 0, not -5"):
        onnx_policy.act(second, reward, state._replace(timestep=np.array([1, -5])))


def test_an_infinite_reward_does_not_ask_for_the_best(able: OnnxPolicy) -> None:
    (first, second), (zero, _) = episode(2, 2)
    for target in (TARGET, "auto"):
        _, state = able.act(first, zero, able.initial_state(2, target))
        with pytest.raises(NonFiniteActionError, match="reward: row 1 is -inf at step 1") as caught:
            able.act(second, np.array([0.0, -np.inf]), state)
        assert isinstance(caught.value, AarenRLError)


def test_an_export_without_an_estimate_of_the_best_says_so(onnx_policy: OnnxPolicy) -> None:
    with pytest.raises(UsageError, match="holds no estimate of the maximum achievable return"):
        onnx_policy.initial_state(3, "auto")


def test_the_cards_return_is_asked_for_by_default(onnx_policy: OnnxPolicy, able: OnnxPolicy) -> None:
    state = onnx_policy.initial_state(2)
    assert onnx_policy.target_return == TARGET and state.return_to_go.tolist() == [TARGET] * 2
    assert onnx_policy.reset(onnx_policy.initial_state(2, 5.0), [1]).return_to_go.tolist() == [5.0, TARGET]
    able = copy.copy(able)
    able.target_return = "auto"
    assert able.target_return == "auto" and able.initial_state(2).return_to_go.tolist() == [np.inf] * 2
    assert able.reset(able.initial_state(2, 5.0), [0], "auto").return_to_go.tolist() == [np.inf, 5.0]
    with pytest.raises(UsageError, match="target_return: must be a number or \"auto\", not 'best'"):
        able.initial_state(2, "best")


def test_the_state_is_a_value(onnx_policy: OnnxPolicy) -> None:
    (first, second), (zero, reward) = episode(2, 2)
    action, state = onnx_policy.act(first, zero, onnx_policy.initial_state(2, TARGET))
    wanted, _ = onnx_policy.act(second, reward, state)
    action[:] = 7  # the caller's own
    again, _ = onnx_policy.act(second, reward, state)
    np.testing.assert_array_equal(again, wanted)
    assert not np.shares_memory(action, state.previous_action)


@pytest.mark.parametrize("exported", [False, True], ids=["policy", "onnx_policy"])
def test_copies_and_pickles_act_alike(exported: bool, onnx_policy: OnnxPolicy) -> None:
    policy = onnx_policy if exported else make_policy("aaren")
    observations, rewards = (array[0] for array in episode(2))
    acted, state = policy.act(observations, rewards, policy.initial_state(2, TARGET))
    for other in (copy.copy(policy), copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        again, _ = other.act(observations, rewards, other.initial_state(2, TARGET))
        assert np.array_equal(acted, again)
        assert np.array_equal(policy.act(observations, rewards, state)[0], other.act(observations, rewards, state)[0])
