"""The compiled environment step against the decision model in float64."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor

from aaren_rl.agents import AarenRsa, DecisionModel, ModelConfig, NonFiniteActionError, Policy, kernels
from aaren_rl.agents.fast.rollout import for_rollout
from aaren_rl.agents.fast.rollout_step import CompiledStep, can_compile

SHAPES = {
    "post-norm": {},
    "pre-norm": {"block": "pre-norm", "layers": 2},
    "relu": {"activation": "relu", "layers": 1},
    "odd heads": {"width": 20, "heads": 4, "layers": 2},
    "wide actions": {"action_dim": 21, "observation_dim": 5, "width": 12, "heads": 3},
    "default size": {"width": 128, "heads": 4, "layers": 3},
    "recurrence encoding": {"mixer": "aaren-rsa", "width": 16, "heads": 8},
    "more heads than encodings": {"mixer": "aaren-rsa", "heads": 8, "rem_counts": "1,0,1,0,2,1", "rem_dilation": 2},
    "far apart": {"mixer": "aaren-rsa", "heads": 4, "rem_counts": "0,1,1,1,0,0", "rem_dilation": 7},
}
MASKED = {"mixer": "aaren-rsa", "rem_max_power": 5}


def make(spread: float = 1.0, **changes) -> DecisionModel:
    """A model whose every weight is off its initial value; the scores are linear in `spread`."""
    torch.manual_seed(0)
    settings = {"observation_dim": 11, "action_dim": 3, "width": 16, "heads": 2, "layers": 3, "max_timestep": 50}
    model = DecisionModel(ModelConfig(**(settings | changes))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
        for block in model.trunk.blocks:
            mixer = block.mixer
            (mixer.inner if isinstance(mixer, AarenRsa) else mixer).query_token *= spread
    return model


@torch.no_grad()
def play(stepper: CompiledStep | DecisionModel, steps: int, batch: int, dtype=torch.float32, first: int = 0) -> Tensor:
    """Actions (B, T, A); what an environment sees depends on its number alone."""
    state, action, actions = stepper.initial_state(batch), None, []
    seen = [
        torch.randn(steps, stepper.config.observation_dim + 1, generator=torch.manual_seed(b)) for b in range(batch)
    ]
    inputs = torch.stack(seen, 1).to(dtype)
    for t in range(steps):
        action, state = stepper.step(inputs[t, :, 1:], inputs[t, :, 0], first + t, action, state)
        actions.append(action)
    return torch.stack(actions, 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_model(shape: str) -> None:
    """Over more steps than the timestep's embedding has rows."""
    model = make(**SHAPES[shape])
    assert can_compile(model)
    wanted = play(copy.deepcopy(model).double(), 80, 4, torch.float64)
    acted = play(CompiledStep(model), 80, 4)
    assert acted.dtype == torch.float32
    torch.testing.assert_close(acted.double(), wanted, rtol=0, atol=1e-6)
    assert wanted.std() > 0.05  # the actions are not all the same


@pytest.mark.parametrize("spread", [100.0, 1e4])
def test_large_scores_neither_overflow_nor_forget(spread: float) -> None:
    """Float32 scores of 1e4 are rounded at 1e-3, and a weight changes by as much."""
    model = make(spread)
    wanted = play(copy.deepcopy(model).double(), 60, 2, torch.float64)
    torch.testing.assert_close(play(CompiledStep(model), 60, 2).double(), wanted, rtol=0, atol=1e-6 * spread)


@pytest.mark.parametrize("mixer", ["aaren", "aaren-rsa"])
def test_an_episode_is_the_same_alone_and_beside_others_to_the_last_bit(mixer: str) -> None:
    stepper = CompiledStep(make(width=128, heads=4, layers=2, mixer=mixer))
    whole = play(stepper, 30, 17)
    for batch in (1, 2, 3, 4, 16):
        assert torch.equal(play(stepper, 30, batch), whole[:batch]), batch


