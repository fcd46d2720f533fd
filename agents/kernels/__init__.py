"""Fast back ends of the prefix scan, of O(N D) memory traffic.

"numba" runs on the CPU, in one pass over the values each way; "triton" on CUDA devices, in two passes over chunks of 64
positions. Their packages are imported when they are first used.
"""

import functools
import importlib
import importlib.util
import warnings
from types import ModuleType

import torch
from torch import Tensor

TYPES = {
    "numba": (torch.float32, torch.float64, torch.bfloat16),
    "triton": (torch.float32, torch.bfloat16),
}  # of values, by back end, whose name is that of its package
# Forms of the mass of a bud of tree attention, and what else its samplers and its kernel agree on.
UNIFORM, HORIZON, MEAN, POSITIVE = range(4)
DECAY = 0.99  # b of equation (3), the paper's
LARGEST = 300.0  # exponents are cut here: two such factors and a sum over any memory stay finite in float64
INSTALLED = {name: importlib.util.find_spec(name) is not None for name in TYPES}  # without importing them


def choose(scores: Tensor, values: Tensor) -> str:
    """The fastest method for these inputs; a plain one where a kernel cannot be used, with a warning if it could be.

    A kernel is opaque to what traces a model (torch.compile, torch.export, ONNX), which gets "blocked".
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
        return "blocked"
    backend = {"cpu": "numba", "cuda": "triton"}.get(values.device.type)
    if backend is None or (backend == "triton" and torch.float64 in (scores.dtype, values.dtype)):
        return "blocked"
    return backend if available(backend) else "blocked"


def load(name: str) -> ModuleType:
    """The back end's module, with `forward` and `backward`; raises ImportError where its package is not installed."""
    return load_kernels(f"scan_{name}")


@functools.cache
def load_kernels(name: str) -> ModuleType:
    """The module of that name here, whose kernels need Numba or Triton."""
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
