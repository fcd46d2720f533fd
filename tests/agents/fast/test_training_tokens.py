"""The embedding of tokens as one operation against the layers it stands for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from aaren_rl.agents.fast.training_tokens import can_embed, embed
from aaren_rl.agents.kernels.compiling import threads as kernel_threads

BATCH, STEPS, TIMES = 3, 10, 7
NUMBERS = (1, 11, 4)  # of a step's tokens


def example(width: int = 33) -> tuple[list[Tensor], nn.ModuleList, Tensor, nn.Embedding, nn.LayerNorm]:
    torch.manual_seed(0)
    layers, table, norm = (
        nn.ModuleList(nn.Linear(k, width) for k in NUMBERS),
        nn.Embedding(TIMES, width),
        nn.LayerNorm(width),
    )
    with torch.no_grad():
        norm.weight.copy_(torch.randn(width))
        norm.bias.copy_(torch.randn(width))
    sources = [torch.randn(BATCH, STEPS, k) for k in NUMBERS]
    return sources, layers, torch.randint(TIMES, (BATCH, STEPS)), table, norm


def gradients(low: torch.dtype) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Both results, and the parameters' gradients of a loss that reads both."""
    sources, layers, times, table, norm = example()
    out, lowered = embed(sources, layers, times, table.weight, norm, low)
    up = torch.randn(2, *out.shape, generator=torch.Generator().manual_seed(1)).to(low).float()
    parameters = [*layers.parameters(), table.weight, *norm.parameters()]
    return out, lowered, list(torch.autograd.grad((out * up[0]).sum() + (lowered * up[1]).sum(), parameters))


@pytest.mark.parametrize("low", [torch.float32, torch.bfloat16])
def test_equals_the_layers_in_float64(low: torch.dtype) -> None:
    sources, layers, times, table, norm = example()
    out, lowered, found = gradients(low)
    layers, table, norm = layers.double(), table.double(), norm.double()
    each = [layer(source.double()) + table(times) for layer, source in zip(layers, sources, strict=True)]
    true = norm(torch.stack(each, 2).flatten(1, 2))
    assert lowered.dtype == low and torch.equal(lowered, out.to(low))
    torch.testing.assert_close(out.double(), true, rtol=1e-5, atol=1e-5)
    up = torch.randn(2, *out.shape, generator=torch.Generator().manual_seed(1)).to(low).double().sum(0)
    parameters = [*layers.parameters(), table.weight, *norm.parameters()]
    for mine, exact in zip(found, torch.autograd.grad((true * up).sum(), parameters), strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-5 * float(exact.abs().max()))


def test_threads_share_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_threads, "SHARED", 1)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(gradients(torch.bfloat16))
    finally:
        torch.set_num_threads(threads)
    for out, lowered, found in results[1:]:
        assert torch.equal(out, results[0][0]) and torch.equal(lowered, results[0][1])
        for mine, alone in zip(found, results[0][2], strict=True):
            torch.testing.assert_close(mine, alone, rtol=1e-5, atol=1e-6)


def test_when_it_stands_in() -> None:
    sources, layers, _, _, norm = example()
    assert can_embed(sources, layers, norm)
    assert not can_embed([source.double() for source in sources], layers, norm)
    assert not can_embed(sources, [*layers[:2], nn.Sequential(layers[2])], norm)
    assert not can_embed(sources, layers, nn.Identity())
    assert not can_embed([*sources[:2], sources[2].clone().requires_grad_()], layers, norm)
    assert not can_embed(sources, layers, norm.double())
    assert not can_embed(sources, layers.double(), nn.LayerNorm(33))


@pytest.mark.parametrize("time", [-1, TIMES])
def test_a_time_beside_the_table_is_refused(time: int) -> None:
    sources, layers, times, table, norm = example()
    times[1, 2] = time
    with pytest.raises(IndexError, match=f"{time}.* for an embedding of {TIMES}"):
        embed(sources, layers, times, table.weight, norm, torch.float32)
