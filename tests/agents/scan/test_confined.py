"""NaN in one sequence of a packed row: the others' outputs, and gradients, are those of a row without it."""

from __future__ import annotations

import pytest
import torch
from scan_checks import METHODS, random_inputs
from torch import Tensor

from aaren_rl.agents import prefix_scan

LENGTH, BEGINS, ILL = 150, [0, 20, 64, 100, 128], 70  # the third sequence is ill, and crosses a block's border


def run(method: str, where: str, ill: bool) -> tuple[Tensor, ...]:
    starts = torch.zeros(2, LENGTH, dtype=torch.bool)
    starts[:, BEGINS] = True
    scores, values = random_inputs(LENGTH)
    if ill:
        {"score": scores, "value": values}[where][0, ILL] = torch.nan
    leaves = [scores.requires_grad_(), values.requires_grad_()]
    outputs, state = prefix_scan(*leaves, method=method, starts=starts)
    gradients = torch.autograd.grad(outputs, leaves, outputs.detach())  # NaN where the outputs are
    return outputs.detach(), *gradients, *(part[:, None] for part in state)


@pytest.mark.parametrize("where", ["score", "value"])
@pytest.mark.parametrize("method", METHODS)
def test_nan_stays_in_its_sequence(method: str, where: str) -> None:
    clean, ill = (run(method, where, ill) for ill in (False, True))
    assert ill[0][0, ILL:100].isnan().any(-1).all()
    well = torch.ones(2, LENGTH, dtype=torch.bool)
    well[0, 64:100] = False
    # Numba's backward pass goes through a row's sequences in one, and does not stop NaN.
    of_a_position = (0,) if method == "numba" else (0, 1, 2)
    for number in of_a_position:
        torch.testing.assert_close(ill[number][well], clean[number][well], rtol=0, atol=0)
    for mine, true in zip(ill[3:], clean[3:], strict=True):
        assert torch.equal(mine, true)
