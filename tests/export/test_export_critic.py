"""An exported policy with a critic chooses the same candidates as PyTorch, in the graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from policies import MEAN, OBSERVATION, SCALE, STD, make_card, make_policy

from aaren_rl import load_policy
from aaren_rl.agents import ROLLOUTS, Critic, Policy
from aaren_rl.base.errors import ArgumentError, CheckpointError, NumericsError
from aaren_rl.evaluate.command import main as evaluate
from aaren_rl.export import model as module
from aaren_rl.export.command import main as export
from aaren_rl.export.model import check, make_model, make_onnx_policy
from aaren_rl.policies.folder import save_policy
from aaren_rl.runtime import OnnxPolicy

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def prepare(critic: Critic | None) -> None:
    """Weights of networks that agree in most."""
    assert critic is not None
    critic.draw(3)
    for weight, bias in zip(critic.weights, critic.biases, strict=True):
        weight.data = 0.9 * weight[:1] + 0.1 * weight
        bias.data = torch.linspace(-0.5, 0.5, bias.numel()).view(bias.shape)
    critic.deviation.copy_(torch.tensor([0.25, 0.1, 0.2]))


def make(rollout: str = "recurrent", mixer: str = "aaren", *, estimate: bool = True) -> Policy:
    policy = make_policy(mixer, rollout, critic=True, max_return_estimate=estimate)
    policy.model.head.weight.data *= 4
    prepare(policy.model.critic)
    return replace(policy, compiled=False)


def exported(policy: Policy, precision: str = "float32") -> OnnxPolicy:
    return make_onnx_policy(make_model(policy, make_card(policy.model, rollout=policy.rollout), precision))


def steps(length: int, batch: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(length)
    rewards = rng.uniform(0, 3, (length, batch))
    rewards[0] = 0
    return list(zip(rng.normal(size=(length, batch, OBSERVATION)).astype(np.float32), rewards, strict=True))


@pytest.mark.parametrize(
    ("rollout", "mixer", "precision"),
    [
        *((rollout, "aaren", "float32") for rollout in ROLLOUTS),
        ("recurrent", "aaren", "float64"),
        ("recurrent", "gru", "float32"),
        ("window", "attention", "float32"),
    ],
)
def test_the_same_candidates_as_in_pytorch(rollout: str, mixer: str, precision: str) -> None:
    """Beside environments in which a number is asked for, and which a critic does not touch."""
    policy = make(rollout, mixer)
    onnx_policy, targets, chose = exported(policy, precision), [np.inf, 100.0, np.inf], 0
    assert onnx_policy.candidates == policy.candidates == 16
    state, other = policy.initial_state(3, targets), onnx_policy.initial_state(3, targets)
    plain = policy.initial_state(3, targets, candidates=1)
    assert other.improves.tolist() == [True, False, True]
    for observation, reward in steps(150, 3):
        action, state = policy.act(observation, reward, state)
        found, other = onnx_policy.act(observation, reward, other)
        own, plain = policy.act(observation, reward, plain)
        np.testing.assert_allclose(found, action, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(own[1], action[1])
        chose += int((own != action).any(1).sum())
        other, plain = other._replace(previous_action=action), plain._replace(previous_action=action)
    assert 100 < chose < 300


def test_where_any_network_gives_nan_the_action_is_the_policys() -> None:
    policy = make()
    policy.model.critic.weights[2].data[1] = np.nan
    onnx_policy = exported(policy)
    state, plain = onnx_policy.initial_state(2, "auto"), onnx_policy.initial_state(2, "auto", candidates=1)
    for observation, reward in steps(5, 2):
        action, state = onnx_policy.act(observation, reward, state)
        own, plain = onnx_policy.act(observation, reward, plain)
        np.testing.assert_array_equal(action, own)


def test_states_keep_who_chooses() -> None:
    onnx_policy = exported(make())
    state = onnx_policy.initial_state(3, [np.inf, 5.0, 5.0])
    _, state = onnx_policy.act(*steps(1, 3)[0], state)
    assert onnx_policy.select(state, np.array([1, 0])).improves.tolist() == [False, True]
    begun = onnx_policy.reset(state, [0, 2], [7.0, np.inf])
    assert begun.improves.tolist() == [False, False, True] and state.improves.tolist() == [True, False, False]
    assert onnx_policy.reset(state, [1]).improves.tolist() == [True, True, False]
    assert onnx_policy.reset(state, [0, 1], candidates=1).improves.tolist() == [False, False, False]
    assert onnx_policy.initial_state(2).improves.tolist() == [True, True]  # asked for the best
    with pytest.raises(ArgumentError, match="candidates: must be 1 or 16, not 2"):
        onnx_policy.initial_state(2, candidates=2)
    with pytest.raises(ArgumentError, match="state: improves: must be bool"):
        onnx_policy.act(*steps(1, 3)[0], state._replace(improves=None))
    with pytest.raises(ArgumentError, match="candidates: must be 1 for a policy without a critic"):
        exported(make_policy()).initial_state(2, candidates=16)
    assert exported(make_policy()).initial_state(2).improves is None


def test_a_file_whose_candidates_do_not_fit_its_inputs_is_refused() -> None:
    policy = make()
    model = make_model(policy, make_card(policy.model))
    module._describe(model, make_card(policy.model), precision="float32", candidates=1)
    with pytest.raises(CheckpointError, match="1 candidates and inputs"):
        make_onnx_policy(model)


@pytest.mark.parametrize("estimate", [True, False])
def test_the_check_of_an_export_sees_another_choice(monkeypatch: pytest.MonkeyPatch, estimate: bool) -> None:
    monkeypatch.setattr(module, "CHECKED_STEPS", 60)
    policy, other = (make(estimate=estimate) for _ in range(2))
    card = make_card(policy.model, observation_mean=MEAN.tolist(), observation_std=STD.tolist(), return_scale=SCALE)
    assert check(policy, exported(policy), card, 0) < 1e-5
    for weight in other.model.critic.weights[2:]:
        weight.data *= -1
    with pytest.raises(NumericsError, match="differs from PyTorch"):
        check(policy, exported(other), card, 0)


def test_export_and_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr(module, "CHECKED_STEPS", 30)
    model, run, file = make().model, tmp_path / "seed0", tmp_path / "policy.onnx"
    save_policy(run / "policy", make_card(model), {"ema": model.state_dict()})
    assert export([str(run), "--out", str(file)]) == 0 and load_policy(file).candidates == 16
    assert evaluate([str(file), "--episodes", "1"]) == 0
    assert "; chose among 16 candidate actions by its critic\n" in capsys.readouterr().out
    assert evaluate([str(file), "--episodes", "1", "--candidates", "1"]) == 0
    assert "candidate" not in capsys.readouterr().out
