"""What a benchmark ran on, and the memory of this process."""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Machine:
    """What the figures were taken on."""

    processor: str
    cores: int
    load_average: float | None
    threads: int
    python: str
    torch: str

    @staticmethod
    def here() -> Machine:
        """This machine, now."""
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        cores = os.cpu_count() or 1
        return Machine(_processor(), cores, load, torch.get_num_threads(), platform.python_version(), torch.__version__)

    def __str__(self) -> str:
        """One line for above a table."""
        load = "" if self.load_average is None else f", load {self.load_average:.1f}"
        return f"{self.processor}, {self.cores} cores{load}; torch {self.torch}, {self.threads} threads"


def device_name(device: torch.device) -> str:
    """The GPU's name, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def resident_bytes() -> int | None:
    """Memory of the process that is in RAM; None where there is no /proc."""
    gc.collect()
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def state_bytes(state: object) -> int:
    """Bytes of the storages that a state's tensors and arrays keep alive, each counted once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _tensors(state)}
    return sum(storages.values())


def _tensors(state: object) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, np.ndarray):
        yield torch.from_numpy(state)
    elif isinstance(state, tuple):
        for part in state:
            yield from _tensors(part)
