"""The CUDA kernels as torch's operators, alone and in a graph: on a GPU or, without one, in Triton's interpreter."""

from __future__ import annotations

import interpreter
import pytest
import torch
from scan_checks import check_operators, random_inputs
from torch import Tensor

from aaren_rl.agents import kernels, prefix_scan
from aaren_rl.train.acceleration import MIN_TORCH_TO_COMPILE

pytest.importorskip("triton", reason="pip install triton", exc_type=ImportError)
interpreter.prepare()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # conftest.py turns the interpreter on
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's tracing uses what torch deprecates
    pytest.mark.skipif(torch.__version__ < MIN_TORCH_TO_COMPILE, reason="torch is too old for --compile"),
]
SLOW = (torch.bfloat16,)  # half a minute


@pytest.mark.parametrize(
    "dtype", [pytest.param(t, marks=pytest.mark.slow if t in SLOW else ()) for t in kernels.TYPES["triton"]]
)
def test_the_operators_are_what_torch_asks_of_one(dtype: torch.dtype) -> None:
    check_operators("triton", dtype, DEVICE)


def test_in_a_graph() -> None:
    torch.compiler.reset()
    leaves = [x.to(DEVICE).requires_grad_() for x in random_inputs(40, batch=(2,))]

    def scan(scores: Tensor, values: Tensor) -> Tensor:
        outputs, state = prefix_scan(scores, values, method="triton")
        return outputs.square().sum() + state.output().sum()

    compiled = torch.compile(scan, fullgraph=True, backend="aot_eager")
    for mine, true in zip(*(torch.autograd.grad(f(*leaves), leaves) for f in (compiled, scan)), strict=True):
        torch.testing.assert_close(mine, true)
