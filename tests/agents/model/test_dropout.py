"""Dropout on the CPU: how many, which ones, and what is left."""

from __future__ import annotations

import pytest
import torch
from mask_checks import check_mask

from aaren_rl.agents.model.layers import Dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_element_with_its_probability(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.ones(400, 1001, dtype=dtype)
    y = Dropout(p)(x)
    assert y.dtype == dtype
    zero = y == 0
    torch.testing.assert_close(y[~zero], torch.full_like(y[~zero], 1 / (1 - p)), rtol=2**-8, atol=0)
    check_mask(zero, p)


def test_the_gradient_has_the_same_mask() -> None:
    torch.manual_seed(0)
    x = torch.randn(7, 9, requires_grad=True)
    y = Dropout(0.5)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, y.detach() / x.detach())


def test_evaluation_and_no_dropout_change_nothing() -> None:
    x = torch.randn(5, 5)
    assert Dropout(0.5).eval()(x) is x
    assert torch.equal(Dropout(0.0)(x), x)
    assert not Dropout(1.0)(x).any()


def test_the_masks_follow_torchs_seed() -> None:
    x, dropout = torch.ones(33), Dropout(0.5)
    torch.manual_seed(3)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), first) and not torch.equal(first, second)
