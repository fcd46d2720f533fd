"""Whether masks are random as dropout needs it."""

from __future__ import annotations

from torch import Tensor


def check_mask(zero: Tensor, p: float) -> None:
    """Every element of (400, M) is zero with probability p, whatever the others are."""
    rows, count = zero.shape[0], zero.numel()
    assert abs(float(zero.double().mean()) - p) < 4 * (p * (1 - p) / count) ** 0.5
    # No column, row or neighbour tells anything of another: rates of 400 and pairs of hundreds of thousands.
    assert float((zero.double().mean(0) - p).abs().max()) < 6 * (p * (1 - p) / rows) ** 0.5
    assert float((zero.double().mean(1) - p).abs().max()) < 6 * (p * (1 - p) / zero.shape[1]) ** 0.5
    for dimension in (0, 1):
        for shift in range(1, 5):
            both = (zero & zero.roll(shift, dimension)).double().mean()
            assert abs(float(both) - p * p) < 5 * (p * p * (1 - p * p) / count) ** 0.5
