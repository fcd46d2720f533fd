"""LayerNorm(x + dropout(y)): the compiled form against the three operations in float64, and which elements it drops."""

from __future__ import annotations

import pytest
import torch
from mask_checks import check_mask
from torch import Tensor
from torch.nn import functional as F

from aaren_rl.agents.kernels import residual_norm as residual
from aaren_rl.agents.kernels.compiling import threads as kernel_threads
from aaren_rl.agents.model.layers import ResidualNorm

TOLERANCES = {torch.float32: 5e-6, torch.bfloat16: 2**-8}  # bfloat16: of y's gradient, rounded once


def layer(width: int, p: float) -> ResidualNorm:
    norm = ResidualNorm(width, p).train()
    with torch.no_grad():
        norm.weight.copy_(torch.randn(width))
        norm.bias.copy_(torch.randn(width))
    return norm


def inputs(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.randn(shape, requires_grad=True), torch.randn(shape).to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(3, 5, 33), (7, 4), (2, 128)])
def test_equals_the_three_operations_in_float64(shape: tuple[int, ...], p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    norm, (x, y), up = layer(shape[-1], p), inputs(*shape, dtype=dtype), torch.randn(shape)
    leaves = (x, y, norm.weight, norm.bias)
    out = norm(x, y)
    gradients = torch.autograd.grad(out, leaves, up)
    kept = gradients[1] != 0
    assert p > 0 or bool(kept.all())
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = F.layer_norm(exact[0] + kept * exact[1] / (1 - p), shape[-1:], *exact[2:], norm.eps)
    wanted = torch.autograd.grad(expected, exact, up.double())
    assert out.dtype == torch.float32 and gradients[1].dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=2e-6 * float(expected.detach().abs().max()))
    for name, mine, true in zip(("x", "y", "weight", "bias"), gradients, wanted, strict=True):
        allowed = TOLERANCES[dtype if name == "y" else torch.float32] * max(1.0, float(true.abs().max()))
        torch.testing.assert_close(mine.double(), true, rtol=0, atol=allowed)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_each_element_with_its_probability(p: float) -> None:
    torch.manual_seed(0)
    x, y = inputs(400, 1001)
    (gradient,) = torch.autograd.grad(layer(1001, p)(x, y), y, torch.randn(400, 1001))
    check_mask(gradient == 0, p)


def test_the_masks_follow_torchs_seed() -> None:
    norm, (x, y) = layer(32, 0.5), inputs(4, 32)
    torch.manual_seed(3)
    first, second = norm(x, y), norm(x, y)
    torch.manual_seed(3)
    assert torch.equal(norm(x, y), first) and not torch.equal(first, second)


def test_calls_of_a_training_have_masks_of_their_own() -> None:
    torch.manual_seed(0)
    keys = [int(residual.draw_drop(0.1).key) for _ in range(1000)]
    assert len(set(keys)) == 1000 and max(keys) > 2**60
    norm, (x, y) = layer(64, 0.5), inputs(64, 64)
    masks = [torch.autograd.grad(norm(x, y), y, torch.randn(64, 64))[0] == 0 for _ in range(2)]
    assert abs(float((masks[0] == masks[1]).double().mean()) - 0.5) < 0.05
    assert len({tuple(row.tolist()) for row in masks[0]}) == 64  # nor do rows share one


def test_threads_share_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_threads, "SHARED", 1)
    norm, (x, y), up = layer(16, 0.2), inputs(7, 16), torch.randn(7, 16)
    count, results = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            torch.manual_seed(1)
            out = norm(x, y)
            results.append((out, *torch.autograd.grad(out, (x, y, norm.weight, norm.bias), up)))
    finally:
        torch.set_num_threads(count)
    for alone, shared in zip(*results, strict=True):
        torch.testing.assert_close(alone, shared, rtol=1e-6, atol=1e-6)


def test_nearly_everything_can_be_dropped() -> None:
    norm, (x, y) = layer(8, 1 - 1e-12), inputs(3, 8)
    torch.testing.assert_close(norm(x, y), F.layer_norm(x, (8,), norm.weight, norm.bias))


def test_not_a_number_stays_one() -> None:
    norm, (x, y) = layer(4, 0.0), inputs(2, 4, dtype=torch.bfloat16)
    with torch.no_grad():
        y[1, 2] = float("nan")
    out = norm(x, y)
    assert bool(out[0].isfinite().all()) and bool(out[1].isnan().all())
    (gradient,) = torch.autograd.grad(out, y, torch.ones(2, 4))
    assert bool(gradient[0].isfinite().all()) and bool(gradient[1].isnan().all())


def test_evaluation_and_other_types_take_the_operations() -> None:
    norm, (x, y) = layer(8, 0.5), inputs(3, 8)
    torch.testing.assert_close(norm.eval()(x, y), F.layer_norm(x + y, (8,), norm.weight, norm.bias))
    double = layer(8, 0.0).double()
    assert torch.autograd.gradcheck(double, [part.detach().double().requires_grad_() for part in (x, y)])
