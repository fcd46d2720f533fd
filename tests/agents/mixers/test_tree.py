"""Tree attention against softmax and against algorithm 1 written out by its definition, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from aaren_rl.agents.kernels.draws import GOLDEN, mix, uniforms
from aaren_rl.agents.mixers import Attention
from aaren_rl.agents.mixers.tree.blocks import TreeState, View
from aaren_rl.agents.mixers.tree.config import TreeConfig
from aaren_rl.agents.mixers.tree.mixer import TreeAttention
from aaren_rl.agents.mixers.tree.samplers import SAMPLERS
from aaren_rl.agents.mixers.tree.sum_heap import SumHeap

WIDTH, HEADS = 8, 2
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS)


def make(sampler: str = "edh", budget: float = 1.0, scale: float = 3.0, seed: int = 0) -> TreeAttention:
    torch.manual_seed(0)
    attention = Attention(WIDTH, HEADS)
    with torch.no_grad():
        attention.query.weight *= scale
    return TreeAttention(attention.eval(), TreeConfig(budget, sampler, seed))


def tokens(n: int, batch: int = 3) -> Tensor:
    return torch.randn(batch, n, WIDTH, generator=torch.Generator().manual_seed(n))


def tree_of(keys: Tensor, values: Tensor) -> TreeState:
    """Keys (B, L, H, F), values (B, L, H, D)."""
    state = TreeState.empty(len(keys), keys.shape[2], keys.shape[3], values.shape[3])
    for n in range(keys.shape[1]):
        state = state.append(keys[:, n], values[:, n])
    return state


def bud_attention(query: Tensor, keys: Tensor, values: Tensor, buds: list[tuple[int, int]]) -> Tensor:
    """Tree attention's output by its definition, in float64: every token of a bud has the mean of the bud's scores.

    Args:
        query: q, shape (D,), scaled.
        keys: shape (L, D).
        values: shape (L, V).
        buds: (first token, tokens) of blocks that cover all L tokens.
    """
    scores = (keys.double() @ query.double()).clone()
    for start, count in buds:
        scores[start : start + count] = scores[start : start + count].mean()
    return torch.softmax(scores, 0) @ values.double()


@every_sampler
@pytest.mark.parametrize("scale", [1.0, 10.0])
@torch.no_grad()
def test_as_many_terms_as_tokens_is_softmax(sampler: str, scale: float) -> None:
    tree, x = make(sampler, scale=scale), tokens(40)
    y, _ = tree(x)
    exact, _ = tree.attention.double()(x.double())
    torch.testing.assert_close(y.double(), exact, rtol=0, atol=1e-6)


@torch.no_grad()
def test_as_many_terms_as_tokens_is_softmax_after_3000_tokens() -> None:
    tree, x = make("uniform"), tokens(3000, batch=1)
    _, cache = tree.attention(x[:, :-1])
    y, _ = tree.step(x[:, -1], tree.from_cache(cache))
    exact, _ = tree.attention.double()(x.double())
    torch.testing.assert_close(y.double(), exact[:, -1], rtol=0, atol=1e-6)


def test_nodes_are_the_sums_of_their_blocks() -> None:
    keys, values = torch.randn(2, 37, 2, 5), torch.randn(2, 37, 2, 3)
    state = tree_of(keys, values)
    for nodes, leaves in ((state.keys, keys.double()), (state.values, values.double())):
        assert nodes.shape[1] == 128
        for level, begin in enumerate((0, 64, 96, 112, 120, 124)):
            for j in range(37 >> level):
                block = leaves[:, j << level : (j + 1) << level]
                torch.testing.assert_close(nodes[:, begin + j], block.sum(1), rtol=0, atol=1e-12)
    torch.testing.assert_close(state.key_total, keys.double().sum(1), rtol=0, atol=1e-12)
    torch.testing.assert_close(state.value_total, values.double().sum(1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("sampler", ["uniform", "align", "rff"])
@pytest.mark.parametrize("budget", [0.0, 0.3, 0.6, 0.9])
@torch.no_grad()
def test_buds_are_a_partition_and_the_output_is_their_definition(sampler: str, budget: float) -> None:
    tree = make(sampler, budget)
    dim = WIDTH // HEADS
    for length in (1, 2, 3, 31, 32, 33, 100):
        query, keys, values = (torch.randn(3, n, HEADS, dim, dtype=torch.float64) for n in (1, length, length))
        features = tree.sampler.transform_key(keys)
        state = tree_of(torch.cat([keys, features], -1), values)
        queries = torch.cat([query, tree.sampler.transform_query(query)], -1)
        view = View(state, queries, state.key_total[:, None], state.value_total[:, None], torch.tensor([length]))
        buds = tree.expand(view)
        output = view.mix(buds)
        for b in range(3):
            blocks = sorted((s, c) for s, c in zip(buds.start[b].tolist(), buds.tokens[b].tolist(), strict=True) if c)
            assert len(blocks) == tree.config.terms(length)
            assert [s for s, _ in blocks] == [0, *(s + c for s, c in blocks[:-1])] and sum(blocks[-1]) == length
            for h in range(HEADS):
                wanted = bud_attention(query[b, 0, h], keys[b, :, h], values[b, :, h], blocks)
                torch.testing.assert_close(output[b, h], wanted, rtol=0, atol=1e-11)
            for slot, (start, count) in enumerate(zip(buds.start[b].tolist(), buds.tokens[b].tolist(), strict=True)):
                inner = (keys[b, start : start + count] * query[b]).sum((0, 2))
                if count:
                    torch.testing.assert_close(buds.alignment[b, slot], inner, rtol=0, atol=1e-11)


@every_sampler
@pytest.mark.parametrize("budget", [0.0, 0.35, 0.6, 0.9, 1.0])
@torch.no_grad()
def test_compiled_it_is_the_same_draw_for_draw(sampler: str, budget: float) -> None:
    """Rows of several lengths at once, as a step's three tokens are; buds in the same slots."""
    tree, dim = make(sampler, budget, seed=3), WIDTH // HEADS
    for length in (1, 2, 5, 64, 200):
        keys, values = (torch.randn(2, length, HEADS, dim, dtype=torch.float64) for _ in range(2))
        features = tree.sampler.transform_key(keys)
        state = tree_of(torch.cat([keys, features], -1), values)
        lengths = torch.tensor([length, max(1, length // 2), max(1, length - 1)])
        query = torch.randn(2, len(lengths), HEADS, dim, dtype=torch.float64)
        totals = [torch.stack([part[:, :n].sum(1) for n in lengths.tolist()], 1) for part in (keys, features, values)]
        queries = torch.cat([query, tree.sampler.transform_query(query)], -1)
        view = View(state, queries, torch.cat(totals[:2], -1), totals[2], lengths)
        buds, (output, start, sizes) = tree.expand(view), tree.attend(view)
        assert torch.equal(start, buds.start) and torch.equal(sizes, buds.tokens)
        torch.testing.assert_close(output, view.mix(buds), rtol=0, atol=1e-11)


def test_draws_are_splitmix64s_and_uniform() -> None:
    """The first outputs of the generator with seed 0, by Vigna's reference implementation."""
    outputs = mix(torch.arange(1, 4) * GOLDEN)
    assert [n & (1 << 64) - 1 for n in outputs.tolist()] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    drawn = uniforms(1000, torch.arange(200), 7)
    assert drawn.shape == (200, 1000) and 0 <= float(drawn.min()) and float(drawn.max()) < 1
    assert abs(float(drawn.mean()) - 0.5) < 4 * (1 / 12 / drawn.numel()) ** 0.5
    correlation = torch.corrcoef(drawn) - torch.eye(200)
    assert float(correlation.abs().max()) < 0.2  # six standard deviations
    short, long, other = uniforms(10, 5, 6), uniforms(20, 5, 6), uniforms(10, 6, 5)
    assert torch.equal(short, long[:10]) and not torch.equal(short, other)


@torch.no_grad()
def test_a_constant_value_comes_out_as_itself() -> None:
    """So the weights of all leaves add up to 1."""
    tree = make("uniform", 0.4)
    with torch.no_grad():
        tree.attention.value.weight.zero_()
        tree.attention.value.bias.fill_(3.0)
    y, _ = tree(tokens(50))
    torch.testing.assert_close(y, tree.attention.output(torch.full((3, 50, WIDTH), 3.0)), rtol=0, atol=1e-6)


@every_sampler
@torch.no_grad()
def test_parallel_equals_step_by_step(sampler: str) -> None:
    tree, x = make(sampler, 0.6), tokens(40)
    parallel, _ = tree(x)
    state, outputs = tree.initial_state(3), []
    for n in range(40):
        y, state = tree.step(x[:, n], state)
        outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, 1), parallel, rtol=0, atol=1e-6)
    _, middle = tree(x[:, :17])
    later, _ = tree(x[:, 17:], middle, keep=slice(-1, None))
    torch.testing.assert_close(later, parallel[:, -1:], rtol=0, atol=1e-6)


@torch.no_grad()
def test_the_state_is_a_value() -> None:
    """Two futures of one state, though they share its memory; and rows taken out of it."""
    tree, x = make("edh", 0.7), tokens(60)
    whole, _ = tree(x)
    _, state = tree(x[:, :36])  # its memory has room for 64 tokens
    _, after = tree(x[:, 36:48], state)
    other, _ = tree(x[:, 48:], state)
    torch.testing.assert_close(tree(x[:, 48:], after)[0], whole[:, 48:], rtol=0, atol=1e-6)
    torch.testing.assert_close(tree(x[:, [*range(36), *range(48, 60)]])[0][:, 36:], other, rtol=0, atol=1e-6)
    rows = TreeState(*(part if isinstance(part, int) else part[1:] for part in after))
    torch.testing.assert_close(tree(x[1:, 48:], rows)[0], whole[1:, 48:], rtol=0, atol=1e-6)


@every_sampler
@torch.no_grad()
def test_a_row_does_not_depend_on_those_beside_it(sampler: str) -> None:
    tree, x = make(sampler, 0.5), tokens(60, batch=5)
    torch.testing.assert_close(tree(x[2:3])[0], tree(x)[0][2:3], rtol=0, atol=1e-6)


@torch.no_grad()
def test_seeds() -> None:
    x = tokens(60)
    same, again, other = (make("uniform", 0.5, seed=seed)(x)[0] for seed in (7, 7, 8))
    assert torch.equal(same, again) and not torch.allclose(same, other)
    layers = [TreeAttention(make().attention, TreeConfig(0.5, "uniform", 0), layer)(x)[0] for layer in (0, 1)]
    assert not torch.allclose(*layers)


@every_sampler
@torch.no_grad()
def test_extreme_scores_stay_finite(sampler: str) -> None:
    tree, x = make(sampler, 0.6, scale=1e4), tokens(50) * 10
    assert tree(x)[0].isfinite().all()


def test_the_number_of_terms_and_of_buds_at_once() -> None:
    assert [TreeConfig(0.5).terms(n) for n in (1, 2, 9, 10, 3000)] == [1, 2, 3, 4, 55]
    assert [TreeConfig(e).terms(1024) for e in (0, 0.2, 0.5, 0.9, 1)] == [1, 4, 32, 512, 1024]
    assert TreeConfig(1 / 3).terms(1000) == 10
    assert all(TreeConfig(1).terms(n) == n for n in range(1, 3000))
    assert [TreeConfig(e).at_once(1024) for e in (0, 0.2, 0.4, 0.5, 0.9, 1)] == [1, 2, 4, 4, 16, 32]
    for wrong in ({"budget": 1.1}, {"budget": math.nan}, {"sampler": "best"}, {"seed": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            TreeConfig(**wrong)


def test_packed_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="one sequence a row"):
        make()(tokens(4), starts=torch.zeros(3, 4, dtype=torch.bool))


def test_heap_samples_in_proportion_and_without_replacement() -> None:
    masses = torch.tensor([4.0, 0.0, 1.0, 3.0, 2.0, 0.0], dtype=torch.float64)
    rows = 20_000
    generator = torch.Generator().manual_seed(0)
    heap = SumHeap(rows, 6)
    heap.put(torch.arange(6).expand(rows, 6), masses.expand(rows, 6))
    assert (heap.sums[:, 1] == 10).all()
    taken = heap.take(
        torch.full((rows,), 3),
        torch.full((rows,), 3),
        lambda _: torch.rand(rows, 3, generator=generator, dtype=torch.float64),
    )
    first = torch.bincount(taken[:, 0], minlength=6) / rows
    torch.testing.assert_close(first.double(), masses / 10, rtol=0, atol=0.01)
    after_4 = taken[taken[:, 0] == 0, 1]  # the slot of mass 4 is gone
    rest = torch.tensor([0.0, 0.0, 1.0, 3.0, 2.0, 0.0], dtype=torch.float64) / 6
    torch.testing.assert_close(torch.bincount(after_4, minlength=6) / len(after_4), rest.float(), rtol=0, atol=0.02)
    assert all(len(set(row)) == 3 for row in taken[:500].tolist())
    heap.put(taken, torch.ones_like(taken, dtype=torch.float64))
    left = masses.expand(rows, 6).scatter(1, taken, 1.0)
    torch.testing.assert_close(heap.sums[:, 1], left.sum(1), rtol=0, atol=1e-12)


def test_heap_rows_that_want_less_and_uniforms_at_the_edge() -> None:
    heap = SumHeap(2, 4)
    heap.put(torch.tensor([[0, 1], [0, 2]]), torch.tensor([[1.0, 1e-290], [0.1, 0.2]], dtype=torch.float64))
    edge = torch.full((2, 2), 1 - 2**-53, dtype=torch.float64)
    taken = heap.take(torch.tensor([2, 1]), torch.tensor([2, 2]), lambda _: edge)
    assert taken[0].sort().values.tolist() == [0, 1] and taken[1].tolist() == [2, 3]
