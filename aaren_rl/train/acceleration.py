"""What makes an update quick: bfloat16, freed memory that is kept, rates on the device, CUDA graphs."""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..agents.kernels.cuda_graphs import call_aside, capture
from ..errors import UsageError
from .config import OptimizerConfig
from .optimizers import Rates, rates_at

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h
# The first whose compiler was tried; that of 2.10 gave a wrong gradient of the keys' weights.
MIN_TORCH_TO_COMPILE = "2.13"
KEPT = 1 << 30  # bytes

EAGER = 2  # updates of a size before it is recorded: kernels are compiled in them, and moments made
MOST = 32  # sizes that are recorded; a graph keeps its memory

Found = tuple[Tensor, Tensor, Tensor]  # loss, norm of the gradient, mask


def keep_freed_memory() -> None:
    """Lets glibc keep up to 1 GiB of freed memory, which the next update takes again: 3 to 8 % of a default update."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # musl has none
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, KEPT)


def uses_bfloat16(config: OptimizerConfig, device: torch.device) -> bool:
    """Whether bfloat16 is asked for or, with "auto", the processor computes in it."""
    if config.precision != "auto":
        return config.precision == "bfloat16"
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    # Instructions, not oneDNN's own test: that also says yes where bfloat16 is emulated, slower than float32.
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def check_compiler() -> None:
    """Raises UsageError where torch is older than what its compiler was tried with."""
    if torch.__version__ < MIN_TORCH_TO_COMPILE:
        needed = f"--compile needs torch {MIN_TORCH_TO_COMPILE} or newer, here is {torch.__version__}"
        raise UsageError(f"{needed}; upgrade it, or train without --compile")


class DeviceRates:
    """The rates of every update in a table on the device, on a CPU in float64, and there the `update` to come."""

    def __init__(self, config: OptimizerConfig, device: torch.device, update: int) -> None:
        rows = [rates_at(number, config) for number in range(config.updates)]
        dtype = torch.float32 if device.type == "cuda" else torch.float64
        self._table = torch.tensor(rows, dtype=dtype, device=device)
        self._next = torch.tensor([update], device=device)

    def take(self) -> Rates:
        """Those of the next update; after the last, its own."""
        row = self._table.index_select(0, self._next)
        self._next.add_(1).clamp_(max=len(self._table) - 1)
        return Rates(*row[0].unbind())


class Graphs:
    """Calls a function of a size, and from the third call of one size on replays what it launched as a CUDA graph.

    The tensors that a replay returns are overwritten by the next one.
    """

    def __init__(self, update: Callable[[int], Found], generator: torch.Generator) -> None:
        self._update, self._generator = update, generator
        self._calls: Counter[int] = Counter()
        self._recorded: dict[int, tuple[torch.cuda.CUDAGraph, Found]] = {}

    def __call__(self, size: int) -> Found:
        if size not in self._recorded:
            self._calls[size] += 1
            if self._calls[size] <= EAGER or len(self._recorded) == MOST:
                return call_aside(partial(self._update, size))
            self._recorded[size] = capture(partial(self._update, size), self._generator)
        graph, found = self._recorded[size]
        graph.replay()
        return found
