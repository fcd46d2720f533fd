"""Which runs of a sweep train together: on a GPU the seeds of one cell, in one process (`aaren_rl.train.seeds`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..cli import choose_device
from ..train.settings import as_text
from .processes import CellJob


def processes_of(jobs: Sequence[CellJob]) -> list[list[CellJob]]:
    """The runs of each process: those that differ in their seeds alone, where their device is a GPU; else each alone.

    On a CPU a process per core is faster. Raises UsageError if this machine does not have the device of a run.
    """
    found: dict[object, list[CellJob]] = {}
    for job in jobs:
        shared = as_text(replace(job.config, seed=0)), job.out, job.options
        found.setdefault(shared if trains_together(job) else job.run, []).append(job)
    return list(found.values())


def trains_together(job: CellJob) -> bool:
    """Whether a run trains in one process with other seeds of it."""
    from ..train.seeds import why_apart  # with torch: seconds

    return device_of(job) == "cuda" and why_apart(job.config) is None


def device_of(job: CellJob) -> str:
    """The type of the device that a run trains on: "cpu" or "cuda"."""
    return choose_device(job.device).type


def joined(jobs: Sequence[CellJob]) -> CellJob:
    """The process of these runs; its log is in the folder of the first."""
    return replace(jobs[0], seeds=tuple(job.config.seed for job in jobs)) if len(jobs) > 1 else jobs[0]
