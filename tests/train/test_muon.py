"""Muon: orthogonal steps, all matrices of a shape at once, and a state that is restored."""

from __future__ import annotations

import pytest
import torch

from aaren_rl.agents import DecisionModel, ModelConfig
from aaren_rl.train.optimizers import ITERATIONS, QUINTIC, Muon, Optimizers, orthogonalize, trunk_matrices
from aaren_rl.train.settings import build_config


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 5, 16)])
@pytest.mark.parametrize(("dtype", "slack"), [(torch.float32, 0.0), (torch.bfloat16, 0.05)])
def test_singular_values_come_near_one(shape: tuple[int, ...], dtype: torch.dtype, slack: float) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = orthogonalize(matrices.to(dtype)).double()
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.6 - slack and values.max() < 1.25 + slack
    # The singular vectors stay: the map of the matrix itself is symmetric and positive.
    left, _, right = torch.linalg.svd(matrices.double(), full_matrices=False)
    kept = left.mT @ found @ right.mT
    assert (kept - kept.diagonal(dim1=1, dim2=2).diag_embed()).abs().max() < 0.02 + slack


def test_wide_matrices_take_the_same_iteration() -> None:
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = x / x.norm(dim=(-2, -1), keepdim=True)
    for _ in range(ITERATIONS):
        gram = expected @ expected.mT
        expected = QUINTIC[0] * expected + (QUINTIC[1] * gram + QUINTIC[2] * gram @ gram) @ expected
    torch.testing.assert_close(orthogonalize(x), expected)
    assert orthogonalize(torch.zeros(1, 4, 4)).abs().max() == 0


def test_agrees_with_torchs_own() -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(32, 24), torch.randn(3, 32, 24)
    mine, theirs = start.clone().requires_grad_(), start.clone().requires_grad_()
    muon = Muon([mine], 0.1, torch.bfloat16)
    its = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for gradient in gradients:
        mine.grad, theirs.grad = gradient.clone(), gradient.clone()
        muon.step(0.1)
        its.step()
    # Both round to bfloat16 inside; a step is about 0.1 * 0.2 an element.
    torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-3)


@pytest.mark.parametrize("mixer", ["aaren", "attention", "aaren-rsa", "rsa", "tree"])
def test_a_trunks_matrices(mixer: str) -> None:
    model = DecisionModel(ModelConfig(5, 2, mixer, width=8, layers=2, heads=2))
    found = trunk_matrices(model.trunk)
    assert len(found) >= 2 * 6 and all(p.ndim == 2 for p in found)
    optimizers = Optimizers(model, build_config({"optimizer": "muon"}).optimizer, torch.float32)
    assert optimizers.muon is not None and all(a is b for a, b in zip(optimizers.muon.matrices, found, strict=True))
    rest = {id(p) for group in optimizers.adamw.param_groups for p in group["params"]}
    trunk = {id(p) for p in found}
    assert not rest & trunk and rest | trunk == {id(p) for p in model.parameters()}
    assert not any(name.startswith("head") and id(p) in trunk for name, p in model.named_parameters())
