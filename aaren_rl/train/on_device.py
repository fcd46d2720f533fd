"""Updates that never wait for the device: their rates are read there, and GPUs replay them as CUDA graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..agents.kernels.cuda_graphs import call_aside, capture
from .config import OptimizerConfig
from .optimizers import Rates, rates_at

EAGER = 2  # updates of a size before it is recorded: kernels are compiled in them, and moments made
MOST = 32  # sizes that are recorded; a graph keeps its memory

Found = tuple[Tensor, Tensor, Tensor]  # loss, norm of the gradient, mask


class DeviceRates:
    """The rates of every update in a table on the device, and a counter there.

    Args:
        config: what they follow from.
        device: where they are wanted; as float64 on a CPU, where they are the very numbers.
        update: the next one's number.
    """

    def __init__(self, config: OptimizerConfig, device: torch.device, update: int) -> None:
        """Makes the table."""
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
    """Calls a function of a size, and from its third call of one size on replays what that launched as a CUDA graph.

    Args:
        update: launches the same for the same size, and waits for nothing.
        generator: what it draws by; a CPU's is not drawn by inside of it.
    """

    def __init__(self, update: Callable[[int], Found], generator: torch.Generator) -> None:
        """Records nothing yet."""
        self._update, self._generator = update, generator
        self._calls: Counter[int] = Counter()
        self._recorded: dict[int, tuple[torch.cuda.CUDAGraph, Found]] = {}

    def __call__(self, size: int) -> Found:
        """What the function returns; of a replay, tensors that the next one overwrites."""
        if size not in self._recorded:
            self._calls[size] += 1
            if self._calls[size] <= EAGER or len(self._recorded) == MOST:
                return call_aside(partial(self._update, size))
            self._recorded[size] = capture(partial(self._update, size), self._generator)
        graph, found = self._recorded[size]
        graph.replay()
        return found
