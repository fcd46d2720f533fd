"""Rows of a kernel's work shared among torch's threads.

Torch's operations run in the threads of OpenMP, which wait for the next one by spinning. Kernels that ran in threads of
their own would share the cores with those: on two cores they took longer than on one. So they run in OpenMP's threads
too, where torch has them.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import torch

SHARED = 1 << 18  # elements from which a call is worth more than one thread
_IMPORTED_BY = os.getpid()  # whose OpenMP threads a forked process would wait for in vain

Cuts: TypeAlias = list[tuple[int, int]]
Work: TypeAlias = Callable[[int, int, int], None]


def parts(rows: int, elements: int) -> Cuts:
    """First and last + 1 of the rows for every thread; one part where there is too little to do."""
    threads = min(torch.get_num_threads(), rows) if elements >= SHARED else 1
    return [(rows * k // threads, rows * (k + 1) // threads) for k in range(threads)]


def share(work: Work, cuts: Cuts) -> None:
    """Calls work(part's number, first, last + 1) for every part at once."""
    if len(cuts) == 1:
        return work(0, *cuts[0])
    team = _openmp(os.getpid())
    if team is not None:
        return team.run(work, cuts)
    others = [_pool(len(cuts)).submit(work, k, *cut) for k, cut in enumerate(cuts) if k]
    work(0, *cuts[0])
    for other in others:
        other.result()


class _OpenMP:
    """The OpenMP library of this process, through the entry point of code that GCC compiles.

    Raises:
        AttributeError: there is no such library among the process's own symbols.
    """

    def __init__(self) -> None:
        """Looks the entry points up."""
        callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        library = ctypes.CDLL(None)
        self._number, self._team = library.omp_get_thread_num, library.omp_get_num_threads
        self._parallel = library.GOMP_parallel
        self._parallel.argtypes = [callback, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self._parallel.restype = None
        self._entry = callback(self._enter)  # as long as this object: OpenMP keeps its address only
        self._jobs: dict[int, tuple[Work, Cuts, list[BaseException]]] = {}
        self._keys = itertools.count(1)

    def run(self, work: Work, cuts: Cuts) -> None:
        """As `share`."""
        key, errors = next(self._keys), list[BaseException]()
        self._jobs[key] = (work, cuts, errors)
        try:
            self._parallel(self._entry, key, len(cuts), 0)
        finally:
            del self._jobs[key]
        if errors:
            raise errors[0]

    def _enter(self, key: int) -> None:
        """In each thread, of which OpenMP may give fewer than were asked for.

        A part is always the same thread's, as torch has it: its rows are in that core's cache.
        """
        work, cuts, errors = self._jobs[key]
        try:
            for part in range(self._number(), len(cuts), self._team()):
                work(part, *cuts[part])
        except BaseException as error:  # raised by `run`; C code has no use for it
            errors.append(error)


@functools.cache
def _openmp(process: int) -> _OpenMP | None:
    """None where torch has brought no OpenMP library with GCC's entry point, and in a process forked from this one."""
    if sys.platform != "linux" or process != _IMPORTED_BY:
        return None
    try:
        return _OpenMP()
    except AttributeError:
        return None


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads - 1, thread_name_prefix="kernel")


if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
