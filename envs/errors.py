"""What can go wrong in tasks, data and simulation: one line for the user and an exit code for the command line."""

import errno

# What a system answers where there is no room: the disk, a quota or a limit on the size of files.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class EnvsError(Exception):
    """Base of this package's errors. The message is one line: what went wrong (file: field); what to do."""

    exit_code = 1


class UsageError(EnvsError):
    """An argument that cannot be right, whatever the data are."""

    exit_code = 2


class UnknownTaskError(UsageError):
    """A task or family name that is not in the table."""


class DataError(EnvsError):
    """A dataset that is missing, damaged or not what it should be."""

    exit_code = 3


class SimulationError(EnvsError):
    """An environment that cannot be made or that failed while it ran."""

    exit_code = 5


class ResourcesError(EnvsError):
    """Something that this machine lacks, such as a renderer or room on the disk."""

    exit_code = 7


def cannot_write(target: object, error: OSError, way_out: str) -> EnvsError:
    """The error of a file that cannot be written: a full disk is a matter of resources, all else one of data."""
    kind = ResourcesError if error.errno in DISK_FULL else DataError
    reason = error.strerror or " ".join(str(error).split())[:200]
    return kind(f"{target}: cannot be written ({reason}); make room, or {way_out}")


def one_line(text: str) -> str:
    """A text from a file as one short line without terminal control sequences."""
    return "".join(c for c in " ".join(text.split()) if c.isprintable())[:200]
