"""How a command's process starts and ends, with all its errors printed in one place, and the cores that it may use."""

import os
import platform
import re
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path

from .errors import DISK_FULL, AarenRLError, PeerError, ResourcesError, one_line

SMALLER = (
    "use smaller batches: --steps-per-update, --context-length, --tbptt-length or --width in training, --episodes in "
    "evaluation"
)


def start(module: str, argv: Sequence[str] | None = None) -> int:
    """Imports the module of a command, such as "aaren_rl.train", and runs its `main`; returns its exit code.

    An interrupt during its imports, which take seconds, prints no traceback.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell closed it
            setattr(sys, name, open(os.devnull, "w"))
    if isinstance(sys.stdout, TextIOWrapper):  # in ASCII, where file names may be more
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return int(import_module(module).main(argv))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def run_command(command: Callable[[], int], *, debug: bool = False) -> int:
    """Runs a command; an error becomes one line on standard error and an exit code.

    Exit codes: 2 usage, 3 data, 4 checkpoint, 5 environment or policy, 6 numerics, 7 resources, 130 interrupted, 1 a
    bug in the package itself. With `debug` the error is raised, with its traceback.
    """
    failed: list[threading.ExceptHookArgs] = []
    print_traceback = threading.excepthook
    if not debug:  # a thread's error, as TensorBoard's on a full disk, is the command's
        threading.excepthook = failed.append
    try:
        code = command()
        sys.stdout.flush()
        if failed and failed[0].exc_value is not None:
            raise failed[0].exc_value
        return code
    except BrokenPipeError:  # the reader of the output has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more on its way out
        return 141  # a shell's exit code for SIGPIPE, which not every system has
    except (Exception, KeyboardInterrupt) as error:  # also unexpected errors: a traceback helps no user
        if debug:
            raise
        if _is_interrupt(error):
            print("interrupted", file=sys.stderr)
            return 130
        message, code = explain(error)
        if not isinstance(error, PeerError):
            print(f"error: {message}", file=sys.stderr)
        return code
    finally:
        threading.excepthook = print_traceback


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether it is Ctrl-C, or follows from it, as an ImportError does where it came while a module was loaded."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def explain(error: BaseException) -> tuple[str, int]:
    """The line that a user sees for an error, and the exit code."""
    if isinstance(error, AarenRLError):
        return str(error), error.exit_code
    said = one_line(error, 300)
    # torch raises a subclass of RuntimeError on a GPU, and a plain RuntimeError on the CPU.
    of_torch = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and of_torch):
        return f"out of memory ({said}); {SMALLER}", ResourcesError.exit_code
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or said or type(error).__name__
        way_out = "free disk space; saved files are intact" if error.errno in DISK_FULL else "--debug shows where"
        return f"{where}{reason}; {way_out}", ResourcesError.exit_code
    return f"{type(error).__name__}: {said}; this is a bug in aaren-rl: please report it with the output of --debug", 1


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known name, or nothing if none is near."""
    near = get_close_matches(given, list(known), n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""


def core_count() -> int:
    """The cores that this process may use: those it may run on, and at most the CPU quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in (Path("/sys/fs/cgroup"), *_own_groups()):
        with suppress(OSError, ValueError):  # no such group, or one without a limit ("max")
            if (group / "cpu.max").exists():
                quota, period = map(int, (group / "cpu.max").read_text().split())
            else:  # version 1
                quota, period = (int((group / f"cpu/cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            if quota > 0:
                cores = max(1, min(cores, quota // period))
    return cores


def _own_groups() -> list[Path]:
    """The control group of this process and those around it."""
    with suppress(OSError):
        path = re.search(r"^0::/(.+)", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
        return [Path("/sys/fs/cgroup") / part for part in (Path(path[1]), *Path(path[1]).parents)] if path else []
    return []


def processor_name() -> str:
    """The processor's name."""
    file = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: *(.+)", file.read_text() if file.is_file() else "", re.M)
    return found[1].strip() if found else platform.processor() or platform.machine()
