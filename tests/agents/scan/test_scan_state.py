"""The scan's state: joining stretches, its identity, a million positions, counting."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from scan_checks import METHODS
from torch import Tensor

from aaren_rl.agents import ScanState, combine, prefix_scan, scan_step

numbers = st.floats(-1e4, 1e4, allow_subnormal=False)


@st.composite
def states(draw: st.DrawFn) -> ScanState:
    if draw(st.integers(0, 4)) == 0:
        return ScanState.identity((1,), 2)
    u = draw(st.floats(1e-3, 1e6))
    parts = ([draw(numbers)], [u], [[draw(numbers), draw(numbers)]])
    return ScanState(*(torch.tensor(part, dtype=torch.float64) for part in parts))


@settings(deadline=None, max_examples=50)
@given(states(), states(), states())
def test_combine_is_associative_and_has_an_identity(a, b, c):
    for mine, true in zip(combine(combine(a, b), c), combine(a, combine(b, c)), strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-12, atol=1e-21)
    identity = ScanState.identity((1,), 2)
    for joined in (combine(identity, a), combine(a, identity)):
        assert all(map(torch.equal, joined, a))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_identity_of_every_type(dtype):
    identity = ScanState.identity((2, 3), 4, dtype=dtype)
    assert torch.equal(identity.output(), torch.zeros(2, 3, 4, dtype=dtype))
    for state in (identity, ScanState.identity((2, 3), 4).to(dtype)):
        assert all(part.dtype == dtype and bool(part.isfinite().all()) for part in state)


def million(steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of scores 3 N(0, 1), of constant scores 2 and of constant scores -105, values, and their exact outputs."""
    generator = torch.Generator().manual_seed(11)
    scores = torch.stack([3 * torch.randn(steps, generator=generator), torch.full((steps,), 2.0)])
    scores = torch.cat([scores, torch.full((1, steps), -105.0)])
    values = torch.randn(3, steps, 2, generator=generator)
    # A fixed shift serves as the maximum: in float64 nothing here overflows or vanishes.
    p = torch.exp(scores.double() - scores.double().amax(-1, keepdim=True))
    return scores, values, (p.unsqueeze(-1) * values.double()).cumsum(-2) / p.cumsum(-1).unsqueeze(-1)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("method", "count"),
    [("numba", 1_000_000), *((method, 100_000) for method in ("blocked", "hillis_steele", "ladner_fischer"))],
)
def test_a_million_positions_in_chunks_do_not_drift(method, count):
    scores, values, true = million(count)
    state, chunk = None, 10_000
    for begin in range(0, count, chunk):
        part = slice(begin, begin + chunk)
        outputs, state = prefix_scan(scores[:, part], values[:, part], state, method)
        if begin:
            assert float((outputs - true[:, part]).abs().max()) <= 1e-6
        assert float((state.output() - true[:, part.stop - 1]).abs().max()) <= 1e-6


def test_single_steps_do_not_drift():
    scores, values, true = million(3000)
    state = ScanState.identity((3,), 2)
    for k in range(3000):
        output, state = scan_step(scores[:, k], values[:, k], state)
        if k % 1000 == 999:
            assert float((output - true[:, k]).abs().max()) <= 1e-6
    assert float((state.output() - true[:, -1]).abs().max()) <= 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_counting_does_not_stop_at_two_to_the_24(method):
    """A float32 sum of ones stops growing there; a returned state must not, by `prefix_scan` or by `scan_step`."""
    score, value = torch.full((1,), 2.0), torch.ones(1, 1)
    state = ScanState(*(torch.tensor(part, dtype=torch.float64) for part in (2.0, 2.0**24, [0.0])))
    for _ in range(100):
        _, state = prefix_scan(score, value, state, method)
    for _ in range(100):
        output, state = scan_step(score[0], value[0], state)
    assert float(state.u) == 2**24 + 200 and float(state.w) == 200
    torch.testing.assert_close(output.double(), torch.tensor([200 / (2**24 + 200)]).double(), rtol=1e-6, atol=0)
