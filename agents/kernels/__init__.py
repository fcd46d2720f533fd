"""Fast back ends of the prefix scan: one pass over the values forward, one backward, O(N D) memory traffic.

"numba" runs on the CPU, "triton" on CUDA devices. Their packages are imported when they are first used.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from types import ModuleType

import torch
from torch import Tensor

BACKENDS = {"numba": "cpu", "triton": "gpu"}  # the package and the module here that needs it


def choose(values: Tensor) -> str:
    """The fastest method for these values; a plain one where a kernel cannot be used, with a warning if it could be.

    A kernel is opaque to tracing (torch.compile, ONNX), which gets "blocked".
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
        return "blocked"
    if values.device.type == "cpu":
        return "numba" if available("numba") else "blocked"
    if values.device.type == "cuda" and values.dtype != torch.float64:
        return "triton" if available("triton") else "blocked"
    return "blocked"


def load(name: str) -> ModuleType:
    """The back end's module, with `forward` and `backward` as `fused.py` calls them.

    Raises:
        ImportError: its package is not installed.
    """
    return importlib.import_module(f".{BACKENDS[name]}", __name__)


@functools.cache
def load_kernels(name: str) -> ModuleType:
    """The module "step" or "tree", whose kernels need Numba."""
    return importlib.import_module(f".{name}", __name__)


@functools.cache
def available(name: str) -> bool:
    """Whether the back end can be used; says once what it costs if not."""
    try:
        load(name)
    except ImportError as error:
        warnings.warn(f"{name} cannot be used ({error}): plain torch is used instead, several times slower; "
                      f"pip install {name}", RuntimeWarning, stacklevel=4)  # fmt: skip
        return False
    return True
