"""Training as on a GPU against the model in float64: on a GPU or, without one, in Triton's interpreter."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import interpreter
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from aaren_rl.agents import DecisionModel, ModelConfig, kernels
from aaren_rl.agents.fast import training, training_cuda
from aaren_rl.agents.fast.squared_error import squared_error
from aaren_rl.agents.fast.training import for_training
from aaren_rl.agents.model.block import TrunkState
from aaren_rl.agents.scan.rows import each
from aaren_rl.train.trainer import masked_mse

pytest.importorskip("triton", reason="pip install triton", exc_type=ImportError)
interpreter.prepare()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # conftest.py turns the interpreter on
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []
BATCH, STEPS = 2, 6
CONFIG = ModelConfig(observation_dim=5, action_dim=2, width=12, layers=2, heads=2, dropout=0.0, max_timestep=7)
TOLERANCES = {torch.float32: 5e-6, torch.bfloat16: 2**-5}  # of the largest


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two programs that share the rows, a few rows at once: their borders, in small batches."""
    launching = kernels.load_kernels("cuda.launching")
    monkeypatch.setattr(launching, "PARTS", 2)
    for name in ("residual_norm", "tokens"):
        module = kernels.load_kernels(f"cuda.{name}")
        monkeypatch.setattr(module, "tile", lambda channels, *_: launching.tile(channels, 256))
    for name, value in {"CHUNK": 16, "TURN": 8}.items():
        monkeypatch.setattr(kernels.load("triton"), name, value)
    monkeypatch.setattr(kernels.load_kernels("cuda.gelu"), "ROWS", 16)
    monkeypatch.setattr(kernels, "choose", lambda x: "blocked" if x.dtype == torch.float64 else "triton")


def example(**changes: object) -> tuple[DecisionModel, tuple[Tensor, ...], Tensor]:
    """A model whose every weight is off its first value; steps; where they start."""
    torch.manual_seed(0)
    model = DecisionModel(replace(CONFIG, **changes)).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    numbers = torch.randn(BATCH, STEPS, 5), torch.randn(BATCH, STEPS, 2), torch.randn(BATCH, STEPS)
    return model, (*numbers, torch.randint(9, (BATCH, STEPS))), torch.rand(BATCH, STEPS) < 0.2


def gradients(
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    starts: Tensor | None,
    *,
    dtype: torch.dtype = torch.float32,
    through_state: bool = False,
    before: TrunkState | None = None,
) -> dict[str, Tensor]:
    """Actions, state and gradients, by the names that the decision model has for them."""
    model.zero_grad()
    starts = None if starts is None else starts.to(DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16, enabled=dtype == torch.bfloat16):
        actions, state = model.to(DEVICE)(*(x.to(DEVICE) for x in inputs), before, starts=starts)
    up = torch.randn(actions.shape, generator=torch.Generator().manual_seed(1)).to(actions)
    loss = (actions * up).sum()
    if through_state:
        loss = loss + sum(part.output().square().sum() + part.u.log().sum() for part in state)
    loss.backward()
    found = {n.removeprefix("model."): p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}
    return {"actions": actions.detach().cpu(), "w": state[-1].output().detach().cpu(), **found}


def exact(model: DecisionModel, inputs: tuple[Tensor, ...], starts: Tensor | None, **more: Any) -> dict[str, Tensor]:
    doubled = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    return gradients(copy.deepcopy(model).double(), doubled, starts, **more)


def assert_close(mine: dict[str, Tensor], true: dict[str, Tensor], tolerance: float) -> None:
    assert mine.keys() == true.keys()
    for name, value in true.items():
        if "key.bias" not in name:  # whose gradient is rounding: it moves every score alike
            error = float((mine[name].double() - value).abs().max())
            assert error <= tolerance * max(float(value.abs().max()), 1e-3), (name, error)


@pytest.mark.parametrize(("dtype", "packed"), [(torch.float32, True), (torch.bfloat16, False)])
def test_it_is_the_model(dtype: torch.dtype, packed: bool) -> None:
    model, inputs, starts = example()
    given = inputs, starts if packed else None
    mine = gradients(for_training(model), *given, dtype=dtype)
    assert_close(mine, exact(model, *given), TOLERANCES[dtype])
    assert len(mine) == 2 + len(list(model.parameters()))


