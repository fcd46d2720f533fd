"""The CUDA kernels against the full softmax in float64: on a GPU or, without one, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from scan_checks import check, random_inputs, random_mask, random_starts, random_state
from torch import Tensor

from aaren_rl.agents import ScanState, kernels, prefix_scan

pytest.importorskip("triton", reason="pip install triton", exc_type=ImportError)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # conftest.py turns the interpreter on


def scan(
    scores: Tensor,
    values: Tensor,
    state: ScanState | None = None,
    *,
    mask: Tensor | None = None,
    starts: Tensor | None = None,
) -> tuple[Tensor, ScanState]:
    there = [None if x is None else x.to(DEVICE) for x in (scores, values, mask, starts)]
    before = None if state is None else ScanState(*(part.to(DEVICE) for part in state))
    outputs, after = prefix_scan(*there[:2], before, "triton", mask=there[2], starts=there[3])
    return outputs.cpu(), ScanState(*(part.cpu() for part in after))


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 65, 100])
def test_every_length(length: int) -> None:
    check(scan, *random_inputs(length))


@pytest.mark.parametrize("length", [1, 32, 70])
def test_with_state_mask_and_starts(length: int) -> None:
    batch = (2, 2)
    scores, values = random_inputs(length, batch=batch, dim=5)
    mask, starts = random_mask(length, batch), random_starts(length, batch)
    side_by_side = values.transpose(1, 2).contiguous().transpose(1, 2)
    hidden = side_by_side.masked_fill(~mask.unsqueeze(-1), torch.nan)
    check(scan, scores, hidden, state=random_state(batch, 5), mask=mask, starts=starts)


@pytest.mark.parametrize("kind", ["+1e4", "-1e4", "-110", "rising", "falling", "loud, then quiet"])
def test_extreme_scores(kind: str) -> None:
    scores, values = random_inputs(70)
    ramp, starts = torch.linspace(-200, 200, 70), None
    if kind == "loud, then quiet":
        starts = torch.arange(70).eq(40).expand(2, 70)
        scores = torch.where(starts.cumsum(-1) > 0, scores - 1e4, scores + 1e4)
    else:
        scores = scores + {"+1e4": 1e4, "-1e4": -1e4, "-110": -110, "rising": ramp, "falling": -ramp}[kind]
    check(scan, scores, values, state=random_state(), starts=starts)


def test_all_masked_is_zero_with_finite_gradients() -> None:
    scores = torch.full((2, 40), -torch.inf, requires_grad=True)
    values = torch.full((2, 40, 3), torch.nan, requires_grad=True)
    outputs, state = scan(scores, values)
    assert torch.equal(outputs, torch.zeros(2, 40, 3)) and not state.u.any()
    (outputs.sum() + state.w.sum() + state.u.sum()).backward()
    assert not scores.grad.any() and not values.grad.any()


def test_half_types() -> None:
    check(scan, *random_inputs(40, dtype=torch.bfloat16))


def test_counting_does_not_stop_at_two_to_the_24() -> None:
    state = ScanState(*(torch.tensor(part, dtype=torch.float64) for part in ([2.0], [2.0**24], [[0.0]])))
    for _ in range(3):
        _, state = scan(torch.full((1, 1), 2.0), torch.ones(1, 1, 1), state)
    assert float(state.u) == 2**24 + 3 and float(state.w) == 3


def test_float64_is_refused() -> None:
    scores, values = random_inputs(4, dtype=torch.float64)
    with pytest.raises(ValueError, match="computes in float32"):
        scan(scores, values)


def test_a_cpu_tensor_is_refused_outside_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = kernels.load("triton")
    monkeypatch.setattr(gpu, "_forward", None)
    with pytest.raises(ValueError, match="needs a CUDA device, not cpu"):
        scan(*random_inputs(4))
