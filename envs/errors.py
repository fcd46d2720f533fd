"""What can go wrong in tasks, data and simulation, with exit codes; `aaren_rl.errors` has the other errors."""

import errno

# What a system answers where there is no room: the disk, a quota or a limit on the size of files.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CommandError(Exception):
    """Base of the project's own errors. The message is one line: what went wrong (file: field); what to do."""

    exit_code = 1

    def __str__(self) -> str:
        """The message; what cannot be printed, as of a file's name, is written as Python writes it."""
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in super().__str__())


class EnvsError(CommandError):
    """What tasks, data and simulation raise."""


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


def one_line(text: object, limit: int = 200) -> str:
    """A text from a file, or what an error says, as one short line without terminal control sequences."""
    try:
        said = str(text)
    except Exception:  # an error of the user's own may have no text
        said = type(text).__name__
    return "".join(c for c in " ".join(said.split()) if c.isprintable())[:limit]
