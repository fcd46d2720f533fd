"""The errors of commands, and the one place that prints them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from .agents import errors as agents
from .envs.errors import DISK_FULL, AarenRLError, EnvsError, ResourcesError, UsageError, one_line

__all__ = ["AarenRLError", "EnvsError", "ResourcesError", "UsageError", "one_line"]
__all__ += ["ArgumentError", "CheckpointError", "DamagedCheckpointError", "NonFiniteActionError", "NumericsError"]
__all__ += ["PeerError", "explain", "run_command"]

SMALLER = (
    "use smaller batches: --steps-per-update, --context-length, --tbptt-length or --width in training, --episodes in "
    "evaluation"
)


class CheckpointError(AarenRLError):
    """A checkpoint or policy cannot be read, or belongs to something else."""

    exit_code = 4


class ArgumentError(UsageError, ValueError):
    """An argument of a Python call is not valid; `except ValueError` also catches the errors of `agents`."""


class NonFiniteActionError(AarenRLError, agents.NonFiniteActionError):
    """An exported policy's action is NaN or infinite; it was not returned.

    `Policy.act` raises the base class, `aaren_rl.agents.NonFiniteActionError`, which is no `AarenRLError`: `agents`
    imports nothing of the project.
    """

    exit_code = 5


class DamagedCheckpointError(CheckpointError):
    """A checkpoint file is damaged; an older checkpoint may be intact."""


class NumericsError(AarenRLError):
    """Training produced NaN or infinity, or an exported model differs from PyTorch."""

    exit_code = 6


class PeerError(AarenRLError):
    """Another process of this run failed and has said why."""


def run_command(command: Callable[[], int], *, debug: bool = False) -> int:
    """Runs a command; an error becomes one line on standard error and an exit code.

    Exit codes: 2 usage, 3 data, 4 checkpoint, 5 environment or policy, 6 numerics, 7 resources, 130 interrupted, 1 a
    bug in the package itself. With `debug` the error is raised, with its traceback.
    """
    try:
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of the output has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more on its way out
        return 141  # a shell's exit code for SIGPIPE, which not every system has
    except (Exception, KeyboardInterrupt) as error:  # also unexpected errors: a traceback helps no user
        if debug:
            raise
        if isinstance(error, KeyboardInterrupt):
            print("interrupted", file=sys.stderr)
            return 130
        message, code = explain(error)
        if not isinstance(error, PeerError):
            print(f"error: {message}", file=sys.stderr)
        return code


def explain(error: Exception) -> tuple[str, int]:
    """The line that a user sees for an error, and the exit code."""
    if isinstance(error, AarenRLError):
        return str(error), error.exit_code
    if isinstance(error, FloatingPointError):  # `agents.NonFiniteActionError`, and that of SAC
        return str(error), NonFiniteActionError.exit_code
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
