"""How the CPU kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

from .cache import keyed_cache

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(*fastmath: str) -> Callable[[Kernel], Kernel]:
    """Compiles on first use and keeps the code in Numba's cache, while no kernel file changes.

    Args:
        fastmath: LLVM's liberties: "contract" fuses products into sums, "reassoc" with "nsz" reorders sums, so that a
            loop that adds up can use vectors. Infinities and NaN keep their meaning with these.
    """
    options: dict[str, Any] = {"nogil": True, "fastmath": set(fastmath), "error_model": "numpy"}

    def decorate(function: Kernel) -> Kernel:
        with keyed_cache() as kept:
            try:
                kernel: Kernel = numba.njit(cache=kept, **options)(function)
            except RuntimeError:  # Numba finds no place to keep it: compiled anew by every process
                kernel = numba.njit(**options)(function)
        return kernel

    return decorate


def inlined(function: Kernel) -> Kernel:
    """For what kernels call: compiled as a part of them."""
    options: dict[str, Any] = {"inline": "always", "error_model": "numpy"}
    kernel: Kernel = numba.njit(**options)(function)
    return kernel
