"""What goes wrong in a command, and the one place that prints it."""

from __future__ import annotations

import sys
from collections.abc import Callable


class CommandError(Exception):
    """Base of the commands' own errors: one clear line and an exit code."""

    exit_code = 1


class UsageError(CommandError):
    """The command line or a configuration does not make sense."""

    exit_code = 2


class CheckpointError(CommandError):
    """A checkpoint or policy cannot be read, or belongs to something else."""

    exit_code = 4


class NonFiniteActionError(CommandError, FloatingPointError):
    """An exported policy's action is NaN or infinite; it was not handed out."""

    exit_code = 5


class NumericsError(CommandError):
    """Training produced NaN or infinity."""

    exit_code = 6


class ResourcesError(CommandError):
    """Something that this machine lacks: a package of an extra, room on the disk."""

    exit_code = 7


class PeerError(CommandError):
    """Another process of this run failed and has said why."""


def run_command(command: Callable[[], int], *, debug: bool = False) -> int:
    """Runs a command; a known error becomes one line on standard error and its exit code.

    Exit codes: 2 usage, 3 data, 4 checkpoint, 5 environment or policy, 6 numerics, 7 resources.

    Args:
        command: returns the exit code of success.
        debug: let the error through, with its traceback.
    """
    # Not above: `aaren_rl.runtime` shares these errors, and must import neither Gymnasium nor torch.
    from .envs.errors import EnvsError

    try:
        return command()
    # FloatingPointError: what `agents.Policy` raises, too, when its action is not finite.
    except (CommandError, EnvsError, FloatingPointError) as error:
        if debug:
            raise
        if not isinstance(error, PeerError):
            print(f"error: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 5)
