"""The masses by which tree attention chooses, against their definitions in the paper (section 2.3)."""

import math

import pytest
import torch
from torch import Tensor

from aaren_rl.agents.kernels import load_kernels
from aaren_rl.agents.mixers.tree import SAMPLERS, Uniform

tree_attention = load_kernels("tree_attention")
HEADS, DIM, LENGTH = 2, 4, 23
BLOCKS = [(0, 16), (16, 3), (17, 6), (3, 2), (0, 23)]
QUERY, KEYS = (
    torch.randn(n, HEADS, DIM, generator=torch.Generator().manual_seed(n), dtype=torch.float64) for n in (1, LENGTH)
)


def make(name: str, seed: int = 0, dim: int = DIM) -> Uniform:
    return SAMPLERS[name](dim, torch.Generator().manual_seed(seed))


def masses(name: str) -> Tensor:
    """Of the blocks, by the kernel; scores q . k."""
    sampler = make(name)
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
    sampler = make(name)
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
    samplers = [make(name, seed) for seed in range(1500)]
    found = torch.stack([sampler.transform(q) @ sampler.transform(k) for sampler in samplers])
    wanted = relu_kernel(q, k) if name == "favor-relu" else math.exp(float(q @ k))
    error = float(found.std()) / math.sqrt(len(found))
    assert abs(float(found.mean()) - wanted) < 4 * error < 0.15


@pytest.mark.parametrize("name", ["rff", "favor", "favor-relu"])
def test_directions_are_orthogonal_with_the_right_lengths(name):
    directions = torch.stack([make(name, seed, 8).directions for seed in range(200)])  # type: ignore[attr-defined]
    gram, squares = directions @ directions.mT, directions.square().sum(-1)
    torch.testing.assert_close(gram, torch.diag_embed(squares), rtol=0, atol=1e-12)
    if name == "favor-relu":  # all of length sqrt(D)
        torch.testing.assert_close(squares, torch.full_like(squares, 8.0), rtol=0, atol=1e-12)
    else:  # chi squared: mean D, variance 2 D
        assert float(squares.mean()) == pytest.approx(8, rel=0.05)
        assert float(squares.var()) == pytest.approx(16, rel=0.2)
