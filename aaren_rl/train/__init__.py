"""The command train: configuration, batches, updates, ranks, checkpoints and the loop; `run` is it from Python."""

from .api import run

__all__ = ["run"]
