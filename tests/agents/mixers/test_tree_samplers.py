"""The masses by which tree attention chooses, against their definitions in the paper (section 2.3)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from aaren_rl.agents.kernels import load_kernels
from aaren_rl.agents.mixers.tree.samplers import SAMPLERS, Uniform

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
def test_masses_are_their_definition(name: str) -> None:
    found, wanted = masses(name), by_definition(name)
    torch.testing.assert_close(found / found.sum(), wanted / wanted.sum(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["rff", "favor", "favor-relu"])
def test_masses_of_random_features_are_sums_over_the_tokens(name: str) -> None:
    sampler = make(name)
    kernel = (sampler.transform(QUERY) * sampler.transform(KEYS)).sum(-1)  # (L, H)
    wanted = torch.stack([kernel[s : s + c].sum(0).clamp(min=0).sum() for s, c in BLOCKS])
    torch.testing.assert_close(masses(name), wanted, rtol=0, atol=1e-12)


def estimates(name: str, count: int, q: Tensor, k: Tensor) -> Tensor:
    """<phi(q), phi(k)> of `count` draws of the features."""
    samplers = (make(name, seed, len(q)) for seed in range(count))
    return torch.stack([sampler.transform(q) @ sampler.transform(k) for sampler in samplers])


@pytest.mark.parametrize("name", ["rff", "favor"])
def test_the_softmax_kernel_is_estimated_without_bias(name: str) -> None:
    q, k = torch.tensor([0.5, -0.3, 0.2, 0.6]).double(), torch.tensor([0.4, 0.5, -0.6, 0.1]).double()
    found = estimates(name, 1500, q, k)
    error = float(found.std()) / math.sqrt(len(found))
    assert abs(float(found.mean()) - math.exp(float(q @ k))) < 4 * error < 0.15


def test_the_variance_of_favor() -> None:
    """Equation (9), for one direction: orthogonality plays no part there."""
    q, k = torch.tensor([0.4]).double(), torch.tensor([0.5]).double()
    found = estimates("favor", 6_000, q, k)
    relative = float(found.var()) / math.exp(float(q @ k)) ** 2
    assert relative == pytest.approx(math.cosh(0.9**2) - 1, rel=0.2)
    assert (found > 0).all()


@pytest.mark.parametrize("cosine", [-0.7, 0.0, 0.9])
def test_the_kernel_of_favor_relu(cosine: float) -> None:
    """Equation (8)."""
    q = torch.tensor([2.0, 0.0, 0.0]).double()
    k = torch.tensor([3 * cosine, 3 * math.sqrt(1 - cosine**2), 0.0]).double()
    root = math.sqrt(1 - cosine**2)
    g = 2 / math.pi * (root + abs(cosine) * math.atan(abs(cosine) / root))
    found = estimates("favor-relu", 1500, q, k)
    error = float(found.std()) / math.sqrt(len(found))
    assert abs(float(found.mean()) - 6 * (cosine + g) / 4) < 4 * error < 0.4


@pytest.mark.parametrize("name", ["rff", "favor", "favor-relu"])
def test_directions_are_orthogonal_with_the_right_lengths(name: str) -> None:
    directions = torch.stack([make(name, seed, 8).directions for seed in range(200)])  # type: ignore[attr-defined]
    gram, squares = directions @ directions.mT, directions.square().sum(-1)
    torch.testing.assert_close(gram, torch.diag_embed(squares), rtol=0, atol=1e-12)
    if name == "favor-relu":  # all of length sqrt(D)
        torch.testing.assert_close(squares, torch.full_like(squares, 8.0), rtol=0, atol=1e-12)
    else:  # chi squared: mean D, variance 2 D
        assert float(squares.mean()) == pytest.approx(8, rel=0.05)
        assert float(squares.var()) == pytest.approx(16, rel=0.2)
