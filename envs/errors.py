"""Errors of tasks, data and simulation, with exit codes; `aaren_rl.errors` has the other errors."""

import errno

# Error numbers of a full disk, a quota or a limit on file sizes.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class AarenRLError(Exception):
    """Base of the project's errors. The message is one line: what went wrong (file: field); what to do."""

    exit_code = 1

    def __str__(self) -> str:
        """The message, with unprintable characters, as in a file name, escaped as in Python."""
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in super().__str__())


class EnvsError(AarenRLError):
    """Base of the errors of tasks, data and simulation."""


class UsageError(EnvsError):
    """An argument is invalid, regardless of the data."""

    exit_code = 2


class UnknownTaskError(UsageError):
    """A task or family name is not in the table."""


class DataError(EnvsError):
    """A dataset is missing, damaged or does not fit."""

    exit_code = 3


class SimulationError(EnvsError):
    """An environment cannot be made, or failed while it ran."""

    exit_code = 5


class ResourcesError(EnvsError):
    """The machine lacks a resource, such as a renderer or disk space."""

    exit_code = 7


def one_line(text: object, limit: int = 200) -> str:
    """A text from a file, or of an error, as one short line without terminal control sequences."""
    try:
        said = str(text)
    except Exception:  # an error of the user's own may have no text
        said = type(text).__name__
    return "".join(c for c in " ".join(said.split()) if c.isprintable())[:limit]
