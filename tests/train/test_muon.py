"""Muon: orthogonal steps, all matrices of a shape at once, and a state that is restored."""

import pytest
import torch

from aaren_rl.train.config import OptimizerConfig
from aaren_rl.train.optimizers import ITERATIONS, QUINTIC, Muon, orthogonalize, rates_at


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 5, 16)])  # of a wide one, some iterations are of its square alone
@pytest.mark.parametrize(("dtype", "apart"), [(torch.float64, 1e-9), (torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_steps_are_orthogonal(shape, dtype, apart):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = orthogonalize(x.to(dtype)).double()
    expected = x / x.norm(dim=(-2, -1), keepdim=True)
    for _ in range(ITERATIONS):
        gram = expected @ expected.mT
        expected = QUINTIC[0] * expected + (QUINTIC[1] * gram + QUINTIC[2] * gram @ gram) @ expected
    torch.testing.assert_close(found, expected, rtol=0, atol=apart)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.55 and values.max() < 1.3
    assert orthogonalize(torch.zeros(shape, dtype=dtype)).abs().max() == 0


def test_agrees_with_torchs_own():
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


def test_rates_rise_and_fall_and_the_average_forgets_the_first_weights():
    config = OptimizerConfig(updates=1000, warmup_updates=10, learning_rate=1.0, ema_decay=0.95)
    first, middle, last = (rates_at(update, config) for update in (0, 500, 999))
    assert first.adamw == pytest.approx(0.1) and middle.adamw == pytest.approx(0.5) and last.adamw < 0.001
    assert middle.muon == pytest.approx(0.5 * config.muon_learning_rate)
    assert first.ema == pytest.approx(0.9) and last.ema == pytest.approx(1 - 0.95)
