"""The exported step against `Policy`, and the state and the errors of the exported policy."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from policies import (
    ACTION,
    HIGH,
    LOW,
    MEAN,
    OBSERVATION,
    SCALE,
    STD,
    TARGET,
    in_float64,
    make_card,
    make_model,
    make_policy,
)

from aaren_rl.agents import DecisionModel, ModelConfig, NonFiniteActionError, Policy
from aaren_rl.base.errors import AarenRLError, UsageError
from aaren_rl.runtime import OnnxPolicy

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from aaren_rl.export.model import make_model as make_onnx
from aaren_rl.export.model import make_onnx_policy

STEPS = 30
MODES = [("aaren", "recurrent", 8), *(("aaren", "staggered", k) for k in (2, 3, 8)), ("aaren", "window", 8)]
MODES += [("attention", "window", k) for k in (2, 8)]
MODES += [("aaren-rsa", "recurrent", 8), ("aaren-rsa", "staggered", 8)]
GATED = [(mixer, rollout, 8, 1) for mixer in ("gru", "mingru") for rollout in ("recurrent", "staggered")]
every_mode = pytest.mark.parametrize(("mixer", "rollout", "context_length"), MODES)
tokens = pytest.mark.parametrize("tokens_per_step", [1, 3])


def onnx_policy_of(policy: Policy, precision: str = "float32") -> OnnxPolicy:
    return make_onnx_policy(make_onnx(policy, make_card(policy.model), precision))


def episode(batch: int, length: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    """Raw observations (T, B, O) and the reward before each step (T, B), 0 at the first."""
    rng = np.random.default_rng(batch)
    rewards = rng.uniform(0, 3, (length, batch)).astype(np.float32)
    rewards[0] = 0
    return rng.normal(size=(length, batch, OBSERVATION)).astype(np.float32), rewards


def assert_equal(
    policy: Policy, onnx_policy: OnnxPolicy, batch: int, *, tolerance: float = 1e-5, length: int = STEPS
) -> None:
    """Both play the same observations; every third action is replaced by what was executed instead."""
    targets = TARGET * np.arange(1.0, batch + 1)
    if policy.model.max_return_estimate is not None:
        targets[::2] = np.inf
    state, exported = policy.initial_state(batch, targets), onnx_policy.initial_state(batch, targets)
    executed = np.random.default_rng(0).uniform(LOW, HIGH, (batch, ACTION)).astype(np.float32)
    for t, (observation, reward) in enumerate(zip(*episode(batch, length), strict=True)):
        wanted, state = policy.act(observation, reward, state)
        action, exported = onnx_policy.act(observation, reward, exported)
        assert action.dtype == np.float32
        np.testing.assert_allclose(action, wanted, rtol=0, atol=tolerance, err_msg=f"step {t}")
        np.testing.assert_array_equal(exported.return_to_go, state.return_to_go)
        assert exported.timestep == state.timestep == t + 1
        if t % 3 == 0:
            state = state._replace(previous_action=torch.from_numpy(executed))
            exported = exported._replace(previous_action=executed)


@pytest.mark.parametrize(
    ("mixer", "rollout", "context_length", "tokens_per_step"), [*((*mode, j) for mode in MODES for j in (1, 3)), *GATED]
)
@pytest.mark.parametrize("batch", [1, 3, 16])
def test_the_exported_step_is_the_policy(
    mixer: str, rollout: str, context_length: int, batch: int, tokens_per_step: int
) -> None:
    """Longer than the timestep embedding's table (20 rows), with action ranges that are not -1 to 1."""
    policy = make_policy(
        mixer, rollout, context_length, tokens_per_step=tokens_per_step, max_return_estimate=batch == 3
    )
    assert_equal(policy, onnx_policy_of(policy), batch)


@pytest.mark.parametrize("activation", ["gelu", "gelu-tanh", "relu"])
@pytest.mark.parametrize(("mixer", "rollout"), [("attention", "window"), ("aaren", "recurrent"), ("gru", "recurrent")])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_blocks_of_imported_policies(mixer: str, rollout: str, activation: str, precision: str) -> None:
    policy = make_policy(mixer, rollout, block="pre-norm", activation=activation)
    assert_equal(policy, onnx_policy_of(policy, precision), 3)


