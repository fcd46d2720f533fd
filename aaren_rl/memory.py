"""What the C library does with memory that training frees."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
LARGEST_BLOCK = 32 << 20  # bytes, the most that glibc takes for M_MMAP_THRESHOLD
KEPT = 1 << 30  # bytes


def keep_freed_memory() -> None:
    """Lets glibc keep up to 1 GiB of freed memory for this process instead of giving it back; nothing elsewhere.

    Every update frees the tens of megabytes that the next one takes again. Given back in between, their pages are
    mapped and zeroed anew every time, some thousands of them: 3 to 8 % of an update of the default model.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # musl has none
        mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK)
        mallopt(M_TRIM_THRESHOLD, KEPT)
