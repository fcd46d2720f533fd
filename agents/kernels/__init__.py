"""Fast back ends of the prefix scan, of O(N D) memory traffic.

"numba" runs on the CPU, in one pass over the values each way; "triton" on CUDA devices, in two passes over chunks of 64
positions. Their packages are imported when they are first used.

Numba compiles a function again where its own file has changed, and looks at no other file: what a kernel calls is in
the kernel's file.
"""

import functools
import importlib
import importlib.util
import warnings
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

import numpy.typing as npt
import torch
from torch import Tensor

Array: TypeAlias = npt.NDArray[Any]
Tensors: TypeAlias = tuple[Tensor, ...]
Kernel = TypeVar("Kernel", bound=Callable[..., Any])
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


@functools.cache
def load(name: str) -> ModuleType:
    """The module of that name here, such as "scan_numba"; raises ImportError where its package is not installed."""
    return importlib.import_module(f".{name}", __name__)


@functools.cache
def available(name: str) -> bool:
    """Whether the back end can be used; says once what it costs if not."""
    try:
        load(f"scan_{name}")
    except ImportError as error:
        warnings.warn(f"{name} cannot be used ({error}): plain torch is used instead, several times slower; "
                      f"pip install {name}", RuntimeWarning, stacklevel=4)  # fmt: skip
        return False
    return True


def compiled(*fastmath: str) -> Callable[[Kernel], Kernel]:
    """Compiles on first use and keeps the code in Numba's cache.

    Args:
        fastmath: LLVM's liberties: "contract" fuses products into sums, "reassoc" with "nsz" reorders sums, so that a
            loop that adds up can use vectors. Infinities and NaN keep their meaning with these.
    """
    import numba

    options: dict[str, Any] = {"nogil": True, "fastmath": set(fastmath), "error_model": "numpy"}

    def decorate(function: Kernel) -> Kernel:
        kernel: Kernel
        try:
            kernel = numba.njit(cache=True, **options)(function)
            _forgive(getattr(kernel, "_cache", None))
        except (RuntimeError, OSError):  # no folder can be written to: every process compiles
            kernel = numba.njit(**options)(function)
        return kernel

    return decorate


def _forgive(cache: Any) -> None:  # Numba's
    """A damaged file in the cache is compiled again, and what cannot be written is not. None: Numba is turned off."""
    if cache is None:
        return
    load, save = cache.load_overload, cache.save_overload

    def load_or_clear(*arguments: Any) -> Any:
        try:
            return load(*arguments)
        except Exception:  # unpickling damaged files raises any error
            with suppress(OSError):
                cache.flush()
            return None

    def save_if_possible(*arguments: Any) -> None:
        with suppress(OSError, EOFError):
            save(*arguments)

    cache.load_overload, cache.save_overload = load_or_clear, save_if_possible


def inlined(function: Kernel) -> Kernel:
    """For what kernels call: compiled as a part of them."""
    import numba

    options: dict[str, Any] = {"inline": "always", "error_model": "numpy"}
    kernel: Kernel = numba.njit(**options)(function)
    return kernel
