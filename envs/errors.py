"""What can go wrong in tasks, data and simulation: one line for the user and an exit code for the command line."""


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
    """Something that this machine lacks, such as a renderer."""

    exit_code = 7
