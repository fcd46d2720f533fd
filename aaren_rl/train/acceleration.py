"""Faster gradient steps: bfloat16, reuse of freed memory, learning rates on the device, CUDA graphs."""

import ctypes
import sys
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from .config import OptimizerConfig
from .optimizers import Rates, rates_at

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from malloc.h of glibc
KEPT = 1 << 30  # bytes

EAGER = 2  # eager calls per size before recording: they compile kernels and allocate optimizer moments
MOST = 32  # most sizes recorded; every graph keeps its memory

Found = tuple[Tensor, Tensor, Tensor]  # loss, gradient norm, mask


def keep_freed_memory() -> None:
    """Let glibc keep up to 1 GiB of freed memory for the next gradient step. Saves 3 to 8% of a default step."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # musl has none
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, KEPT)


def uses_bfloat16(config: OptimizerConfig, device: torch.device) -> bool:
    """Whether to use bfloat16. With "auto", only if the processor supports it natively."""
    if config.precision != "auto":
        return config.precision == "bfloat16"
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    # The oneDNN test also accepts emulated bfloat16, which is slower than float32, so check the instructions.
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


class DeviceRates:
    """A table of the rates of every gradient step and the index `update` of the next one, both on the device.

    The rates are float64 on a CPU.
    """

    def __init__(self, config: OptimizerConfig, device: torch.device, update: int) -> None:
        rows = [rates_at(number, config) for number in range(config.updates)]
        dtype = torch.float32 if device.type == "cuda" else torch.float64
        self._table = torch.tensor(rows, dtype=dtype, device=device)
        self._next = torch.tensor([update], device=device)

    def take(self) -> Rates:
        """The rates of the next gradient step. After the last step, its rates again."""
        row = self._table.index_select(0, self._next)
        self._next.add_(1).clamp_(max=len(self._table) - 1)
        return Rates(*row[0].unbind())


class Graphs:
    """Calls a function of a size. From the third call per size it replays a CUDA graph of the launches.

    The function launches the same at every call of a size, and waits for nothing. The next replay overwrites the
    tensors that a replay returned. `generator` is what it draws by, besides the device's default one.
    """

    def __init__(self, update: Callable[[int], Found], generator: torch.Generator) -> None:
        self._update, self._generator = update, generator
        self._calls: Counter[int] = Counter()
        self._recorded: dict[int, tuple[torch.cuda.CUDAGraph, Found]] = {}

    def __call__(self, size: int) -> Found:
        if size not in self._recorded:
            self._calls[size] += 1
            if self._calls[size] <= EAGER or len(self._recorded) == MOST:
                return self._launch(size)
            self._recorded[size] = self._capture(size)
        graph, found = self._recorded[size]
        graph.replay()
        return found

    def _launch(self, size: int) -> Found:
        """The function's result, launched on a stream of its own; what is launched next comes after it."""
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            found = self._update(size)
        here.wait_stream(aside)
        return found

    def _capture(self, size: int) -> tuple[torch.cuda.CUDAGraph, Found]:
        """The graph, and the function's result, which every replay overwrites."""
        graph = torch.cuda.CUDAGraph()
        if self._generator.device.type == "cuda":  # a CPU's is not drawn by inside of it
            graph.register_generator_state(self._generator)
        with torch.cuda.graph(graph):
            found = self._update(size)
        return graph, found
