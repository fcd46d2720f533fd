"""What makes an update quick: bfloat16, torch.compile, and freed memory that is kept."""

from __future__ import annotations

import ctypes
import sys
from contextlib import AbstractContextManager
from typing import cast

import torch
from torch import nn

from ..errors import UsageError
from .config import OptimizerConfig

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h
# The first whose compiler was tried; that of 2.10 gave a wrong gradient of the keys' weights.
MIN_TORCH_TO_COMPILE = "2.13"
KEPT = 1 << 30  # bytes


def keep_freed_memory() -> None:
    """Lets glibc keep up to 1 GiB of freed memory for this process instead of giving it back; nothing elsewhere.

    Every update frees the tens of megabytes that the next one takes again. Given back in between, their pages are
    mapped and zeroed anew every time, some thousands of them: 3 to 8 % of an update of the default model. Blocks of
    32 MiB and more would be mapped on their own, and given back, whatever the rest is told.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # musl has none
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, KEPT)


def autocast(config: OptimizerConfig, device: torch.device) -> AbstractContextManager[object]:
    """bfloat16 where `uses_bfloat16` says so."""
    return torch.autocast(device.type, torch.bfloat16, enabled=uses_bfloat16(config, device))


def uses_bfloat16(config: OptimizerConfig, device: torch.device) -> bool:
    """Whether it is asked for or, with "auto", the processor computes in it."""
    native = torch.cuda.is_bf16_supported() if device.type == "cuda" else _cpu_has_bfloat16()
    return config.precision == "bfloat16" or (config.precision == "auto" and native)


def _cpu_has_bfloat16() -> bool:
    # Instructions, not oneDNN's own test: that also says yes where bfloat16 is emulated, slower than float32.
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def check_compiler() -> None:
    """Refuses a torch whose compiler was not tried.

    Raises:
        UsageError: torch is older than what its compiler was tried with.
    """
    if torch.__version__ < MIN_TORCH_TO_COMPILE:
        raise UsageError(
            f"--compile needs torch {MIN_TORCH_TO_COMPILE} or newer, here is {torch.__version__}; "
            "upgrade it, or train without --compile"
        )


def compile_model(model: nn.Module, device: torch.device) -> nn.Module:
    """`model` through torch.compile; on a GPU its launches are replayed as CUDA graphs.

    Raises:
        UsageError: see `check_compiler`.
    """
    check_compiler()
    mode = "reduce-overhead" if device.type == "cuda" else "default"
    return cast("nn.Module", torch.compile(model, mode=mode))
