"""Exported policies that are asked for the best return in reach."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
from policies import OBSERVATION, make_card, make_policy

from aaren_rl.errors import NumericsError, UsageError
from aaren_rl.export import model as module
from aaren_rl.export.model import check, make_runner
from aaren_rl.export.model import make_model as make_onnx

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

MODES = [("aaren", "carry"), ("aaren", "rolling"), ("attention", "window")]
TARGETS = np.array([np.inf, 40.0, np.inf])


@pytest.mark.parametrize(("mixer", "rollout"), MODES)
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_same_as_in_torch(mixer: str, rollout: str, precision: str) -> None:
    policy = make_policy(mixer, rollout, best_return=True)
    card = make_card(policy.model, rollout=rollout)
    runner = make_runner(make_onnx(policy, card, precision))
    rng = np.random.default_rng(0)
    state, exported = policy.initial_state(3, TARGETS), runner.initial_state(3, TARGETS)
    for _ in range(12):
        observation, reward = rng.normal(size=(3, OBSERVATION)).astype(np.float32), rng.uniform(0, 9, 3)
        expected, state = policy.act(observation, reward, state)
        action, exported = runner.act(observation, reward, exported)
        np.testing.assert_allclose(action, expected, rtol=0, atol=1e-5)
    assert np.isposinf(exported.return_to_go).tolist() == [True, False, True]


def test_the_check_asks_for_the_best_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECKED_STEPS", 3)
    policy = dataclasses.replace(make_policy(best_return=True), return_range=None)
    card = make_card(policy.model)
    other = copy.deepcopy(policy)
    assert other.model.best_return is not None
    other.model.best_return.last.bias.data += 1.0
    runner = make_runner(make_onnx(other, card))
    with pytest.raises(NumericsError, match="differs from PyTorch's"):
        check(policy, runner, card, seed=0)


def test_an_export_without_an_estimate_says_so() -> None:
    policy = make_policy()
    runner = make_runner(make_onnx(policy, make_card(policy.model)))
    with pytest.raises(UsageError, match="holds no estimate of the best return in reach"):
        runner.initial_state(3, TARGETS)
