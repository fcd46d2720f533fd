"""Tree attention against softmax and against algorithm 1 written out by its definition, in float64."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from aaren_rl.agents.kernels import load
from aaren_rl.agents.mixers.attention import Attention
from aaren_rl.agents.mixers.tree import SAMPLERS, Sampler, TreeAttention, TreeConfig, TreeState

tree_attention = load("tree_attention")
WIDTH, HEADS = 8, 2
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS)


def make(sampler: str = "edh", budget: float = 1.0, scale: float = 3.0, seed: int = 0) -> TreeAttention:
    torch.manual_seed(0)
    attention = Attention(WIDTH, HEADS)
    attention.query.weight.data *= scale
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
    """By the definition, in float64: every token of a bud (first token, tokens) has the mean of the bud's scores."""
    scores = (keys.double() @ query.double()).clone()
    for start, count in buds:
        scores[start : start + count] = scores[start : start + count].mean()
    return torch.softmax(scores, 0) @ values.double()


@every_sampler
@torch.no_grad()
def test_as_many_terms_as_tokens_is_softmax(sampler):
    tree, x = make(sampler, scale=10.0), tokens(140)
    y, _ = tree(x)
    exact, _ = tree.attention.double()(x.double())
    torch.testing.assert_close(y.double(), exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("sampler", ["uniform", "align", "rff"])
@pytest.mark.parametrize("budget", [0.0, 0.6])
@torch.no_grad()
def test_buds_are_a_partition_and_the_output_is_their_definition(sampler, budget):
    tree = make(sampler, budget)
    dim = WIDTH // HEADS
    for length in (1, 2, 31, 32, 33, 100):
        query, keys, values = (torch.randn(3, n, HEADS, dim, dtype=torch.float64) for n in (1, length, length))
        features = tree.sampler.transform(keys)
        state = tree_of(torch.cat([keys, features], -1), values)
        queries = torch.cat([query, tree.sampler.transform(query)], -1)
        totals = state.key_total[:, None], state.value_total[:, None]
        output, start, sizes = tree.attend(state, queries, *totals, torch.tensor([length]))
        for b in range(3):
            blocks = sorted((s, c) for s, c in zip(start[b].tolist(), sizes[b].tolist(), strict=True) if c)
            assert len(blocks) == tree.config.terms(length)
            assert [s for s, _ in blocks] == [0, *(s + c for s, c in blocks[:-1])] and sum(blocks[-1]) == length
            for h in range(HEADS):
                wanted = bud_attention(query[b, 0, h], keys[b, :, h], values[b, :, h], blocks)
                torch.testing.assert_close(output[b, h], wanted, rtol=0, atol=1e-11)


@every_sampler
@torch.no_grad()
def test_parallel_equals_step_by_step(sampler):
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
def test_the_state_is_a_value():
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
def test_extreme_scores_stay_finite(sampler):
    tree, x = make(sampler, 0.6, scale=1e4), tokens(50) * 10
    assert tree(x)[0].isfinite().all()


def test_the_number_of_terms_and_of_buds_at_once():
    assert [TreeConfig(0.5).terms(n) for n in (1, 2, 9, 10, 3000)] == [1, 2, 3, 4, 55]
    assert [TreeConfig(e).terms(1024) for e in (0, 0.2, 0.5, 0.9, 1)] == [1, 4, 32, 512, 1024]
    assert TreeConfig(1 / 3).terms(1000) == 10
    assert all(TreeConfig(1).terms(n) == n for n in range(1, 3000))
    assert [TreeConfig(e).at_once(1024) for e in (0, 0.2, 0.4, 0.5, 0.9, 1)] == [1, 2, 4, 4, 16, 32]
    for wrong in ({"budget": 1.1}, {"budget": math.nan}, {"sampler": "best"}, {"seed": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            TreeConfig(**wrong)


def test_packed_rows_are_refused():
    with pytest.raises(ValueError, match="one sequence a row"):
        make()(tokens(4), starts=torch.zeros(3, 4, dtype=torch.bool))


def test_heap_samples_in_proportion_and_without_replacement():
    masses, rows, taken = [4.0, 0.0, 1.0, 3.0, 2.0, 0.0], 20_000, []
    full, picked = np.zeros(16), np.empty(3, np.int64)
    for slot, mass in enumerate(masses):
        tree_attention._put(full, 8, slot, mass)
    for row in range(rows):
        tree_attention._take(full.copy(), 8, 3, 3, np.uint64(row), picked)
        taken.append(picked.copy())
    first = np.bincount(np.stack(taken)[:, 0], minlength=6) / rows
    np.testing.assert_allclose(first, np.array(masses) / 10, rtol=0, atol=0.01)
    after_4 = [second for one, second, _ in taken if one == 0]  # the slot of mass 4 is gone
    wanted = np.array([0.0, 0.0, 1.0, 3.0, 2.0, 0.0]) / 6
    np.testing.assert_allclose(np.bincount(after_4, minlength=6) / len(after_4), wanted, rtol=0, atol=0.02)
    assert all(len(set(row)) == 3 for row in taken)


DIM, LENGTH = 4, 23
BLOCKS = [(0, 16), (16, 3), (17, 6), (3, 2), (0, 23)]
QUERY, KEYS = (
    torch.randn(n, HEADS, DIM, generator=torch.Generator().manual_seed(n), dtype=torch.float64) for n in (1, LENGTH)
)


def make_sampler(name: str, seed: int = 0, dim: int = DIM) -> Sampler:
    return SAMPLERS[name](dim, torch.Generator().manual_seed(seed))


def masses(name: str) -> Tensor:
    """Of the blocks, by the kernel; scores q . k."""
    sampler = make_sampler(name)
    query, keys = (sampler.transform(x) if sampler.by_features else x for x in (QUERY, KEYS))
    alignments = [(query * keys[s : s + c]).sum((0, 2)) for s, c in BLOCKS]
    reference = float((query * keys).sum((0, 2)).max()) / LENGTH
    found = [
        tree_attention._mass(sampler.form, s, c, LENGTH, a.numpy(), reference, 0.0)
        for (s, c), a in zip(BLOCKS, alignments, strict=True)
    ]
    return torch.tensor(found, dtype=torch.float64)


def by_definition(name: str) -> Tensor:
    """Every formula in full."""
    found = []
    for start, count in BLOCKS:
        products = QUERY[0] * KEYS[start : start + count]  # (tokens, H, D)
        total = {
            "uniform": HEADS,
            "edh": HEADS * sum(0.99 ** (LENGTH - t - 1) for t in range(start, start + count)),
            "align": products.sum(-1).exp().prod(0).pow(1 / count).sum(),
            "pos-align": products.clamp(min=0).sum(-1).mean(0).exp().sum(),
        }[name]
        found.append(float(total))
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("name", ["uniform", "edh", "align", "pos-align"])
def test_masses_are_their_definition(name):
    found, wanted = masses(name), by_definition(name)
    torch.testing.assert_close(found / found.sum(), wanted / wanted.sum(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["rff", "favor", "favor-relu"])
def test_masses_of_random_features_are_sums_over_the_tokens(name):
    sampler = make_sampler(name)
    kernel = (sampler.transform(QUERY) * sampler.transform(KEYS)).sum(-1)  # (L, H)
    wanted = torch.stack([kernel[s : s + c].sum(0).clamp(min=0).sum() for s, c in BLOCKS])
    torch.testing.assert_close(masses(name), wanted, rtol=0, atol=1e-12)


def relu_kernel(q: Tensor, k: Tensor) -> float:
    """Equation (8)."""
    length = float(q.norm() * k.norm())
    cosine = float(q @ k) / length
    root = math.sqrt(1 - cosine**2)
    return length * (cosine + 2 / math.pi * (root + abs(cosine) * math.atan(abs(cosine) / root))) / 4


@pytest.mark.parametrize("name", ["rff", "favor", "favor-relu"])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_kernel_is_estimated_without_bias(name, sign):
    """<phi(q), phi(k)> of many draws of the features."""
    q, k = torch.tensor([0.5, -0.3, 0.2, 0.6]).double(), sign * torch.tensor([0.4, 0.5, -0.6, 0.1]).double()
    samplers = [make_sampler(name, seed) for seed in range(1500)]
    found = torch.stack([sampler.transform(q) @ sampler.transform(k) for sampler in samplers])
    wanted = relu_kernel(q, k) if name == "favor-relu" else math.exp(float(q @ k))
    error = float(found.std()) / math.sqrt(len(found))
    assert abs(float(found.mean()) - wanted) < 4 * error < 0.15


@pytest.mark.parametrize("name", ["rff", "favor", "favor-relu"])
def test_directions_are_orthogonal_with_the_right_lengths(name):
    directions = torch.stack([make_sampler(name, seed, 8).directions for seed in range(200)])
    gram, squares = directions @ directions.mT, directions.square().sum(-1)
    torch.testing.assert_close(gram, torch.diag_embed(squares), rtol=0, atol=1e-12)
    if name == "favor-relu":  # all of length sqrt(D)
        torch.testing.assert_close(squares, torch.full_like(squares, 8.0), rtol=0, atol=1e-12)
    else:  # chi squared: mean D, variance 2 D
        assert float(squares.mean()) == pytest.approx(8, rel=0.05)
        assert float(squares.var()) == pytest.approx(16, rel=0.2)
