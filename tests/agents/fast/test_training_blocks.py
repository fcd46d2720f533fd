"""Blocks as one operation each against the blocks in PyTorch's: the same numbers, gradients and masks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aaren_rl.agents import Aaren, ScanState, kernels
from aaren_rl.agents.fast.products import products_dtype
from aaren_rl.agents.fast.training_blocks import can_train, train_blocks
from aaren_rl.agents.kernels import aaren_scores as scoring
from aaren_rl.agents.kernels import gelu
from aaren_rl.agents.kernels.compiling import threads as kernel_threads
from aaren_rl.agents.model.trunk import Trunk

WIDTH, LAYERS, HEADS, BATCH, TOKENS = 32, 2, 4, 3, 30
KEEP = slice(1, None, 3)
# Of sums of thirty rows. The blocks are float32: what training in bfloat16 may miss is a few of its roundings.
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 2**-6, torch.float64: 1e-5}


def trained(
    stack: Trunk, x: Tensor, starts: Tensor | None = None, keep: slice | None = None
) -> tuple[Tensor, list[ScanState]]:
    """The stack by one operation a block."""
    assert can_train(stack.blocks, x, None)
    return train_blocks(stack.blocks, x, x.to(products_dtype(x)), starts, keep)


def results(
    stack: Trunk,
    x: Tensor,
    starts: Tensor | None,
    keep: slice | None,
    dtype: torch.dtype,
    *,
    through_state: bool,
    fast: bool = False,
) -> dict[str, Tensor]:
    """Output, states and gradients of a stack of blocks at fixed masks; by one operation a block where `fast`."""
    x = x.clone().requires_grad_()
    stack.zero_grad()
    torch.manual_seed(7)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        out, states = trained(stack, x, starts, keep) if fast else stack(x, starts=starts, keep=keep)
    up = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    loss = (out * up).sum()
    if through_state:
        loss = loss + sum((state.output() * torch.arange(WIDTH // HEADS)).sum() for state in states)
    loss.backward()
    found = {"out": out.detach(), "x": x.grad}
    for i, state in enumerate(states):
        assert isinstance(state, ScanState)
        found |= {f"{i}.{name}": value.detach() for name, value in state._asdict().items()}
    # A bias of the keys moves every score alike, and the softmax does not see it: its gradient is rounding.
    found |= {name: p.grad for name, p in stack.named_parameters() if "key.bias" not in name}
    assert all(isinstance(value, Tensor) for value in found.values())
    return found  # type: ignore[return-value]


def assert_close(mine: dict[str, Tensor], true: dict[str, Tensor], tolerance: float) -> None:
    for name, value in true.items():
        allowed = tolerance * max(float(value.abs().max()), 1e-3)
        assert float((mine[name].double() - value.double()).abs().max()) <= allowed, name


def example(p: float) -> tuple[Trunk, Tensor, Tensor]:
    torch.manual_seed(0)
    stack = Trunk("aaren", WIDTH, LAYERS, HEADS, p).train()
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return stack, torch.randn(BATCH, TOKENS, WIDTH), torch.rand(BATCH, TOKENS) < 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("keep", [None, KEEP])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("through_state", [False, True])
def test_equals_the_blocks(dtype: torch.dtype, p: float, keep: slice | None, packed: bool, through_state: bool) -> None:
    stack, x, starts = example(p)
    arguments = (stack, x, starts if packed else None, keep)
    mine = results(*arguments, dtype, through_state=through_state, fast=True)
    assert_close(mine, results(*arguments, torch.float32, through_state=through_state), TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [TOKENS, TOKENS - 1])  # rows that two threads can halve, and rows that they cannot
def test_equals_the_blocks_on_two_threads(dtype: torch.dtype, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_threads, "SHARED", 1)
    stack, x, starts = example(0.3)
    arguments = (stack, x[:, :tokens].contiguous(), starts[:, :tokens], None)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        mine = results(*arguments, dtype, through_state=True, fast=True)
    finally:
        torch.set_num_threads(threads)
    assert_close(mine, results(*arguments, torch.float32, through_state=True), TOLERANCES[dtype])


def test_equals_the_blocks_in_float64() -> None:
    stack, x, starts = example(0.0)
    mine = results(stack, x, starts, KEEP, torch.float32, through_state=True, fast=True)
    exact = results(stack.double(), x.double(), starts, KEEP, torch.float64, through_state=True)
    assert_close(mine, exact, TOLERANCES[torch.float64])


def test_without_numba_training_goes_on_in_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    stack, x, starts = example(0.0)
    mine = results(stack, x, starts, None, torch.float32, through_state=False, fast=True)
    monkeypatch.setattr(kernels, "available", lambda _: False)
    assert not can_train(stack.blocks, x, None)
    other = results(stack, x, starts, None, torch.float32, through_state=False)
    assert_close(other, mine, TOLERANCES[torch.float32])


def test_when_it_stands_in() -> None:
    stack, x, _ = example(0.1)
    assert can_train(stack.blocks, x, None)
    state = stack.initial_state(BATCH)
    assert can_train(stack.blocks, x, state)
    state[0].w.requires_grad_()  # its gradient is not computed
    assert not can_train(stack.blocks, x, state)
    assert not can_train(stack.blocks, x.double(), None)
    with torch.no_grad():
        assert not can_train(stack.blocks, x, None)
    with torch.autocast("cpu", torch.float16):
        assert not can_train(stack.blocks, x, None)
    for other in (
        Trunk("aaren", WIDTH, LAYERS, HEADS, activation="relu"),
        Trunk("aaren", WIDTH, LAYERS, HEADS, activation="gelu-tanh"),
        Trunk("aaren-rsa", WIDTH, LAYERS, HEADS),
        Trunk("attention", WIDTH, LAYERS, HEADS),
        Trunk("aaren", WIDTH, LAYERS, HEADS, block="pre-norm"),
        Trunk("aaren", WIDTH, LAYERS, HEADS).eval(),
    ):
        assert not can_train(other.blocks, x, None)
    stack.blocks[1].eval()
    assert not can_train(stack.blocks, x, None)


def test_a_second_derivative_is_refused() -> None:
    stack, x, _ = example(0.0)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(trained(stack, x)[0].square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize(("width", "heads"), [(32, 4), (17, 1)])
def test_the_map_to_the_scores_and_its_gradients(width: int, heads: int) -> None:
    mixer = Aaren(width, heads)
    parts = mixer.query_token, mixer.query.weight, mixer.query.bias, mixer.key.weight, mixer.key.bias
    token, wq, bq, wk, bk = (part.detach() for part in parts)
    ws, bs, query = scoring.project(token, wq, bq, wk, bk, heads)
    mixer.double()
    true = mixer.score_projection()
    torch.testing.assert_close((ws.double(), bs.double()), true, rtol=1e-5, atol=1e-5)
    up = torch.randn(heads, width), torch.randn(heads)
    found = scoring.gradients(token, wq, wk, bk, query, *up)
    leaves = mixer.query_token, mixer.query.weight, mixer.query.bias, mixer.key.weight, mixer.key.bias
    exact = torch.autograd.grad(true, leaves, [part.double() for part in up])
    torch.testing.assert_close([part.double() for part in found], list(exact), rtol=1e-5, atol=1e-5)


def test_gelu_and_its_slope() -> None:
    h, bias = torch.linspace(-12, 12, 100_001).view(1, -1), torch.randn(100_001)
    active = h - bias
    slope = gelu.forward_(active, bias)
    exact = h.double().requires_grad_()
    expected = F.gelu(exact)
    (true,) = torch.autograd.grad(expected.sum(), exact)
    torch.testing.assert_close(active.double(), expected.detach(), rtol=0, atol=1.5e-6)
    torch.testing.assert_close(slope.double(), true, rtol=0, atol=1.5e-6)
    odd = torch.tensor([[float("nan"), float("inf"), 1e30, -1e30, 0.0]])
    assert bool(gelu.forward_(odd, torch.zeros(5))[0, 0].isnan()) and odd[0].isnan().tolist() == [True] + [False] * 4
    assert odd[0, 1:].tolist() == [float("inf"), pytest.approx(1e30), 0.0, 0.0]


def test_gelu_of_every_bfloat16() -> None:
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.bfloat16)
    exact = every.double().requires_grad_()
    expected = F.gelu(exact)
    (true,) = torch.autograd.grad(expected.sum(), exact)
    active = every.clone().view(1, -1)
    slope = gelu.forward_(active, torch.zeros(len(every)))
    torch.testing.assert_close(active[0], expected.detach().bfloat16(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(slope[0], true.bfloat16(), rtol=0, atol=0, equal_nan=True)


def test_gelu_of_bfloat16_adds_its_bias_first() -> None:
    x, bias = torch.randn(40, 17).bfloat16(), torch.randn(17)
    active, summed = x.clone(), (x.float() + bias).bfloat16()
    slope = gelu.forward_(active, bias)
    expected = summed.clone()
    assert torch.equal(slope, gelu.forward_(expected, torch.zeros(17))) and torch.equal(active, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gelus_gradient_and_its_sum(dtype: torch.dtype) -> None:
    h, up = torch.randn(40, 17).to(dtype), torch.randn(40, 17).to(dtype)
    slope, gradient = gelu.forward_(h.clone(), torch.zeros(17)), up.clone()
    total = gelu.backward_(slope, gradient)
    expected = torch.ops.aten.gelu_backward(up.double(), h.double())
    tolerance = 2e-6 if dtype == torch.float32 else 2**-6
    torch.testing.assert_close(gradient.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(total.double(), (slope.double() * up.double()).sum(0), rtol=1e-5, atol=1e-5)


def test_the_module_is_a_layer_norm_to_everything_else() -> None:
    stack, _, _ = example(0.1)
    block = stack.blocks[0]
    assert isinstance(block.norm1, nn.LayerNorm)
    names = set(block.state_dict())
    assert {"norm1.weight", "norm2.bias", "mlp.0.weight", "mlp.2.bias", "mixer.query_token"} <= names
    assert len(names) == 17
