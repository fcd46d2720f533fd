"""Aaren's form for the rollout against Aaren itself in float64."""

from __future__ import annotations

import copy

import pytest
import torch

from aaren_rl.agents import Aaren, ScanState
from aaren_rl.agents.fast.rollout_mixer import FusedAaren

WIDTH, HEADS, BATCH = 16, 4, 2


def make(spread: float = 1.0) -> Aaren:
    torch.manual_seed(0)
    mixer = Aaren(WIDTH, HEADS).eval()
    with torch.no_grad():
        mixer.query_token *= spread  # the scores are linear in it
        mixer.key.bias += 1.0
    return mixer


@pytest.mark.parametrize("spread", [1.0, 100.0, 1e4])
@torch.no_grad()
def test_a_few_tokens_at_a_time_are_the_whole_sequence(spread: float) -> None:
    """Outputs and state; scores up to 1e4 of either sign, so that exp of a later token's score would overflow."""
    mixer, x = make(spread), torch.randn(BATCH, 300, WIDTH)
    wanted, last = copy.deepcopy(mixer).double()(x.double())
    fused, state, outputs, at = FusedAaren(mixer), None, [], 0
    for few in (1, 2, 3, 8) * 30:
        y, state = fused(x[:, at : at + few], state)
        outputs.append(y)
        at += few
        if at >= 300:
            break
    assert state is not None and all(part.dtype == torch.float64 for part in state)
    # Float32 scores of 1e4 are rounded at 1e-3, and a weight changes by as much.
    tolerance = 1e-6 * max(1.0, spread)
    torch.testing.assert_close(torch.cat(outputs, 1).double(), wanted, rtol=0, atol=tolerance)
    torch.testing.assert_close(state.output(), last.output(), rtol=0, atol=tolerance)


@torch.no_grad()
def test_the_state_is_aarens_and_keep_is_slicing() -> None:
    mixer, x = make(), torch.randn(BATCH, 6, WIDTH)
    fused, (_, state) = FusedAaren(mixer), mixer(x[:, :3])
    y, after = fused(x[:, 3:], state)
    kept, same = fused(x[:, 3:], state, keep=slice(-1, None))
    torch.testing.assert_close(kept, y[:, -1:], rtol=0, atol=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(after, same, strict=True))
    for part, wanted in zip(after, mixer(x)[1], strict=True):
        torch.testing.assert_close(part, wanted, rtol=0, atol=1e-6)
    one, _ = mixer.step(x[:, 0], after)  # either form goes on from it
    torch.testing.assert_close(one.unsqueeze(1), fused(x[:, :1], after)[0], rtol=0, atol=1e-6)
    assert isinstance(after, ScanState)


@torch.no_grad()
def test_the_weights_are_those_of_when_it_was_made() -> None:
    mixer, x = make(), torch.randn(BATCH, 2, WIDTH)
    before, fused = mixer(x)[0], FusedAaren(copy.deepcopy(mixer))
    mixer.value.weight *= 2
    torch.testing.assert_close(fused(x)[0], before, rtol=0, atol=1e-6)
    mixer.to(torch.bfloat16)
    y = FusedAaren(mixer)(x.to(torch.bfloat16))[0]
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), mixer.float()(x)[0], rtol=0, atol=0.05)


@torch.no_grad()
def test_the_last_sequence_of_a_row_knows_nothing_of_those_before() -> None:
    """Not even where their scores are so large that its own would be lost beside them."""
    fused, x = FusedAaren(make()), torch.randn(BATCH, 3, WIDTH)
    _, before = fused(torch.randn(BATCH, 4, WIDTH))
    before = before._replace(m=before.m + 1e5)
    starts = torch.zeros(BATCH, 3, dtype=torch.bool)
    starts[0, 1] = True
    y, after = fused(x, before, starts=starts, keep=slice(-1, None))
    fresh, last = fused(x[:, 1:], keep=slice(-1, None))
    same, going = fused(x, before, keep=slice(-1, None))
    torch.testing.assert_close(y[0], fresh[0], rtol=0, atol=1e-6)  # a product of three rows, not of two
    assert torch.equal(y[1:], same[1:])
    for part, alone, on in zip(after, last, going, strict=True):
        torch.testing.assert_close(part[0], alone[0], rtol=0, atol=1e-6)
        assert torch.equal(part[1:], on[1:])


def test_more_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="not 9"):
        FusedAaren(make())(torch.randn(1, 9, WIDTH))
