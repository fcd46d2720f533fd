"""Processes that end when the one that started them does, however that ends: by SIGKILL too, whatever they are doing.

Linux tells a process itself (PR_SET_PDEATHSIG). Elsewhere, and where the signal only asks, a thread of the process
waits at a pipe whose other end the parent alone holds, which the system closes with the parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

GRACE = 1.5  # seconds that a process has to save after a signal that it may catch

_PR_SET_PDEATHSIG = 1


def start_child(
    code: str,
    arguments: Sequence[str] = (),
    *,
    flags: Sequence[str] = (),
    death: signal.Signals = signal.SIGKILL,
    **options: Any,  # noqa: ANN401  as `subprocess.Popen` takes them
) -> subprocess.Popen[bytes]:
    """A fresh Python that runs `code` with `arguments`, and does not outlive this process.

    Args:
        code: Python's source.
        arguments: `sys.argv[1:]` there.
        flags: of the interpreter.
        death: what the child gets when this process ends; where it is not SIGKILL, that follows after `GRACE` seconds.
        options: of `subprocess.Popen`.

    Raises:
        OSError: the system has no room for another process or its pipes.
    """
    theirs, ours = os.pipe()
    try:
        hold = f"from {__name__} import hold; hold({theirs}, {int(death)}, {os.getpid()})"
        command = [sys.executable, *flags, "-c", f"{hold}\n{code}", *arguments]
        child = subprocess.Popen(command, pass_fds=(theirs,), **options)
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    weakref.finalize(child, os.close, ours)
    return child


def hold(lifeline: int, death: int, parent: int) -> None:
    """What a child does first: it binds itself to the process `parent`, whose pipe ends at `lifeline`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, death)
        if os.getppid() != parent:  # it had ended before that
            os.kill(os.getpid(), death)
    threading.Thread(target=_wait, args=(lifeline, death), daemon=True).start()


def _wait(lifeline: int, death: int) -> None:
    os.read(lifeline, 1)  # nothing is ever written: this is the end of the parent
    os.kill(os.getpid(), death)
    time.sleep(GRACE)
    os.kill(os.getpid(), signal.SIGKILL)
