"""The errors of the project, with exit codes, and what a user sees of any error."""

import errno
from collections.abc import Iterable
from difflib import get_close_matches

# Error numbers of a full disk, a quota or a limit on file sizes.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SMALLER = (
    "use smaller batches: --steps-per-update, --context-length, --tbptt-length or --width in training, --episodes in "
    "evaluation"
)


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