@pytest.mark.parametrize("mixer", ["aaren", "aaren-rsa"])
@torch.no_grad()
def test_a_state_may_be_used_again_and_begin_late(mixer: str) -> None:
    """A state is a value; a fresh one may begin at any timestep ("rolling" does that)."""
    model = make(mixer=mixer)
    stepper, x = CompiledStep(model), torch.randn(2, 11)
    _, before = stepper.step(x, x[:, 0], 0, None, stepper.initial_state(2))
    copied = copy.deepcopy(before)
    first, _ = stepper.step(x, x[:, 0], 1, x[:, :3], before)
    again, _ = stepper.step(x, x[:, 0], 1, x[:, :3], before)
    assert torch.equal(first, again)
    assert all(torch.equal(a, b) for a, b in zip(before, copied, strict=True))
    wanted = play(copy.deepcopy(model).double(), 5, 2, torch.float64, first=20)
    torch.testing.assert_close(play(stepper, 5, 2, first=20).double(), wanted, rtol=0, atol=1e-6)


def test_shapes_that_do_not_fit_are_refused() -> None:
    """Compiled code has no bounds."""
    stepper, x = CompiledStep(make(mixer="aaren-rsa")), torch.zeros(2, 11)
    good = (x, x[:, 0], 3, x[:, :3], stepper.initial_state(2))
    stepper.step(*good)
    for place, wrong in ((0, x[:, :10]), (0, x[0]), (1, x[:1, 0]), (3, x[:, :2]), (4, stepper.initial_state(1))):
        with pytest.raises(ValueError, match="have the shapes"):
            stepper.step(*good[:place], wrong, *good[place + 1 :])
    for name, part in good[4]._asdict().items():
        with pytest.raises(ValueError, match="have the shapes"):
            stepper.step(*good[:4], good[4]._replace(**{name: part[..., :-1]}))


@torch.no_grad()
def test_the_weights_are_those_of_when_it_was_made() -> None:
    model = make()
    stepper = CompiledStep(model)
    before = play(stepper, 5, 1)
    for parameter in model.parameters():
        parameter *= 2
    assert torch.equal(play(stepper, 5, 1), before)
    assert not torch.equal(play(CompiledStep(model), 5, 1), before)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("place", ["trunk.blocks.0.mlp.0.bias", "trunk.blocks.1.mixer.key.bias", "head.bias"])
@torch.no_grad()
def test_nan_reaches_the_action(activation: str, place: str) -> None:
    model = make(activation=activation)
    model.get_parameter(place)[0] = torch.nan
    policy = Policy(model, torch.zeros(11), torch.ones(11), 1.0, "carry", 20)
    assert isinstance(policy._stepper, CompiledStep)
    with pytest.raises(NonFiniteActionError, match="at step 0"):
        policy.act(np.zeros((1, 11), np.float32), np.zeros(1, np.float32), policy.initial_state(1, 1.0))


def test_what_cannot_be_compiled_is_stepped_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for changes in ({"mixer": "attention"}, {"width": 18}, {"activation": "gelu-tanh"}, {"mixer": "rsa"}, MASKED):
        torch.manual_seed(0)
        config = ModelConfig(11, 3, **({"width": 16, "heads": 2, "layers": 1} | changes))
        model = DecisionModel(config)
        assert not can_compile(model), changes
        assert isinstance(for_rollout(model), DecisionModel)
    assert not can_compile(make().double())
    model = make()
    assert isinstance(for_rollout(model), CompiledStep)
    assert isinstance(for_rollout(model, compiled=False), DecisionModel)
    monkeypatch.setattr(kernels, "available", lambda name: False)
    eager = for_rollout(model)
    assert isinstance(eager, DecisionModel)
    torch.testing.assert_close(play(eager, 20, 2), play(CompiledStep(model), 20, 2), rtol=0, atol=1e-6)
    policy = Policy(model, torch.zeros(11), torch.ones(11), 1.0, "carry", 20)
    assert not policy.rows_independent
