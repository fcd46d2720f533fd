"""The machine a benchmark ran on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from aaren_rl.base.files import processor_name


@dataclass(frozen=True)
class Machine:
    """The machine that the figures were measured on."""

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
        versions = platform.python_version(), torch.__version__
        return Machine(processor_name(), os.cpu_count() or 1, load, torch.get_num_threads(), *versions)

    def __str__(self) -> str:
        load = "" if self.load_average is None else f", load {self.load_average:.1f}"
        return f"{self.processor}, {self.cores} cores{load}; torch {self.torch}, {self.threads} threads"


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Has torch use this many threads for a while: times are those of so many."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device_name(device: torch.device) -> str:
    """The GPU's name, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
