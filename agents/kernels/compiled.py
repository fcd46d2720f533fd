"""How the CPU kernels are compiled.

Numba compiles a function again where its own file has changed, and looks at no other file: what a kernel calls is in
the kernel's file.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

import numba
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(*fastmath: str) -> Callable[[Kernel], Kernel]:
    """Compiles on first use and keeps the code in Numba's cache.

    Args:
        fastmath: LLVM's liberties: "contract" fuses products into sums, "reassoc" with "nsz" reorders sums, so that a
            loop that adds up can use vectors. Infinities and NaN keep their meaning with these.
    """
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


def _forgive(cache: Any) -> None:  # noqa: ANN401  Numba's
    """A damaged file in the cache is compiled again, and what cannot be written is not. None: Numba is turned off."""
    if cache is None:
        return
    load, save = cache.load_overload, cache.save_overload

    def load_or_clear(*arguments: Any) -> Any:  # noqa: ANN401
        try:
            return load(*arguments)
        except Exception:  # unpickling damaged files raises any error
            with suppress(OSError):
                cache.flush()
            return None

    def save_if_possible(*arguments: Any) -> None:  # noqa: ANN401
        with suppress(OSError, EOFError):
            save(*arguments)

    cache.load_overload, cache.save_overload = load_or_clear, save_if_possible


def inlined(function: Kernel) -> Kernel:
    """For what kernels call: compiled as a part of them."""
    options: dict[str, Any] = {"inline": "always", "error_model": "numpy"}
    kernel: Kernel = numba.njit(**options)(function)
    return kernel
