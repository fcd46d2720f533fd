"""An exported policy's state and errors; `tests/export` holds its steps against PyTorch's."""

import copy
import pickle

import numpy as np
import pytest
from policies import OBSERVATION, TARGET, make_policy, onnx_policy_of

from aaren_rl.runtime import OnnxPolicy

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

STEPS = 30


@pytest.fixture(scope="module")
def onnx_policy() -> OnnxPolicy:
    return onnx_policy_of(make_policy())


def episode(batch: int, length: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    """Raw observations (T, B, O) and the reward before each step (T, B), 0 at the first."""
    rng = np.random.default_rng(batch)
    rewards = rng.uniform(0, 3, (length, batch)).astype(np.float32)
    rewards[0] = 0
    return rng.normal(size=(length, batch, OBSERVATION)).astype(np.float32), rewards


def test_some_environments_begin_anew(onnx_policy):
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


def test_copies_and_pickles_act_alike():
    policy = make_policy("aaren")
    observations, rewards = (array[0] for array in episode(2))
    acted, state = policy.act(observations, rewards, policy.initial_state(2, TARGET))
    for other in (copy.copy(policy), copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        again, _ = other.act(observations, rewards, other.initial_state(2, TARGET))
        assert np.array_equal(acted, again)
        assert np.array_equal(policy.act(observations, rewards, state)[0], other.act(observations, rewards, state)[0])
