"""The scan's kernels as torch's operators, and decision models through torch.compile: one graph, the same numbers.

Traced by "aot_eager", which compiles nothing and so needs no compiler. Triton's kernels run on a GPU or, without one,
in Triton's interpreter.
"""

from __future__ import annotations

import interpreter
import pytest
import torch
from scan_checks import random_inputs, random_mask, random_starts, random_state
from torch import Tensor

from aaren_rl.agents import DecisionModel, ModelConfig, kernels, prefix_scan
from aaren_rl.agents.scan.fused import OPERATORS
from aaren_rl.train.acceleration import MIN_TORCH_TO_COMPILE
from aaren_rl.train.trainer import masked_mse

interpreter.prepare()
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's tracing uses what torch deprecates
    pytest.mark.skipif(torch.__version__ < MIN_TORCH_TO_COMPILE, reason="torch is too old for --compile"),
]
CUDA = "cuda" if torch.cuda.is_available() else "cpu"


def gradients(model: DecisionModel, call: object, *, bfloat16: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    observations, actions, returns = (torch.rand(2, 25, *c, generator=generator) for c in ((5,), (2,), ()))
    starts = None if bfloat16 else torch.arange(25).remainder(9).eq(0).expand(2, 25)
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        predicted, _ = call(observations, actions, returns, torch.arange(25).expand(2, 25), starts=starts)
    loss = masked_mse(predicted, actions, torch.ones(2, 25, dtype=torch.bool))
    loss.backward()
    return {"loss": loss.detach(), **{n: p.grad for n, p in model.named_parameters() if p.grad is not None}}


@pytest.mark.parametrize(("bfloat16", "mixer"), [(False, "aaren"), (True, "attention"), (True, "aaren-rsa")])
def test_a_model_is_one_graph_with_the_same_gradients(mixer: str, bfloat16: bool) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    model = DecisionModel(ModelConfig(5, 2, mixer, width=16, layers=2, heads=4, dropout=0.0)).train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    mine, true = (gradients(model, call, bfloat16=bfloat16) for call in (compiled, model))
    assert mine.keys() == true.keys() and len(mine) > 20
    floor = max(float(value.abs().max()) for value in true.values())  # some gradients are zero but for rounding
    for name, value in true.items():
        allowed = (2**-5 if bfloat16 else 1e-5) * max(float(value.abs().max()), 1e-2 * floor)
        assert float((mine[name] - value).abs().max()) <= allowed, name


@pytest.mark.parametrize(
    ("backend", "dtype", "device"),
    [
        *[("numba", dtype, "cpu") for dtype in kernels.TYPES["numba"]],
        ("triton", torch.float32, CUDA),
        pytest.param("triton", torch.bfloat16, CUDA, marks=pytest.mark.slow),  # half a minute
    ],
)
def test_the_operators_are_what_torch_asks_of_one(backend: str, dtype: torch.dtype, device: str) -> None:
    """Forward and backward: their schemas, gradients and shapes without numbers."""
    pytest.importorskip(backend, exc_type=ImportError)
    batch = (2, 3)
    scores, values = random_inputs(20, batch=batch, dim=5)
    scores = scores.to(torch.promote_types(dtype, torch.float32))
    side_by_side = values.to(dtype).transpose(1, 2).contiguous().transpose(1, 2)
    mask, starts = random_mask(20, batch), random_starts(20, batch)
    inputs = [x.to(device) for x in (scores, side_by_side, *random_state(batch, 5), mask, starts)]
    torch.library.opcheck(OPERATORS["forward"], (backend, *inputs))
    outputs, weights, _, u, w = OPERATORS["forward"](backend, *inputs)
    gradient = (weights, inputs[1], outputs, torch.ones_like(outputs), w, u, inputs[-1])
    torch.library.opcheck(OPERATORS["backward"], (backend, *gradient))


def test_what_is_exported_has_no_kernel_in_it() -> None:
    scores, values = random_inputs(10)

    class Scan(torch.nn.Module):
        def forward(self, scores: Tensor, values: Tensor) -> Tensor:
            return prefix_scan(scores, values)[0]

    program = torch.export.export(Scan(), (scores, values))
    assert not [node for node in program.graph.nodes if "aaren_rl" in str(node.target)]
    torch.testing.assert_close(program.module()(scores, values), prefix_scan(scores, values)[0])