def test_one_layer_and_large_scores() -> None:
    """Scores of some hundreds: exp of them overflows float32, of their differences float64."""
    model = make_model()
    del model.trunk.blocks[1]
    model.trunk.blocks[0].mixer.query_token.data *= 300
    policy = Policy(model, MEAN, STD, SCALE, "recurrent", 8, LOW, HIGH)
    assert_equal(policy, onnx_policy_of(policy), 2, tolerance=1e-3)


def test_a_mixer_without_a_graph_is_refused() -> None:
    with pytest.raises(UsageError, match="the mixer rsa has no ONNX graph; use the policy itself"):
        onnx_policy_of(make_policy("rsa"))


@pytest.mark.parametrize("counts", ["2,0,0,0,0,0", "0,1,2,0,0,0", "0,0,1,1,1,1"])
@pytest.mark.parametrize("dilation", [2, 3, 7])
@tokens
def test_recurrence_encoding_of_every_kind(counts: str, dilation: int, tokens_per_step: int) -> None:
    """As many sums as the dilation asks for, fewer or more than a step has tokens; some heads without."""
    torch.manual_seed(0)
    rems = {"rem_counts": counts, "rem_dilation": dilation, "tokens_per_step": tokens_per_step}
    config = ModelConfig(OBSERVATION, ACTION, "aaren-rsa", 16, 2, 4, **rems)
    model = DecisionModel(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    policy = Policy(model, MEAN, STD, SCALE, "recurrent", 8, LOW, HIGH)
    assert_equal(policy, onnx_policy_of(policy), 2)


def test_recurrence_encoding_that_has_no_graph_is_refused() -> None:
    masked = DecisionModel(ModelConfig(OBSERVATION, ACTION, "aaren-rsa", 16, 1, 4, rem_max_power=5))
    with pytest.raises(UsageError, match=r"aaren-rsa with a mask \(rem_max_power\) has no ONNX graph"):
        onnx_policy_of(Policy(masked, MEAN, STD, SCALE, "recurrent", 8))
    with pytest.raises(UsageError, match="use --rollout recurrent"):
        onnx_policy_of(make_policy("aaren-rsa", "window"))


@pytest.mark.parametrize("mixer", ["gru", "mingru"])
def test_gated_units_have_a_graph_of_one_token_and_a_state(mixer: str) -> None:
    for policy in (make_policy(mixer, "window"), make_policy(mixer, tokens_per_step=3)):
        with pytest.raises(UsageError, match=f"the mixer {mixer} .* use --rollout recurrent and a policy trained with"):
            onnx_policy_of(policy)


@pytest.mark.parametrize("mixer", ["aaren", "gru", "mingru"])
def test_in_float64_actions_are_equal_to_the_last_bit(mixer: str) -> None:
    """Sums in another order differ by 1e-16, which float32 rounds away: long episodes stay the same, falls included."""
    policy = Policy(make_model(mixer), MEAN, STD, SCALE, "recurrent", 8)
    onnx_policy = make_onnx_policy(make_onnx(policy, make_card(policy.model), "float64"))
    assert_equal(in_float64(policy), onnx_policy, 3, tolerance=0)


@pytest.mark.parametrize(("mixer", "rollout"), [("aaren", "staggered"), ("aaren", "window"), ("attention", "window")])
def test_every_mode_in_float64(mixer: str, rollout: str) -> None:
    policy = make_policy(mixer, rollout, max_return_estimate=True)
    assert_equal(policy, make_onnx_policy(make_onnx(policy, make_card(policy.model), "float64")), 2)


@every_mode
def test_some_environments_begin_anew(mixer: str, rollout: str, context_length: int) -> None:
    """Each as if it were alone, whatever the others do; and in any selection of them."""
    onnx_policy = onnx_policy_of(make_policy(mixer, rollout, context_length))
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
            np.testing.assert_array_equal(mixed[t][going], action[going])
    rows = np.array([9, 1, 4, 0] * 4)
    some, _ = onnx_policy.act(observations[13, rows], rewards[13, rows], onnx_policy.select(kept, rows))
    np.testing.assert_array_equal(some, mixed[13][rows])


@every_mode
@pytest.mark.parametrize("sign", [1, -1, np.nan])
def test_a_reset_ignores_what_the_memory_holds(mixer: str, rollout: str, context_length: int, sign: float) -> None:
    onnx_policy = onnx_policy_of(make_policy(mixer, rollout, context_length))
    observations, rewards = episode(2)
    fresh = onnx_policy.initial_state(2, TARGET)
    largest = sign * np.finfo(fresh.memory.dtype).max
    state = fresh._replace(
        memory=np.full_like(fresh.memory, largest),
        previous_action=np.full((2, ACTION), sign * np.finfo(np.float32).max, np.float32),
    )
    for seen, reward in zip(observations, rewards, strict=True):
        wanted, fresh = onnx_policy.act(seen, reward, fresh)
        action, state = onnx_policy.act(seen, reward, state)
        np.testing.assert_array_equal(action, wanted)


def test_a_state_that_was_changed_into_nonsense_is_refused() -> None:
    onnx_policy, (first, second), (zero, reward) = onnx_policy_of(make_policy()), *episode(2, 2)
    begun = onnx_policy.reset(onnx_policy.initial_state(2, TARGET), [1], TARGET)  # no action was handed out
    _, state = onnx_policy.act(first, zero, begun)
    with pytest.raises(UsageError, match="previous_action: is None"):
        onnx_policy.act(second, reward, state._replace(previous_action=None))
    with pytest.raises(UsageError, match="state: timestep: must be at least 0, not -5"):
        onnx_policy.act(second, reward, state._replace(timestep=np.array([1, -5])))


def test_an_infinite_reward_does_not_ask_for_the_best() -> None:
    onnx_policy = onnx_policy_of(make_policy(max_return_estimate=True))
    (first, second), (zero, _) = episode(2, 2)
    for target in (TARGET, "auto"):
        _, state = onnx_policy.act(first, zero, onnx_policy.initial_state(2, target))
        with pytest.raises(NonFiniteActionError, match="reward: row 1 is -inf at step 1") as caught:
            onnx_policy.act(second, np.array([0.0, -np.inf]), state)
        assert isinstance(caught.value, AarenRLError)


def test_an_export_without_an_estimate_of_the_best_says_so() -> None:
    with pytest.raises(UsageError, match="holds no estimate of the maximum achievable return"):
        onnx_policy_of(make_policy()).initial_state(3, "auto")


def test_the_cards_return_is_asked_for_by_default() -> None:
    onnx_policy = onnx_policy_of(make_policy())
    state = onnx_policy.initial_state(2)
    assert onnx_policy.target_return == TARGET and state.return_to_go.tolist() == [TARGET] * 2
    assert onnx_policy.reset(onnx_policy.initial_state(2, 5.0), [1]).return_to_go.tolist() == [5.0, TARGET]
    able = onnx_policy_of(make_policy(max_return_estimate=True))
    able.target_return = "auto"
    assert able.target_return == "auto" and able.initial_state(2).return_to_go.tolist() == [np.inf] * 2
    assert able.reset(able.initial_state(2, 5.0), [0], "auto").return_to_go.tolist() == [np.inf, 5.0]
    with pytest.raises(UsageError, match="target_return: must be a number or \"auto\", not 'best'"):
        able.initial_state(2, "best")


def test_the_state_is_a_value() -> None:
    onnx_policy = onnx_policy_of(make_policy())
    (first, second), (zero, reward) = episode(2, 2)
    action, state = onnx_policy.act(first, zero, onnx_policy.initial_state(2, TARGET))
    wanted, _ = onnx_policy.act(second, reward, state)
    action[:] = 7  # the caller's own
    again, _ = onnx_policy.act(second, reward, state)
    np.testing.assert_array_equal(again, wanted)
    assert not np.shares_memory(action, state.previous_action)


@pytest.mark.slow
def test_many_steps_do_not_drift() -> None:
    policy = make_policy()
    assert_equal(in_float64(policy), onnx_policy_of(policy), 1, length=5_000)


@pytest.mark.parametrize("exported", [False, True], ids=["policy", "onnx_policy"])
def test_copies_and_pickles_act_alike(exported: bool) -> None:
    policy = make_policy("aaren")
    policy = onnx_policy_of(policy) if exported else policy
    observations, rewards = (array[0] for array in episode(2))
    acted, state = policy.act(observations, rewards, policy.initial_state(2, TARGET))
    for other in (copy.copy(policy), copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        again, _ = other.act(observations, rewards, other.initial_state(2, TARGET))
        assert np.array_equal(acted, again)
        assert np.array_equal(policy.act(observations, rewards, state)[0], other.act(observations, rewards, state)[0])
