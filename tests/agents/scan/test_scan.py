"""The prefix scan against the full softmax in float64: outputs, final state and gradients, by every method."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from scan_checks import METHODS, check, random_decays, random_inputs, random_mask, random_starts, random_state
from torch import Tensor

from aaren_rl.agents import ScanState, combine, prefix_scan, scan_step


@pytest.mark.parametrize("length", [1, 2, 7, 63, 64, 65, 130, 300])
def test_every_length(length):
    scores, values = random_inputs(length)
    check(METHODS, scores, values)
    check(METHODS, scores, values, decay=random_decays(length))
    whole = {"state": random_state(), "mask": random_mask(length), "starts": random_starts(length, rate=0.02)}
    check(METHODS, scores, values, **whole)
    check(METHODS, scores, values, **whole, decay=random_decays(length))


@torch.no_grad()
def test_blocks_of_blocks():
    """More than 64 x 64 positions, by `blocked` and the kernel alike; the others have no such border."""
    given, starts = random_inputs(5000, dtype=torch.float64), random_starts(5000, rate=1e-3)
    decay = random_decays(5000, dtype=torch.float64)
    runs = [prefix_scan(*given, random_state(), m, decay, starts=starts)[0] for m in ("blocked", "numba")]
    torch.testing.assert_close(*runs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_every_type(dtype):
    scores, values = random_inputs(130, dtype=dtype)
    check(METHODS, scores, values, mask=random_mask(130))
    if dtype == torch.float64:
        check(METHODS, scores, values, decay=random_decays(130, dtype=dtype))


@pytest.mark.parametrize("method", METHODS)
def test_the_state_does_not_hold_the_prefixes(method):
    _, state = prefix_scan(*random_inputs(200, dtype=torch.float64), method=method)
    assert [part.untyped_storage().nbytes() for part in state] == [part.nbytes for part in state]


KINDS = ("+1e4", "-1e4", "+-1e4", "-95", "-110", "rising", "falling", "constant", "loud, then quiet")


def extreme(kind: str, length: int) -> Tensor:
    """Scores at which a careless sum of exponentials overflows, underflows or forgets to rescale."""
    noise = torch.randn(2, length, generator=torch.Generator().manual_seed(5))
    ramp = torch.linspace(-200, 200, length).expand(2, length)
    return {
        "+1e4": 1e4 + noise,
        "-1e4": -1e4 + noise,
        "+-1e4": 1e4 * noise.sign() + noise.roll(1, -1),
        "-95": -95 + noise,
        "-110": -110 + noise,
        "rising": ramp + noise,
        "falling": -ramp + noise,
        "constant": torch.full((2, length), 2.5),
        # In one row: a loud sequence does not silence the next.
        "loud, then quiet": noise + torch.where(random_starts(length).cumsum(-1) > 0, -1e4, 1e4),
    }[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_extreme_scores(kind):
    scores, (_, values) = extreme(kind, 80), random_inputs(80)
    check(METHODS, scores, values)
    check(METHODS, scores, values, mask=random_mask(80), starts=random_starts(80))


MASKS = {"leading": slice(0, 66), "interior": slice(20, 90), "trailing": slice(60, 130), "all": slice(None)}


@pytest.mark.parametrize("where", MASKS)
@pytest.mark.parametrize("by", ["mask", "score"])
def test_masks(where, by):
    """Masked by `mask` or by a score of -inf; a masked value may be anything and passes nothing on."""
    scores, values = random_inputs(130)
    mask = torch.ones(2, 130, dtype=torch.bool)
    mask[0, MASKS[where]] = False
    hidden = values.masked_fill(~mask.unsqueeze(-1), torch.nan)
    hidden[0, MASKS[where]][:1] = torch.inf
    keyword = mask if by == "mask" else None
    clean = scores.masked_fill(~mask, 0.0 if by == "mask" else -torch.inf)
    scores = scores.masked_fill(~mask, torch.nan if by == "mask" else -torch.inf)
    check(METHODS, clean, hidden, mask=keyword, state=random_state())
    for method in METHODS:
        outputs, _ = prefix_scan(scores, hidden, None, method, mask=keyword)
        assert torch.equal(outputs, prefix_scan(clean, values, None, method, mask=mask)[0]), method


@pytest.mark.parametrize("shape", [(70,), (2, 1), (2, 1, 1, 70)])
def test_masks_and_starts_broadcast(shape):
    draws, inputs = torch.rand(shape, generator=torch.Generator().manual_seed(1)), random_inputs(70, batch=(2, 1, 2))
    check(("auto", *METHODS), *inputs, mask=draws < 0.8, starts=draws < 0.1)


@pytest.mark.parametrize("where", ["score", "value", "decay"])
@pytest.mark.parametrize("method", METHODS)
def test_nan_stays_in_its_sequence(method, where):
    """The others' outputs, and gradients, are those of a row without it; the ill sequence crosses a block's border."""
    starts = torch.isin(torch.arange(150), torch.tensor([0, 20, 64, 100, 128])).expand(2, 150)
    both = []
    for number in (0.0, torch.nan):
        scores, values = random_inputs(150)
        decay = -torch.rand(2, 150, generator=torch.Generator().manual_seed(2))
        {"score": scores, "value": values, "decay": decay}[where][0, 70] += number
        leaves = [scores.requires_grad_(), values.requires_grad_()]
        faded = {"log_decay": decay} if where == "decay" else {}
        outputs, state = prefix_scan(*leaves, method=method, starts=starts, **faded)
        gradients = torch.autograd.grad(outputs, leaves, outputs.detach())  # NaN where the outputs are
        both.append((outputs.detach(), *gradients, *state))
    clean, ill = both
    assert ill[0][0, 70:100].isnan().any(-1).all()
    well = torch.ones(2, 150, dtype=torch.bool)
    well[0, 64:100] = False
    for number in range(3):
        assert torch.equal(ill[number][well], clean[number][well])
    assert all(map(torch.equal, ill[3:], clean[3:]))


@pytest.mark.parametrize("method", METHODS)
def test_autocast_does_not_reach_the_scan(method):
    """Matrix products inside would otherwise be done, and the state rounded, in bfloat16."""
    scores, values = random_inputs(130)

    def run(*arguments: Tensor | None, **keywords: Tensor | None) -> tuple[Tensor, ScanState]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return prefix_scan(*arguments, method=method, **keywords)

    check(run, scores, values, state=random_state(), starts=random_starts(130, rate=0.01))


def test_what_does_not_fit_is_refused():
    scores, values = random_inputs(5)
    with pytest.raises(ValueError, match=r"'fast' is not one of .*sequential.*blocked"):
        prefix_scan(scores, values, method="fast")
    for bad_scores, bad_values in (
        (scores[..., :4], values),
        (scores, values[0]),
        (scores[0], values),
        (scores[..., :0], values[..., :0, :]),
        (torch.tensor(1.0), torch.ones(3)),
        (torch.tensor(1.0), torch.tensor(1.0)),
    ):
        with pytest.raises(ValueError, match=r"scores .* and values .* must be"):
            prefix_scan(bad_scores, bad_values)
    with pytest.raises(ValueError, match=r"log_decay \(2, 4\) must be of the scores' shape \(2, 5\)"):
        prefix_scan(scores, values, log_decay=scores[:, :4])
    for shape, dim in ((scores.shape[:-1], 1), ((1,), values.shape[-1])):  # both would be broadcast
        with pytest.raises(ValueError, match="the state is of values"):
            prefix_scan(scores, values, ScanState.identity(tuple(shape), dim))


@pytest.mark.parametrize("method", METHODS)
def test_a_masked_position_fades_nothing(method):
    """Its decay may be anything; so may that of a first position of a sequence."""
    scores, values = random_inputs(6)
    decay, mask = torch.full((2, 6), -1.0), torch.tensor([True, True, False, True, True, True])
    starts = torch.tensor([False, False, False, False, True, False])
    outputs, state = prefix_scan(scores, values, method=method, log_decay=decay, mask=mask, starts=starts)
    by_score = prefix_scan(scores.masked_fill(~mask, -torch.inf), values, method=method, log_decay=decay, starts=starts)
    assert torch.equal(outputs, by_score[0])
    decay[:, [2, 4]] = -torch.inf
    again, same = prefix_scan(scores, values, method=method, log_decay=decay, mask=mask, starts=starts)
    assert torch.equal(outputs, again) and all(map(torch.equal, state, same))
    _, before = prefix_scan(scores[:, :2], values[:, :2], method=method, log_decay=decay[:, :2])
    _, after = scan_step(scores[:, 2], values[:, 2], before, decay[:, 2], mask=mask[2])
    assert torch.equal(after.output(), before.output()) and torch.equal(after.m, before.m)


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
