"""Rows of a kernel's work shared among torch's threads."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

SHARED = 1 << 18  # elements from which a call is worth more than one thread


def parts(rows: int, elements: int) -> list[tuple[int, int]]:
    """First and last + 1 of the rows for every thread; one part where there is too little to do."""
    threads = min(torch.get_num_threads(), rows) if elements >= SHARED else 1
    return [(rows * k // threads, rows * (k + 1) // threads) for k in range(threads)]


def share(work: Callable[[int, int, int], None], cuts: list[tuple[int, int]]) -> None:
    """Calls work(part's number, first, last + 1) for every part at once."""
    others = [_pool(len(cuts)).submit(work, k, *cut) for k, cut in enumerate(cuts) if k]
    work(0, *cuts[0])
    for other in others:
        other.result()


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads - 1, thread_name_prefix="kernel")


if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
