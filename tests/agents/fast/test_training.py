"""What is called in a model's place in training against the model itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from aaren_rl.agents import MIXERS, DecisionModel, ModelConfig, kernels
from aaren_rl.agents.fast import training
from aaren_rl.agents.fast.training import for_training
from aaren_rl.agents.model.block import TrunkState
from aaren_rl.agents.scan.rows import tensors

BATCH, STEPS = 3, 10
CONFIG = ModelConfig(observation_dim=5, action_dim=2, width=32, layers=2, heads=4, dropout=0.0, max_timestep=7)


def batch() -> tuple[Tensor, ...]:
    torch.manual_seed(3)
    observations, actions = torch.randn(BATCH, STEPS, 5), torch.randn(BATCH, STEPS, 2)
    return observations, actions, torch.randn(BATCH, STEPS), torch.arange(STEPS).expand(BATCH, STEPS)


def gradients(
    model: nn.Module, *, bfloat16: bool = False, packed: bool = True, state: TrunkState | None = None
) -> dict[str, Tensor]:
    """Actions and gradients at fixed masks, by the names that the decision model has for them."""
    model.zero_grad()
    inputs, starts = batch(), torch.arange(STEPS).remainder(4).eq(0).expand(BATCH, STEPS) if packed else None
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        actions, after = model(*inputs, state, starts=starts)
    actions.float().square().sum().backward()
    found = {n.removeprefix("model."): p.grad for n, p in model.named_parameters() if p.grad is not None}
    states = {f"after{k}": part.detach() for k, part in enumerate(tensors(after)) if state is not None}
    return {"actions": actions.detach(), **states, **found}


def make(**changes: object) -> DecisionModel:
    torch.manual_seed(0)
    return DecisionModel(replace(CONFIG, **changes)).train()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations that stood in."""
    seen: list[str] = []
    for name in ("embed", "train_blocks"):
        right = getattr(training, name)
        monkeypatch.setattr(training, name, lambda *x, name=name, right=right: (seen.append(name), right(*x))[1])
    return seen


def assert_same(mine: dict[str, Tensor], true: dict[str, Tensor], tolerance: float = 2e-5) -> None:
    assert mine.keys() == true.keys() and len(mine) > 20
    for name, value in true.items():
        if "key.bias" not in name:  # whose gradient is rounding: it moves every score alike
            allowed = tolerance * float(value.abs().max())
            torch.testing.assert_close(mine[name].float(), value.float(), rtol=5 * tolerance, atol=allowed)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("mixer", MIXERS)
def test_it_is_the_model(mixer: str, p: float, packed: bool, calls: list[str]) -> None:
    """At the same masks: as many random numbers are drawn, in the same order."""
    model = make(mixer=mixer, dropout=p)
    assert_same(gradients(for_training(model), packed=packed), gradients(model, packed=packed))
    assert calls == (["embed", "train_blocks"] if mixer == "aaren" else [])


@pytest.mark.parametrize("packed", [False, True])
def test_it_goes_on_from_a_state(packed: bool, calls: list[str]) -> None:
    """A state that nobody wants a gradient of is no reason for the model's own way; another is."""
    model = make()
    with torch.no_grad():
        _, state = model(*batch())
    true = gradients(model, packed=packed, state=state)
    assert_same(gradients(for_training(model), packed=packed, state=state), true)
    assert calls == ["embed", "train_blocks"]
    if not packed:  # there every sequence begins anew
        assert not torch.allclose(true["actions"], gradients(model, packed=False)["actions"], atol=1e-3)
    _, wanted = model(*batch())
    gradients(for_training(model), state=wanted)
    assert len(calls) == 2


def test_without_the_timestep_embedding_its_table_gets_no_gradient(calls: list[str]) -> None:
    model = make(timestep_embedding=False)
    mine = gradients(for_training(model))
    assert_same(mine, gradients(model))
    assert len(calls) == 2 and "embed_timestep.weight" not in mine


def test_in_bfloat16(calls: list[str]) -> None:
    """Its products are rounded to 2^-8, some of them once more than the model's, some less."""
    model = make()
    assert_same(gradients(for_training(model), bfloat16=True), gradients(model), 2**-5)
    assert len(calls) == 2


def test_parameters_and_mode_are_the_models() -> None:
    model = make()
    wrapped = for_training(model)
    assert [id(p) for p in wrapped.parameters()] == [id(p) for p in model.parameters()]
    wrapped.eval()
    assert not model.training
    wrapped.train()
    assert all(module.training for module in model.modules())


def test_where_it_cannot_stand_in_the_model_is_called(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = make(), batch()
    wrapped = for_training(model)
    with torch.no_grad():
        assert torch.equal(wrapped(*inputs)[0], model(*inputs)[0])
    assert torch.equal(wrapped.eval()(*inputs)[0], model(*inputs)[0])
    wrapped.train()
    monkeypatch.setattr(kernels, "available", lambda _: False)
    assert torch.equal(wrapped(*inputs)[0], model(*inputs)[0])
    assert calls == []


def test_observations_get_gradients_where_somebody_asks_for_them() -> None:
    observations, *others = batch()
    observations.requires_grad_()
    actions, _ = for_training(make())(observations, *others)
    (gradient,) = torch.autograd.grad(actions.sum(), observations)
    assert bool(gradient.any())
