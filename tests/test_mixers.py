"""Every token mixer: one result in parallel, in pieces, packed and token by token."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from aaren_rl.agents import MIXERS, Aaren, Attention, Block, ScanState, Trunk, reference

WIDTH, HEADS = 16, 4
every_mixer = pytest.mark.parametrize("name", MIXERS)


def make(name: str, dtype: torch.dtype = torch.float32, width: int = WIDTH, heads: int = HEADS) -> Aaren | Attention:
    torch.manual_seed(0)
    return MIXERS[name](width, heads).to(dtype).eval()


def tokens(length: int, dtype: torch.dtype = torch.float32, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, WIDTH, generator=torch.Generator().manual_seed(length)).to(dtype)


def steps(mixer: Aaren | Attention | Trunk, x: Tensor) -> tuple[Tensor, object]:
    outputs, state = [], mixer.initial_state(len(x))
    for token in x.unbind(1):
        y, state = mixer.step(token, state)
        outputs.append(y)
    return torch.stack(outputs, 1), state


@every_mixer
@torch.no_grad()
def test_parallel_is_recurrent(name: str) -> None:
    """Over 3,000 tokens, outputs and final state."""
    mixer, x = make(name), tokens(3000, batch=1)
    parallel, last = mixer(x)
    recurrent, state = steps(mixer, x)
    torch.testing.assert_close(parallel, recurrent, rtol=0, atol=1e-5)
    if isinstance(last, ScanState):
        torch.testing.assert_close(last.output(), state.output(), rtol=0, atol=1e-5)
        assert all(part.dtype == torch.float64 for part in (*last, *state))
    else:
        torch.testing.assert_close(tuple(last), tuple(state), rtol=0, atol=1e-5)


@every_mixer
@pytest.mark.parametrize("cut", [1, 63, 64, 69])
@torch.no_grad()
def test_two_calls_are_one(name: str, cut: int) -> None:
    mixer, x = make(name, torch.float64), tokens(70, torch.float64)
    whole, last = mixer(x)
    first, state = mixer(x[:, :cut])
    second, state = mixer(x[:, cut:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=0, atol=1e-12)
    one_more, _ = mixer.step(x[:, 0], state)
    torch.testing.assert_close(one_more, mixer.step(x[:, 0], last)[0], rtol=0, atol=1e-12)


@every_mixer
@torch.no_grad()
def test_packed_sequences_are_separate(name: str) -> None:
    """Rows cut at different places, one row continuing from a state until its first start."""
    mixer, x = make(name, torch.float64), tokens(150, torch.float64)
    starts = torch.zeros(2, 150, dtype=torch.bool)
    starts[0, [0, 1, 64, 100]] = True
    starts[1, [5, 127, 149]] = True
    before, state = mixer(tokens(9, torch.float64))
    packed, after = mixer(x, state, starts=starts)
    for row in range(2):
        edges = [0, *(int(k) for k in starts[row].nonzero()), 150]
        for begin, end in pairwise(edges):
            if begin == end:
                continue
            past = None if starts[row, begin] else type(state)(*(part[row : row + 1] for part in state))
            alone, last = mixer(x[row : row + 1, begin:end], past)
            torch.testing.assert_close(packed[row : row + 1, begin:end], alone, rtol=0, atol=1e-12)
        if isinstance(after, ScanState):  # its state is the last sequence's; a cache keeps every token
            torch.testing.assert_close(after.output()[row : row + 1], last.output(), rtol=0, atol=1e-12)
    assert before.shape == (2, 9, WIDTH)


@every_mixer
@pytest.mark.parametrize("keep", [slice(1, None, 3), slice(-1, None), slice(None), slice(2, 5)])
@torch.no_grad()
def test_keep_is_slicing(name: str, keep: slice) -> None:
    mixer, x = make(name, torch.float64), tokens(12, torch.float64)
    _, state = mixer(tokens(4, torch.float64))
    starts = torch.arange(12).eq(7).expand(2, 12)
    for keywords in ({}, {"state": state}, {"starts": starts}, {"state": state, "starts": starts}):
        whole, last = mixer(x, **keywords)
        kept, same = mixer(x, keep=keep, **keywords)
        torch.testing.assert_close(kept, whole[:, keep], rtol=0, atol=1e-13)
        torch.testing.assert_close(tuple(same), tuple(last), rtol=0, atol=1e-13)


@every_mixer
def test_gradients_in_parallel_are_those_of_steps(name: str) -> None:
    mixer, up = make(name, torch.float64), tokens(66, torch.float64)
    gradients = []
    for run in (lambda x: mixer(x)[0], lambda x: steps(mixer, x)[0]):
        x = tokens(66, torch.float64).mul(2).requires_grad_()
        gradients.append(torch.autograd.grad((run(x) * up).sum(), [x, *mixer.parameters()]))
    for parallel, recurrent in zip(*gradients, strict=True):
        torch.testing.assert_close(parallel, recurrent, rtol=1e-10, atol=1e-10)
    assert all(bool(gradient.any()) for gradient in gradients[0][:2])


@every_mixer
@torch.no_grad()
def test_causality(name: str) -> None:
    mixer, x = make(name), tokens(130)
    before, _ = mixer(x)
    for k in (1, 64, 129):
        changed = x.clone()
        changed[:, k] += 10
        after, _ = mixer(changed)
        assert torch.equal(after[:, :k], before[:, :k])
        assert bool((after[:, k] - before[:, k]).abs().amax(-1).gt(1e-4).all())


@torch.no_grad()
def test_aaren_is_softmax_attention_of_one_learned_query() -> None:
    """W_o softmax(q k^T / sqrt(d)) v with q = W_q of the query token, straight from the weights."""
    mixer, x = make("aaren", torch.float64), tokens(80, torch.float64)

    def split(y: Tensor) -> Tensor:
        return y.unflatten(-1, (HEADS, WIDTH // HEADS))

    query, keys, values = split(mixer.query(mixer.query_token)), split(mixer.key(x)), split(mixer.value(x))
    scores = torch.einsum("hd,bnhd->bhn", query, keys) / math.sqrt(WIDTH // HEADS)
    mixed = reference.masked_softmax(scores, values.transpose(1, 2))
    plain = mixer.output(mixed.transpose(1, 2).flatten(-2))
    torch.testing.assert_close(mixer(x)[0], plain, rtol=0, atol=1e-13)


@torch.no_grad()
def test_attention_is_softmax_attention_of_every_token() -> None:
    mixer, x = make("attention", torch.float64), tokens(20, torch.float64)

    def split(y: Tensor) -> Tensor:
        return y.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)

    queries, keys, values = split(mixer.query(x)), split(mixer.key(x)), split(mixer.value(x))
    scores = queries @ keys.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
    # The k-th prefix of a scan whose scores are those of query k.
    mixed = torch.stack([reference.masked_softmax(scores[..., k, :], values)[..., k, :] for k in range(20)], -2)
    plain = mixer.output(mixed.transpose(1, 2).flatten(-2))
    torch.testing.assert_close(mixer(x)[0], plain, rtol=0, atol=1e-13)


@every_mixer
def test_parameters_are_the_papers(name: str) -> None:
    """Section 4.5: Aaren's block has the query token's 512 numbers more than the Transformer's."""
    count = sum(parameter.numel() for parameter in Block(name, 512, 4).parameters())
    assert count == {"aaren": 3_152_896, "attention": 3_152_384}[name]


