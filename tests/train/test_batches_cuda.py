"""What the GPU's kernels do around the model, against PyTorch's operations: batches, and the gradient's clipping."""

from __future__ import annotations

import interpreter
import pytest
import torch
from torch import nn
from windows import generator, make_data, sampler

from aaren_rl.agents import kernels
from aaren_rl.train.contexts.batches import Batch

pytest.importorskip("triton", reason="pip install triton", exc_type=ImportError)
interpreter.prepare()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # conftest.py turns the interpreter on
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []


@pytest.mark.parametrize("context", ["window", "mixed", "episode"])
@pytest.mark.parametrize("lengths", [(1, 7, 30, 2, 1, 55, 12), (1,), (1, 1, 1)])
def test_the_same_batches_are_drawn(context: str, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit; several programs, and sums of lengths in parts."""
    kernel = kernels.load_kernels("cuda.batches")
    monkeypatch.setattr(kernel, "SCANNED", 32)
    drawn: list[Batch] = []
    for method in ("numba", "triton"):
        monkeypatch.setattr(kernels, "choose", lambda _, method=method: method)
        monkeypatch.setattr(kernels, "on_gpu", lambda _, method=method: method == "triton")
        drawn.append(sampler(context, make_data(lengths), 70).sample(generator(3)))
    for name, value in vars(drawn[0]).items():
        mine = getattr(drawn[1], name)
        assert value is None if mine is None else mine.dtype == value.dtype and torch.equal(mine, value), name


@pytest.mark.parametrize("most", [0.5, 8.0, 100.0])  # under the norm, little above it, far above
@pytest.mark.parametrize("odd", [0.0, torch.inf, torch.nan])
def test_the_gradient_is_clipped_as_torch_does(most: float, odd: float) -> None:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.zeros(k, 3)) for k in (1, 4, 9)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    if odd:
        parameters[1].grad[2, 1] = odd
    norms = torch.stack([parameter.grad.norm() for parameter in parameters])
    before = [parameter.grad.clone() for parameter in parameters]
    norm = nn.utils.clip_grad_norm_(parameters, most)
    mine, factor = kernels.load_kernels("cuda.clipping").join(norms.to(DEVICE), most)
    torch.testing.assert_close(mine.cpu(), norm, equal_nan=True)
    for old, parameter in zip(before, parameters, strict=True):
        torch.testing.assert_close(old * factor.cpu(), parameter.grad, equal_nan=True)
