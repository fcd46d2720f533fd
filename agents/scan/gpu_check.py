"""A test of the GPU code on the device in use: once per process, before first use.

It tests the kernel of the scan, forward and backward, recorded as a CUDA graph with one input and replayed with
another, against the plain formula in float64.
"""

import functools
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from .. import kernels
from ..kernels.cuda_graphs import record
from .fused import fused_scan
from .parallel import Stretches, blocked
from .state import make_leaves

TOLERANCE = 1e-3  # of the largest difference, relative: float32 with products in TensorFloat-32
SHAPE = (2, 3, 300)  # batch, heads, positions: several chunks, the last one not full
CHANNELS = 40

Replay = Callable[[], list[Tensor]]


def choose_method(scores: Tensor, values: Tensor, *, decays: bool) -> str:
    """The method of `prefix_scan` for these inputs: the kernel of the device, if it has one that passes the test."""
    method = kernels.choose(scores, values)
    if method == "triton" and not torch.compiler.is_compiling() and not gpu_is_right(values.device, decays):
        return "blocked"
    return method


@functools.cache
def gpu_is_right(device: torch.device, decays: bool) -> bool:
    """Whether the recorded kernel of the scan agrees with the plain formula; prints one warning if not.

    `decays`: the kernel of positions that fade those before them, which is compiled apart.
    """
    try:
        found = difference(device, decays)
        fault = "" if found <= TOLERANCE else f"it differs from the plain formula by {found:.2g}"
    except Exception as error:  # any fault of compiler, driver or kernel: plain PyTorch still works
        fault = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0][:300]
    if fault:
        warnings.warn(
            f"the scan kernel cannot be used on {device} ({fault}): the scan runs in plain PyTorch, several times "
            "slower, and steps are launched one by one",
            RuntimeWarning,
            stacklevel=4,
        )
    return not fault


@torch.enable_grad()
def difference(device: torch.device, decays: bool, record: Callable[[Replay], Replay] = record) -> float:
    """The largest relative difference of outputs and gradients between the recorded kernel and the formula."""
    generator = torch.Generator().manual_seed(0)

    def draw() -> list[Tensor]:
        values, up = (torch.randn(*SHAPE, CHANNELS, generator=generator) for _ in range(2))
        scores, gates = (torch.randn(*SHAPE, generator=generator) for _ in range(2))
        return [values, up, scores, *([torch.nn.functional.logsigmoid(gates)] if decays else [])]

    starts = (torch.rand(SHAPE, generator=generator) < 0.02).to(device)

    def run(values: Tensor, up: Tensor, *of_positions: Tensor) -> list[Tensor]:
        v, s, *decay = leaves = [x.detach().requires_grad_() for x in (values, *of_positions)]
        if s.dtype == torch.float64:
            outputs = blocked(Stretches(make_leaves(s, v, None), starts.cumsum(-1), *decay)).state.output()
        else:
            outputs, _ = fused_scan("triton", s, v, None, None, starts, *decay)
        return [outputs.detach(), *torch.autograd.grad(outputs, leaves, up)]

    places = [x.to(device) for x in draw()]
    with torch.autocast(device.type, enabled=False):
        replay = record(lambda: run(*places))
        for place, values in zip(places, draw(), strict=True):
            place.copy_(values)
        pairs = zip(replay(), run(*(place.double() for place in places)), strict=True)
        return max(float((mine - true).abs().max() / true.abs().max()) for mine, true in pairs)
