"""Rows of a kernel's work shared among as many threads as torch has."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import torch

SHARED = 1 << 15  # elements from which a call is worth more than one thread

Kernel: TypeAlias = Callable[..., None]


def count_parts(rows: int, elements: int) -> int:
    """How many threads share the rows; one where there is too little to do."""
    return min(torch.get_num_threads(), rows) if elements >= SHARED else 1


def share(kernel: Kernel, parts: int, rows: int, *arguments: Any) -> None:  # noqa: ANN401
    """Calls kernel(first, last + 1 of its rows, *arguments) for every part at once.

    Args:
        kernel: compiled, without Python's lock.
        parts: from `count_parts`.
        rows: of all parts.
        arguments: arrays and numbers.
    """
    cuts = [rows * k // parts for k in range(parts + 1)]
    others = [_pool(parts).submit(kernel, cuts[k], cuts[k + 1], *arguments) for k in range(1, parts)]
    kernel(*cuts[:2], *arguments)
    for other in others:
        other.result()


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads - 1, thread_name_prefix="kernel")


if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
