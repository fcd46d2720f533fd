"""What the C library does with memory that training frees."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h
KEPT = 1 << 30  # bytes


def keep_freed_memory() -> None:
    """Lets glibc keep up to 1 GiB of freed memory for this process instead of giving it back; nothing elsewhere.

    Every update frees the tens of megabytes that the next one takes again. Given back in between, their pages are
    mapped and zeroed anew every time, some thousands of them: 3 to 8 % of an update of the default model. Blocks of
    32 MiB and more would be mapped on their own, and given back, whatever the rest is told.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # musl has none
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, KEPT)
