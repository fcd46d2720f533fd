"""Rows of a kernel's work shared among torch's threads.

Torch's operations run in the threads of OpenMP, which wait for the next one by spinning. Kernels that ran in threads of
their own would share the cores with those: on two cores they took longer than on one. So they run in OpenMP's threads
too, where torch has them.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import torch

from .openmp import OpenMP

SHARED = 1 << 15  # elements from which a call is worth more than one thread
_IMPORTED_BY = os.getpid()  # whose OpenMP threads a forked process would wait for in vain

Kernel: TypeAlias = Callable[..., None]


def count_parts(rows: int, elements: int) -> int:
    """How many threads share the rows; one where there is too little to do."""
    return min(torch.get_num_threads(), rows) if elements >= SHARED else 1


def share(kernel: Kernel, in_team: Kernel, parts: int, rows: int, *arguments: Any) -> None:  # noqa: ANN401
    """Calls kernel(part's number, first, last + 1 of its rows, *arguments) for every part at once.

    Args:
        kernel: compiled.
        in_team: compiled, calls `run_in_team` with the kernel and what it is given: OpenMP, parts, rows, arguments.
        parts: from `count_parts`.
        rows: of all parts.
        arguments: arrays and numbers.

    Raises:
        RuntimeError: the kernel raised an error.
    """
    if parts == 1:
        return kernel(0, 0, rows, *arguments)
    openmp = _openmp(os.getpid())
    if openmp is not None:
        return in_team(openmp, parts, rows, arguments)
    cuts = [rows * k // parts for k in range(parts + 1)]
    others = [_pool(parts).submit(kernel, k, cuts[k], cuts[k + 1], *arguments) for k in range(1, parts)]
    kernel(0, *cuts[:2], *arguments)
    for other in others:
        other.result()


@functools.cache
def _openmp(process: int) -> OpenMP | None:
    """None where torch has brought no OpenMP library with GCC's entry point, and in a process forked from this one."""
    if sys.platform != "linux" or process != _IMPORTED_BY:
        return None
    library = ctypes.CDLL(None)  # this process's own symbols
    try:
        functions = library.GOMP_parallel, library.omp_get_thread_num, library.omp_get_num_threads
    except AttributeError:
        return None
    return OpenMP(*(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions))


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads - 1, thread_name_prefix="kernel")


if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
