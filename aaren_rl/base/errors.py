"""The errors of the project, with exit codes."""

import errno

# Error numbers of a full disk, a quota or a limit on file sizes.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def printable(text: str) -> str:
    """The text with unprintable characters, as in a file name, escaped as in Python: a terminal obeys some of them."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class AarenRLError(Exception):
    """Base of the project's errors. The message is one line: what went wrong (file: field); what to do."""

    exit_code = 1

    def __str__(self) -> str:
        """The message, `printable`."""
        return printable(super().__str__())


class UsageError(AarenRLError):
    """An argument is invalid, regardless of the data."""

    exit_code = 2


class ArgumentError(UsageError, ValueError):
    """An argument of a Python call is not valid."""


class UnknownTaskError(UsageError):
    """A task or family name is not in the table."""


class DataError(AarenRLError):
    """A dataset is missing, damaged or does not fit."""

    exit_code = 3


class SimulationError(AarenRLError):
    """An environment cannot be made, or failed while it ran."""

    exit_code = 5


class CheckpointError(AarenRLError):
    """A checkpoint or policy cannot be read, or belongs to something else."""

    exit_code = 4


class DamagedCheckpointError(CheckpointError):
    """A checkpoint file is damaged; an older checkpoint may be intact."""


class NonFiniteActionError(AarenRLError, FloatingPointError):
    """A policy's action is NaN or infinite; it was not returned."""

    exit_code = 5


class NumericsError(AarenRLError):
    """Training produced NaN or infinity, or an exported model differs from PyTorch."""

    exit_code = 6


class ResourcesError(AarenRLError):
    """The machine lacks a resource, such as a renderer or disk space."""

    exit_code = 7


class PeerError(AarenRLError):
    """Another process of this run failed and has said why."""


def one_line(text: object, limit: int = 200) -> str:
    """A text from a file, or of an error, as one short line without terminal control sequences."""
    try:
        said = str(text)
    except Exception:  # an error of the user's own may have no text
        said = type(text).__name__
    return "".join(c for c in " ".join(said.split()) if c.isprintable())[:limit]