def test_it_goes_on_from_a_state() -> None:
    model, inputs, starts = example()
    with torch.no_grad():
        _, state = model(*inputs)
    starts[0] = False
    before = each(lambda parts: parts[0].to(DEVICE), [state])
    mine = gradients(for_training(model), inputs, starts, before=before)
    true = exact(model, inputs, starts, before=before)
    assert_close(mine, true, TOLERANCES[torch.float32])
    assert not torch.allclose(true["actions"], exact(model, inputs, starts)["actions"], atol=1e-3)


def test_gradients_go_through_the_state_and_one_block_is_first_and_last() -> None:
    model, inputs, starts = example(layers=1)
    mine = gradients(for_training(model), inputs, starts, through_state=True)
    # `u` shrinks with the maximum it stands beside, which is the largest score itself in the model too.
    true = exact(model, inputs, starts, through_state=True)
    assert_close(mine, true, TOLERANCES[torch.float32])


def test_what_is_not_trained_gets_no_gradient() -> None:
    model, inputs, _ = example(timestep_embedding=False, return_conditioned=False, layers=1)
    mine = gradients(for_training(model), inputs, None)
    assert {"embed_timestep.weight", "embed_return.weight"}.isdisjoint(mine) and "embed_return.bias" in mine
    assert_close(mine, exact(model, inputs, None), TOLERANCES[torch.float32])


def test_a_time_before_the_first_is_nan() -> None:
    model, inputs, _ = example(layers=1)
    inputs[3][1, 3] = -1
    actions, _ = for_training(model).to(DEVICE)(*(x.to(DEVICE) for x in inputs))
    assert bool(actions[1, 3:].isnan().all()) and not bool(actions[0].isnan().any())


@pytest.mark.skipif(DEVICE == "cuda", reason="the CPU's masks are drawn by another generator")
def test_the_same_elements_are_dropped_as_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, starts = example(dropout=0.3, layers=1)
    torch.manual_seed(5)
    mine = gradients(for_training(model), inputs, starts)
    monkeypatch.setattr(kernels, "choose", lambda _: "numba")
    drops = iter(torch.empty(2, dtype=torch.int64).random_(generator=torch.Generator().manual_seed(5)).tolist())
    kernel = kernels.load_kernels("residual_norm")
    draw = kernel.draw_drop
    monkeypatch.setattr(kernel, "draw_drop", lambda p: draw(p)._replace(key=np.uint64(next(drops))))
    true = gradients(for_training(model), inputs, starts)
    assert_close(mine, {name: value.double() for name, value in true.items()}, 1e-5)


def test_when_it_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, _ = example(layers=1)
    called = []
    monkeypatch.setattr(training_cuda, "train", lambda *_: called.append(1) or (torch.zeros(1), ()))
    wrapped = for_training(model)
    wrapped(*inputs)
    assert called == [1]
    monkeypatch.setattr(kernels, "choose", lambda _: "blocked")
    wrapped(*inputs, model.initial_state(BATCH))
    with torch.no_grad():
        wrapped(*inputs)
    wrapped.eval()(*inputs)
    wrapped.train()
    model.trunk.blocks[0].norm2.dropout.p = 0.2
    assert not training_cuda.can_train(model, inputs[0], inputs[:1], None)
    assert called == [1] and training.can_train


@pytest.mark.parametrize("counted", [False, True])
def test_the_squared_error_and_its_gradient(counted: bool) -> None:
    torch.manual_seed(0)
    target, mask = torch.randn(3, 7, 5), torch.rand(3, 7) < 0.6
    predicted = torch.randn(3, 7, 5, requires_grad=True)
    count = torch.tensor(40) if counted else None
    there = [None if x is None else x.to(DEVICE) for x in (predicted, target, mask, count)]
    error = squared_error(*there)
    assert error is not None and error.dtype == torch.float32
    (gradient,) = torch.autograd.grad(2 * error, predicted)
    doubled = predicted.detach().double().requires_grad_()
    wanted = (doubled - target).square().mean(-1)[mask].sum() / (40 if counted else mask.sum())
    torch.testing.assert_close(error.cpu().double(), wanted.detach(), rtol=1e-6, atol=0)
    (true,) = torch.autograd.grad(2 * wanted, doubled)
    torch.testing.assert_close(gradient.double(), true, rtol=1e-5, atol=1e-7)
    assert torch.equal(masked_mse(*there), error)
