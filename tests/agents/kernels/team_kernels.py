"""Kernels that note which part of the work they did, for the tests of threads."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
import torch

from aaren_rl.agents.kernels.compiling import threads
from aaren_rl.agents.kernels.compiling.decorators import compiled
from aaren_rl.agents.kernels.compiling.openmp import OpenMP, run_in_team

ROWS, PARTS = 7, 3
own_thread: Any = None
if os.name == "posix":
    own_thread = ctypes.CDLL(None).pthread_self
    own_thread.argtypes, own_thread.restype = [], ctypes.c_uint64


@compiled()
def note(part: int, first: int, last: int, found: Any) -> None:
    found[part, 0] += 1
    found[part, 1] = first
    found[part, 2] = last


@compiled()
def note_in_team(openmp: OpenMP, parts: int, rows: int, arguments: tuple[Any, ...]) -> None:
    run_in_team(note, openmp, parts, rows, arguments)


@compiled()
def fail(part: int, first: int, last: int, bad: int) -> None:
    if part == bad:
        raise ArithmeticError


@compiled()
def fail_in_team(openmp: OpenMP, parts: int, rows: int, arguments: tuple[Any, ...]) -> None:
    run_in_team(fail, openmp, parts, rows, arguments)


@compiled()
def note_thread(part: int, first: int, last: int, found: Any) -> None:
    found[part] = own_thread()


@compiled()
def note_thread_in_team(openmp: OpenMP, parts: int, rows: int, arguments: tuple[Any, ...]) -> None:
    run_in_team(note_thread, openmp, parts, rows, arguments)


def shared() -> list[list[int]]:
    """How often every part was done, and its rows."""
    found = np.zeros((PARTS, 3), np.int64)
    threads.share(note, note_in_team, PARTS, ROWS, found)
    return [[int(number) for number in part] for part in found]


def thread_ids() -> list[int]:
    """The thread that did every part."""
    found = np.zeros(PARTS, np.uint64)
    threads.share(note_thread, note_thread_in_team, PARTS, ROWS, found)
    return [int(number) for number in found]


def warm_up() -> None:
    """Compiles the kernels, and starts torch's threads."""
    torch.set_num_threads(PARTS)
    x = torch.randn(3000, 300)
    torch.mm(x, x.T)
    shared()
    if own_thread:
        thread_ids()
