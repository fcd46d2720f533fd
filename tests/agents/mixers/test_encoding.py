"""Recurrence encoding: its matrices, the recurrence that stands for them, and what the paper proves about both."""

import math
from itertools import pairwise

import pytest
import torch
from scan_checks import matrices
from torch import Tensor

from aaren_rl.agents.mixers.rsa import GatedEncoding, Regular, RemConfig, parse_counts, scan

# k1 to k6, dilation, largest power: every kind alone and beside others, masks within a block, at its border, beyond it.
CASES = [
    ((3, 0, 0, 0, 0, 0), 2, 0),
    ((0, 2, 1, 0, 0, 0), 2, 0),
    ((1, 1, 1, 1, 0, 0), 3, 0),
    ((1, 0, 1, 1, 1, 2), 3, 7),
    ((2, 0, 0, 2, 0, 0), 3, 64),
    ((1, 1, 1, 1, 1, 1), 4, 200),
]
every_case = pytest.mark.parametrize(("counts", "dilation", "max_power"), CASES)


def make(counts: tuple[int, ...], dilation: int, max_power: int) -> GatedEncoding:
    return GatedEncoding(RemConfig(counts, dilation, max_power), sum(counts) + 1).double()


def random_values(heads: int, length: int, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randn(batch, heads, length, 3, generator=generator, dtype=torch.float64)


def same_sequence(starts: Tensor) -> Tensor:
    segments = starts.cumsum(-1)
    return (segments.unsqueeze(-1) == segments.unsqueeze(-2)).unsqueeze(1)


def expected(encoding: GatedEncoding, mixed: Tensor, values: Tensor, starts: Tensor) -> Tensor:
    """(1 - sigmoid(mu)) mixed + sigmoid(mu) P V with every P written out."""
    rems = torch.cat([matrices(group, values.shape[2]) for group in encoding.groups])
    heads, gate = len(rems), torch.sigmoid(encoding.mu)
    encoded = (rems * same_sequence(starts)) @ values[:, :heads]
    return torch.cat([(1 - gate) * mixed[:, :heads] + gate * encoded, mixed[:, heads:]], 1)


@every_case
@pytest.mark.parametrize("length", [1, 64, 220])
@torch.no_grad()
def test_parallel_is_the_matrix_product(counts, dilation, max_power, length):
    encoding, values = make(counts, dilation, max_power), random_values(sum(counts) + 1, length)
    starts = torch.rand(2, length, generator=torch.Generator().manual_seed(1)) < 3 / length
    mixed = values.flip(2)
    got, _ = encoding(mixed, values, None, starts=starts)
    torch.testing.assert_close(got, expected(encoding, mixed, values, starts), rtol=0, atol=1e-12)
    whole, _ = encoding(mixed, values, None)
    torch.testing.assert_close(
        whole, expected(encoding, mixed, values, torch.zeros(2, length).bool()), rtol=0, atol=1e-12
    )


@every_case
@pytest.mark.parametrize("cut", [1, 64, 250])
@torch.no_grad()
def test_steps_and_pieces_are_the_whole(counts, dilation, max_power, cut):
    """A sequence in two calls and then token by token, from states after starts and not."""
    encoding, values = make(counts, dilation, max_power), random_values(sum(counts) + 1, 300)
    starts = torch.zeros(2, 300, dtype=torch.bool)
    starts[0, [0, 40]] = starts[1, 249] = True
    whole, _ = encoding(values, values, None, starts=starts)
    pieces, state, edges = [], encoding.initial_state(2, 3), (0, cut, 260)
    for begin, end in pairwise(edges):
        part = values[:, :, begin:end]
        y, state = encoding(part, part, state, starts=starts[:, begin:end])
        pieces.append(y)
    for t in range(260, 300):
        y, state = encoding(values[:, :, t : t + 1], values[:, :, t : t + 1], state)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 2), whole, rtol=0, atol=1e-12)


@torch.no_grad()
def test_scan_of_many_blocks_of_blocks():
    """More than 64 x 64 tokens; the sum of a geometric series is known."""
    group = Regular(1, 1, 0).double()
    group.eta.fill_(math.atanh(0.999))
    ones = torch.ones(1, 1, 1, 64 * 64 + 100, 1, 1, dtype=torch.float64)
    t = torch.arange(ones.shape[3]).double()
    exact = 0.999 * (1 - 0.999**t) / 0.001
    torch.testing.assert_close(scan(group.powers, ones).flatten(), exact, rtol=1e-11, atol=0)


def test_initialization_is_the_papers():
    """Section 3: eta in [-2, -1] or [1, 2], nu in [1, 2], theta pi / 4, all spread out; mu as asked for."""
    encoding = GatedEncoding(RemConfig((4, 3, 3, 1, 0, 0), 5, gate=-1.0), 11)
    eta, nu = encoding.groups[0].eta, encoding.groups[1].nu
    assert bool(((eta.abs() >= 1) & (eta.abs() <= 2)).all()) and {bool(x > 0) for x in eta} == {True, False}
    assert len(set(eta.tolist())) == 4 and len(set(nu.tolist())) == 3 and bool(((nu >= 1) & (nu <= 2)).all())
    wanted = {"gate": 1 / (1 + math.e), "lambda_0": math.tanh(2), "gamma_0": 0.8807971, "theta_2": math.pi / 4}
    found = encoding.scalars()
    assert {name: found[name] for name in wanted} == pytest.approx(wanted) and "lambda_dilated5_0" in found


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 8, 15])
def test_auto_gives_every_head_a_rem(heads):
    k1, k2, k3, k4, k5, k6 = counts = parse_counts("auto", heads)
    assert sum(counts) == heads and k4 + k5 + k6 == heads // 2
    assert k2 == k3 and k5 == k6 and k1 in (1, 2) and k4 in ((1, 2) if heads > 1 else (0,))
    assert heads != 8 or counts == (2, 1, 1, 2, 1, 1)
