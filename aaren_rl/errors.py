"""What goes wrong in a command, and the one place that prints it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from .envs.errors import DISK_FULL, CommandError, EnvsError, ResourcesError, UsageError, one_line

__all__ = ["CommandError", "EnvsError", "ResourcesError", "UsageError", "one_line"]
__all__ += ["ArgumentError", "CheckpointError", "DamagedCheckpointError", "NonFiniteActionError", "NumericsError"]
__all__ += ["PeerError", "explain", "run_command"]

SMALLER = "use smaller batches: --steps-per-update or --width in training, --episodes in evaluation"


class CheckpointError(CommandError):
    """A checkpoint or policy cannot be read, or belongs to something else."""

    exit_code = 4


class ArgumentError(UsageError, ValueError):
    """What a caller of Python hands over; `except ValueError` takes this kind and that of `agents`."""


class NonFiniteActionError(CommandError, FloatingPointError):
    """An exported policy's action is NaN or infinite; it was not handed out.

    `agents`, which imports nothing of the project, raises its own kind: `except FloatingPointError` takes both.
    """

    exit_code = 5


class DamagedCheckpointError(CheckpointError):
    """A checkpoint is not as it was written: an older one may do."""


class NumericsError(CommandError):
    """Training produced NaN or infinity."""

    exit_code = 6


class PeerError(CommandError):
    """Another process of this run failed and has said why."""


def run_command(command: Callable[[], int], *, debug: bool = False) -> int:
    """Runs a command; what goes wrong becomes one line on standard error and an exit code.

    Exit codes: 2 usage, 3 data, 4 checkpoint, 5 environment or policy, 6 numerics, 7 resources, 130 interrupted, 1 a
    fault of the package itself. With `debug` the error gets through, with its traceback.
    """
    try:
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever reads the output has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more on its way out
        return 141  # what a shell says of SIGPIPE, which not every system has
    except (Exception, KeyboardInterrupt) as error:  # also what nobody thought of: a traceback helps no user
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
    """The line that a user gets for an error, and the exit code."""
    if isinstance(error, CommandError):
        return str(error), error.exit_code
    if isinstance(error, FloatingPointError):  # `agents.NonFiniteActionError`, and SAC's like
        return str(error), NonFiniteActionError.exit_code
    said = one_line(error, 300)
    # torch's own errors are RuntimeErrors: of their own class on a GPU, plain on the CPU.
    of_torch = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and of_torch):
        return f"out of memory ({said}); {SMALLER}", ResourcesError.exit_code
    if type(error).__module__.startswith(("torch._dynamo.", "torch._inductor.")):
        return f"torch could not compile the model ({said}); train without --compile", ResourcesError.exit_code
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or said or type(error).__name__
        way_out = "make room; what was saved before is intact" if error.errno in DISK_FULL else "see --debug for where"
        return f"{where}{reason}; {way_out}", ResourcesError.exit_code
    return f"{type(error).__name__}: {said}; this is a fault of aaren-rl: please report it with what --debug shows", 1