@every_mixer
@torch.no_grad()
def test_trunk_in_parallel_is_recurrent_and_keeps(name: str) -> None:
    torch.manual_seed(0)
    trunk, x = Trunk(name, WIDTH, 3, HEADS, 0.1).double().eval(), tokens(70, torch.float64)
    whole, _ = trunk(x)
    torch.testing.assert_close(steps(trunk, x)[0], whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(trunk(x, keep=slice(1, None, 3))[0], whole[:, 1::3], rtol=0, atol=1e-13)


@pytest.mark.faults(31)
@pytest.mark.parametrize("way", ["parallel", "recurrent"])
@torch.no_grad()
def test_aaren_under_bfloat16_autocast(way: str) -> None:
    """After 5,000 tokens the state is float64 and near that of a float64 run.

    Scores are computed and summed in float32 at least, so the sums of exponentials agree to float32's rounding; summed
    in bfloat16 they would be off by 4e-3 or stop growing at 256. Values are bfloat16 products, each off by half a unit
    in the last place, 2^-9 of its size, in the input, the weights and the result: 3 * 2^-9 of the largest.
    """
    mixer, x = make("aaren"), tokens(5000, batch=1)
    _, exact = make("aaren", torch.float64)(x.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        if way == "recurrent":
            y, state = steps(mixer, x)
        else:
            state = None
            for part in x.split(1250, 1):
                y, state = mixer(part, state)
    assert y.dtype == torch.bfloat16 and all(part.dtype == torch.float64 for part in state)
    torch.testing.assert_close(state.m + state.u.log(), exact.m + exact.u.log(), rtol=0, atol=1e-5)
    largest = float(make("aaren", torch.float64).value(x.double()).abs().max())
    torch.testing.assert_close(state.output(), exact.output(), rtol=0, atol=3 * 2**-9 * largest)


@torch.no_grad()
def test_aaren_with_bfloat16_weights() -> None:
    """Weights that are bfloat16 themselves: the scores are still float32's, the state float64."""
    mixer, x = make("aaren", torch.bfloat16), tokens(1000).to(torch.bfloat16)
    y, state = mixer(x)
    _, exact = make("aaren", torch.bfloat16).double()(x.double())
    assert y.dtype == torch.bfloat16 and all(part.dtype == torch.float64 for part in state)
    torch.testing.assert_close(state.m + state.u.log(), exact.m + exact.u.log(), rtol=0, atol=1e-5)


@torch.no_grad()
def test_attention_under_bfloat16_autocast() -> None:
    mixer, x = make("attention"), tokens(50)
    exact, _ = mixer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        parallel, _ = mixer(x)
        recurrent, _ = steps(mixer, x)
    for y in (parallel, recurrent):
        assert y.dtype == torch.bfloat16
        torch.testing.assert_close(y.float(), exact, rtol=2**-6, atol=2**-6)


@every_mixer
def test_dropout_only_in_training(name: str) -> None:
    torch.manual_seed(0)
    mixer, x = MIXERS[name](WIDTH, HEADS, 0.5), tokens(5)
    assert not torch.equal(mixer(x)[0], mixer(x)[0])
    mixer.eval()
    assert torch.equal(mixer(x)[0], mixer(x)[0])


@every_mixer
def test_heads_must_divide_the_width(name: str) -> None:
    with pytest.raises(ValueError, match="width 16 is not a multiple of heads 3"):
        MIXERS[name](16, 3)
