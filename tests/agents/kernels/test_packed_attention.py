"""Attention over packed rows against the mask of N x N; uncompiled here, compiled on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from aaren_rl.agents.kernels import packed_attention
from aaren_rl.agents.kernels.packed_attention import BLOCK, can_attend, packed_mask
from aaren_rl.agents.mixers import Attention

KEEPS = [slice(None), slice(1, None, 3), slice(-1, None)]
# Where sequences begin: inside blocks, at their borders, one alone, and one a position.
BEGINS = [[5, 40, 41, 300], [BLOCK, 2 * BLOCK - 1, 2 * BLOCK], [], list(range(1, 390))]


def starts(n: int, *rows: list[int]) -> Tensor:
    found = torch.zeros(len(rows), n, dtype=torch.bool)
    for row, begins in zip(found, rows, strict=True):
        row[[at for at in begins if at < n]] = True
    return found


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("n", [1, BLOCK, 390])
def test_blocks_that_are_left_out_hold_nothing_seen(n: int, keep: slice) -> None:
    """And none is kept in vain."""
    begins = starts(n, *BEGINS)
    kept = torch.arange(n)[keep]
    own = begins.cumsum(-1)
    seen = (own[:, kept, None] == own[:, None]) & (torch.arange(n) <= kept[:, None])
    shape = [-(-len(kept) // BLOCK), -(-n // BLOCK)]
    padded = torch.zeros(len(begins), *(BLOCK * x for x in shape), dtype=torch.bool)
    padded[:, : len(kept), :n] = seen
    true = padded.unflatten(1, (-1, BLOCK)).unflatten(3, (-1, BLOCK)).any(4).any(2)
    assert torch.equal(packed_mask(begins, kept).to_dense()[:, 0].bool(), true)


def mixed(mixer: Attention, x: Tensor, begins: Tensor, keep: slice) -> tuple[Tensor, Tensor]:
    """By the mask of N x N, and by what stands in for it."""
    with pytest.MonkeyPatch.context() as patch:
        found = []
        for there in (False, True):
            patch.setattr(packed_attention, "on_gpu", lambda values, there=there: there)
            assert can_attend(x.unflatten(-1, (4, 16)), 0.0) == there
            found.append(mixer(x, starts=begins, keep=keep)[0])
    return found[0], found[1]


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@torch.no_grad()  # on a CPU it has no gradient
def test_it_is_masked_attention(keep: slice) -> None:
    torch.manual_seed(0)
    true, mine = mixed(Attention(64, 4), torch.randn(len(BEGINS), 390, 64), starts(390, *BEGINS), keep)
    torch.testing.assert_close(mine, true, rtol=0, atol=2e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("keep", KEEPS)
def test_compiled_with_its_gradients(keep: slice) -> None:
    torch.manual_seed(0)
    mixer, x = Attention(64, 4).cuda(), torch.randn(len(BEGINS), 390, 64, device="cuda")
    grads = []
    outputs = mixed(mixer, x, starts(390, *BEGINS).cuda(), keep)
    weights = torch.randn_like(outputs[0])
    for y in outputs:
        mixer.zero_grad()
        (y * weights).sum().backward()
        grads.append([y.detach(), *(p.grad.clone() for p in mixer.parameters())])
    for true, mine in zip(*grads, strict=True):
        assert (mine - true).abs().max() < 1e-4 * true.abs().max().clamp(min=1)


def test_no_shape_depends_on_where_sequences_begin() -> None:
    with FakeTensorMode():
        mask = packed_mask(torch.zeros(2, 390, dtype=torch.bool), torch.arange(390)[slice(1, None, 3)])
    assert mask.kv_indices.shape == (2, 1, 2, 4)


def test_where_it_cannot_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_attention, "on_gpu", lambda values: True)
    for dim, dropout, can in ((64, 0.0, True), (64, 0.1, False), (48, 0.0, False), (8, 0.0, False), (512, 0.0, False)):
        assert can_attend(torch.empty(1, 1, 1, dim), dropout) == can
    assert not can_attend(torch.empty(1, 1, 1, 64, dtype=torch.float64), 0.0)
    monkeypatch.undo()
    assert not can_attend(torch.empty(1, 1, 1, 64), 0.0)
