"""The scan's kernel for GPUs against the plain formula, the first time that it is used on a device."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import kernels
from ..kernels.first_use import is_right
from .fused import fused_scan
from .parallel import blocked
from .state import make_leaves

POSITIONS = 300  # several chunks, the last one not full


def choose_method(values: Tensor) -> str:
    """The method of `prefix_scan` for these values: the device's kernel, where there is one and it is right."""
    method = kernels.choose(values)
    if method == "triton" and not torch.compiler.is_compiling() and not scan_is_right(values.device):
        return "blocked"
    return method


def scan_is_right(device: torch.device) -> bool:
    """Whether the kernel's outputs and gradients on this device are those of the plain formula; checked once."""
    return is_right("the scan's kernel", device, _difference, "the scan runs in plain PyTorch, several times slower")


@torch.enable_grad()
def _difference(device: torch.device) -> float:
    """Of outputs and gradients, the kernel's in float32 and the formula's in float64, relative to the largest."""
    generator = torch.Generator().manual_seed(0)
    scores, values, up = (
        torch.randn(2, 3, POSITIONS, *channels, generator=generator).to(device) for channels in ((), (40,), (40,))
    )
    starts = (torch.rand(2, 1, POSITIONS, generator=generator) < 0.02).to(device).expand(scores.shape)
    both = []
    with torch.autocast(device.type, enabled=False):
        for exact in (False, True):
            s, v = ((x.double() if exact else x).detach().requires_grad_() for x in (scores, values))
            if exact:
                outputs = blocked(make_leaves(s, v, None), starts.cumsum(-1)).output()
            else:
                outputs, _ = fused_scan("triton", s, v, None, None, starts)
            both.append([outputs.detach(), *torch.autograd.grad(outputs, (s, v), up.to(outputs.dtype))])
    pairs = zip(*both, strict=True)
    return max(float((mine - true).abs().max() / true.abs().max()) for mine, true in pairs)
