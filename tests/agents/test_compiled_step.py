"""The compiled environment step against the decision model in float64."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from policies import unit_scaling
from torch import Tensor

from aaren_rl.agents import AarenRSA, DecisionModel, ModelConfig, NonFiniteActionError, Policy, kernels
from aaren_rl.agents.model.decision import Scaling, Step
from aaren_rl.agents.policy.compiled import CompiledStep, PlainStep, Stepper, can_compile

SHAPES = {
    "post-norm": {},
    "pre-norm": {"block": "pre-norm", "layers": 2},
    "relu": {"activation": "relu", "layers": 1},
    "odd heads": {"width": 20, "heads": 4, "layers": 2},
    "wide actions": {"action_dim": 21, "observation_dim": 5, "width": 12, "heads": 3},
    "default size": {"width": 128, "heads": 4, "layers": 3},
    "recurrence encoding": {"mixer": "aaren-rsa", "width": 16, "heads": 8},
    "more heads than encodings": {"mixer": "aaren-rsa", "heads": 8, "rem_counts": "1,0,1,0,2,1", "rem_dilation": 2},
    "forget gate": {"width": 128, "heads": 4, "forget_gate": True},
    "forget gate and recurrence encoding": {"mixer": "aaren-rsa", "heads": 8, "forget_gate": True},
    "far apart": {"mixer": "aaren-rsa", "heads": 4, "rem_counts": "0,1,1,1,0,0", "rem_dilation": 7},
}


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
            (mixer.inner if isinstance(mixer, AarenRSA) else mixer).query_token *= spread
    return model


def compiled(model: DecisionModel) -> CompiledStep:
    return CompiledStep(model, unit_scaling(model))


@torch.no_grad()
def play(model: DecisionModel, steps: int, batch: int, *, stepper: Stepper | None = None) -> Tensor:
    """Actions (B, T, A) of the stepper or, in float64, the model; what a sequence sees depends on its number alone."""
    seen = [torch.randn(steps, model.config.observation_dim + 1, generator=torch.manual_seed(b)) for b in range(batch)]
    inputs, actions = torch.stack(seen, 1), []
    if stepper is None:
        model, inputs, action = copy.deepcopy(model).double(), inputs.double(), None
        state = model.initial_state(batch)
        for t in range(steps):
            action, state = model.step(inputs[t, :, 1:], inputs[t, :, 0], t, action, state)
            actions.append(action)
        return torch.stack(actions, 1)
    state, acted, numbers = stepper.initial_state(batch), None, inputs.numpy()
    for t in range(steps):
        step = Step(numbers[t, :, 1:], numbers[t, :, 0].astype(np.float64), t, acted)
        acted, state = stepper.step(step, state)
        actions.append(torch.from_numpy(acted))
    return torch.stack(actions, 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_model(shape):
    """Over more steps than the timestep's embedding has rows; PyTorch's own step is off by 1.4e-6 at most."""
    model = make(**SHAPES[shape])
    assert can_compile(model)
    wanted = play(model, 80, 4)
    acted = play(model, 80, 4, stepper=compiled(model))
    assert acted.dtype == torch.float32
    torch.testing.assert_close(acted.double(), wanted, rtol=0, atol=2e-6)
    assert wanted.std() > 0.05  # the actions are not all the same


def test_large_scores_neither_overflow_nor_forget():
    """Float32 scores of 1e4 are rounded at 1e-3, and a weight changes by as much."""
    model = make(1e4)
    acted = play(model, 60, 2, stepper=compiled(model)).double()
    torch.testing.assert_close(acted, play(model, 60, 2), rtol=0, atol=1e-2)


@pytest.mark.parametrize("mixer", ["aaren", "aaren-rsa"])
def test_an_episode_is_the_same_alone_and_beside_others_to_the_last_bit(mixer):
    model = make(width=128, heads=4, layers=2, mixer=mixer, forget_gate=True)
    whole = play(model, 30, 17, stepper=(stepper := compiled(model)))
    for batch in (1, 3, 4, 16):
        assert torch.equal(play(model, 30, batch, stepper=stepper), whole[:batch]), batch


def step_of(x: np.ndarray, timestep: int, previous: np.ndarray | None) -> Step:
    return Step(x, x[:, 0].astype(np.float64), timestep, previous)


def test_an_environments_units():
    """As `Scaling` has them."""
    model = make()
    middle, half = torch.tensor([0.0, 1.0, -3.0]), torch.tensor([1.0, 0.5, 2.0])
    statistics = torch.linspace(-1, 1, 11), torch.linspace(0.5, 2, 11), 7.0
    scaling = Scaling(*statistics, middle, half)
    steppers = CompiledStep(model, scaling), PlainStep(model, scaling)
    states, rng = [stepper.initial_state(6) for stepper in steppers], np.random.default_rng(0)
    previous, to_go = None, np.array([-9.0, -1.0, 0.1, 0.4, 1.0, 9.0])
    for t in (0, 1, 2, 3, 5, 6, 700):
        step = Step(rng.normal(size=(6, 11)).astype(np.float32), to_go, t, previous)
        (mine, states[0]), (previous, states[1]) = (
            stepper.step(step, state) for stepper, state in zip(steppers, states, strict=True)
        )
        np.testing.assert_allclose(mine, previous, rtol=0, atol=2e-6)
    assert np.ptp(previous, 0).min() > 0.01


def test_read_only_and_strided_arrays_compile_nothing_anew():
    stepper, x = compiled(make()), np.random.default_rng(0).normal(size=(2, 11)).astype(np.float32)
    read_only, strided = x.copy(), np.asfortranarray(x)
    read_only.flags.writeable = False
    known, state = len(stepper._step.signatures), stepper.initial_state(2)
    wanted, _ = stepper.step(step_of(x, 0, None), state)
    for observed in (read_only, strided):
        acted, _ = stepper.step(Step(observed, x[:, 0].astype(np.float64), 0, None), state)
        np.testing.assert_array_equal(acted, wanted)
    times, executed = np.full(2, 3), x[:, :3].copy()
    wanted, _ = stepper.step(Step(x, x[:, 0].astype(np.float64), times, executed), state)
    times.flags.writeable = False
    acted, _ = stepper.step(Step(x, x[:, 0].astype(np.float64), times, np.asfortranarray(executed)), state)
    np.testing.assert_array_equal(acted, wanted)
    assert len(stepper._step.signatures) == known > 0


def test_shapes_that_do_not_fit_are_refused():
    """Compiled code has no bounds."""
    stepper, x = compiled(make(mixer="aaren-rsa")), np.zeros((2, 11), np.float32)
    good, state = step_of(x, 3, x[:, :3]), stepper.initial_state(2)
    changes = {"observation": x[:, :10], "return_to_go": np.zeros(1), "previous_action": x[:, :2]}
    wrong = [(good._replace(**{name: value}), state) for name, value in changes.items()]
    wrong += [(good._replace(timestep=np.zeros(1, np.int64)), state), (good, state, np.zeros(1, bool))]
    wrong += [(good, other) for other in (stepper.initial_state(1), state[..., :-1], state[:, :-1])]
    for arguments in wrong:
        with pytest.raises(ValueError, match="shapes that do not fit"):
            stepper.step(*arguments)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("place", ["trunk.blocks.0.mlp.0.bias", "trunk.blocks.1.mixer.key.bias"])
@torch.no_grad()
def test_nan_reaches_the_action(activation, place):
    model = make(activation=activation)
    model.get_parameter(place)[0] = torch.nan
    policy = Policy(model, torch.zeros(11), torch.ones(11), 1.0, "recurrent", 20)
    assert isinstance(policy._stepper, CompiledStep)
    with pytest.raises(NonFiniteActionError, match="action at step 0 is not finite"):
        policy.act(np.zeros((1, 11), np.float32), np.zeros(1, np.float32), policy.initial_state(1, 1.0))


def test_what_cannot_be_compiled_is_stepped_by_torch(monkeypatch):
    others = {"mixer": "attention"}, {"width": 18}, {"activation": "gelu-tanh"}, {"mixer": "rsa"}
    for changes in (*others, {"tokens_per_step": 3}, {"mixer": "aaren-rsa", "rem_max_power": 5}):
        model = DecisionModel(ModelConfig(11, 3, **({"width": 16, "heads": 2, "layers": 1} | changes)))
        assert not can_compile(model), changes
    assert not can_compile(make().double())
    policy = Policy(make(), torch.zeros(11), torch.ones(11), 1.0, "recurrent", 20)
    assert policy.batch_invariant and not replace(policy, compiled=False).batch_invariant
    monkeypatch.setattr(kernels, "available", lambda name: False)
    assert isinstance(replace(policy)._stepper, PlainStep)
