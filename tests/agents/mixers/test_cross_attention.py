"""Attention over a stream: all at once, token by token and block by block, against softmax attention in float64."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from aaren_rl.agents import CrossAttention, attend

every_block = pytest.mark.parametrize("block", [None, 1, 7])


def draw(n: int, *, scores: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (2, 3, 5, 4), keys (2, 3, n, 4) and values (2, 3, n, 6)."""
    generator = torch.Generator().manual_seed(n)
    shapes = ((2, 3, 5, 4), (2, 3, n, 4), (2, 3, n, 6))
    query, keys, values = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return query * scores, keys, values


def exact(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    return F.scaled_dot_product_attention(query.double(), keys.double(), values.double(), attn_mask=mask)


@every_block
@pytest.mark.parametrize("n", [1, 70])
@pytest.mark.parametrize(("scores", "offset"), [(1.0, 0.0), (1e4, 0.0), (1.0, -1e4), (1.0, 1e4)])
def test_equal_to_softmax(block, n, scores, offset):
    """With scores far below zero, a maximum that started at 0 would divide 0 by 0."""
    query, keys, values = draw(n, scores=scores)
    query, keys = F.pad(query, (0, 1), value=1.0), F.pad(keys, (0, 1), value=offset)
    output, state = attend(query, keys, values, block=block)
    torch.testing.assert_close(output, exact(query, keys, values), rtol=0, atol=1e-10)
    assert state.m.shape == (2, 3, 5) and state.w.shape == (2, 3, 5, 6)


@every_block
def test_a_stream_cut_anywhere(block):
    query, keys, values = draw(100)
    state = None
    for first, last in ((0, 0), (0, 1), (1, 40), (40, 40), (40, 100), (100, 100)):
        output, state = attend(query, keys[..., first:last, :], values[..., first:last, :], state, block=block)
        wanted = exact(query, keys[..., :last, :], values[..., :last, :]) if last else torch.zeros_like(output)
        torch.testing.assert_close(output, wanted, rtol=0, atol=1e-12)


@every_block
def test_masks(block):
    query, keys, values = draw(30)
    mask = torch.rand(2, 1, 5, 30, generator=torch.Generator().manual_seed(0)) < 0.5
    mask[..., 3] = True  # every query of `exact` sees something
    output, state = attend(query, keys, values, mask=mask, block=block)
    torch.testing.assert_close(output, exact(query, keys, values, mask), rtol=0, atol=1e-12)
    nothing = torch.zeros(30, dtype=torch.bool)
    again, same = attend(query, keys * torch.nan, values * torch.nan, state, mask=nothing, block=block)
    assert torch.equal(again, output) and all(torch.equal(*pair) for pair in zip(same, state, strict=True))


@every_block
def test_gradients(block):
    inputs = [tensor.requires_grad_() for tensor in draw(30, scores=3.0)]
    mask = torch.rand(5, 30, generator=torch.Generator().manual_seed(1)) < 0.7
    weight = torch.randn(2, 3, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    expected = torch.autograd.grad((exact(*inputs, mask) * weight).sum(), inputs)
    query, keys, values = inputs
    _, state = attend(query, keys[..., :11, :], values[..., :11, :], mask=mask[:, :11], block=block)
    output, _ = attend(query, keys[..., 11:, :], values[..., 11:, :], state, mask=mask[:, 11:], block=block)
    for found, wanted in zip(torch.autograd.grad((output * weight).sum(), inputs), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-11)


def test_gradients_past_masked_nan_are_finite():
    query, keys, values = (tensor.requires_grad_() for tensor in draw(4))
    poison = torch.tensor([[0.0], [torch.nan], [0.0], [0.0]])
    output, _ = attend(query, keys + poison, values + poison, mask=~poison[:, 0].isnan())
    assert all(g.isfinite().all() for g in torch.autograd.grad(output.sum(), (query, keys, values)))


def test_what_cannot_be():
    for shapes in (((5, 4), (3, 3), (3, 6)), ((5, 4), (3, 4), (2, 6)), ((4,), (3, 4), (3, 6))):
        with pytest.raises(ValueError, match="must be"):
            attend(*(torch.zeros(shape) for shape in shapes))
    with pytest.raises(ValueError, match="block must be at least 1, not 0"):
        attend(*draw(3), block=0)
    query, keys, values = draw(3)
    _, state = attend(query, keys, values)
    for other in ((query[..., :1, :], keys, values), (query, keys, values[..., :1])):
        with pytest.raises(ValueError, match="the state has w of shape"):
            attend(*other, state)


@torch.no_grad()
def test_module_in_parallel_step_by_step_and_in_blocks():
    torch.manual_seed(0)
    module, x = CrossAttention(16, latents=5, heads=4).double(), torch.randn(3, 37, 16, dtype=torch.float64)
    parallel, final = module(x)
    state = module.initial_state(3)
    assert [tuple(part.shape) for part in state] == [(3, 4, 5), (3, 4, 5), (3, 4, 5, 4)]
    for token in x.unbind(1):
        output, state = module.step(token, state)
    padded = torch.arange(40) < torch.full((3, 1), 37)
    torch.testing.assert_close(module(F.pad(x, (0, 0, 0, 3)), mask=padded)[0], parallel, rtol=0, atol=1e-12)
    torch.testing.assert_close(output, parallel, rtol=0, atol=1e-12)
    torch.testing.assert_close(module(x, block=10)[0], parallel, rtol=0, atol=1e-12)
    torch.testing.assert_close(state.output(), final.output(), rtol=0, atol=1e-12)
    heads = [part.unflatten(-1, (4, 4)).transpose(-3, -2) for part in (module.query(module.latents), module.key(x))]
    values = module.value(x).unflatten(-1, (4, 4)).transpose(1, 2)
    mixed = exact(heads[0].expand(3, 4, 5, 4), heads[1], values)
    torch.testing.assert_close(parallel, module.output(mixed.transpose(1, 2).flatten(-2)), rtol=0, atol=1e-12)


def test_module_learns_and_refuses():
    module = CrossAttention(8, latents=2, heads=2)
    module(torch.randn(1, 5, 8))[0].square().sum().backward()
    # Softmax does not change when every score moves by as much: the key's bias has no gradient.
    assert all(p.grad is not None and p.grad.any() for name, p in module.named_parameters() if name != "key.bias")
    with pytest.raises(ValueError, match="width 8 is not a multiple of heads 3"):
        CrossAttention(8, 2, 3)
    with pytest.raises(ValueError, match="latents must be at least 1"):
        CrossAttention(8, 0)


def test_padding_may_be_nan_in_training_too():
    module, x = CrossAttention(8, latents=2, heads=2), torch.randn(2, 5, 8)
    x[0, 3:] = torch.nan
    module(x, mask=~x.isnan().any(-1))[0].square().sum().backward()
    assert all(bool(p.grad is not None and p.grad.isfinite().all()) for p in module.parameters())


def test_a_query_that_does_not_see_nan_does_not_have_it():
    """One query sees the token, the other does not: its output is that of the others alone."""
    query, keys, values = torch.randn(2, 3), torch.randn(4, 3), torch.randn(4, 5)
    values[3] = torch.nan
    y, _ = attend(query, keys, values, mask=torch.tensor([[True, True, True, False], [True] * 4]))
    assert torch.equal(y[0], attend(query, keys[:3], values[:3])[0][0]) and bool(y[1].isnan().all())
