"""One run of a sweep as a process, and the sweep's processes on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ..envs.lifeline import start_child

RETRIES = 2  # of a run that a signal ended
POLL = 0.2  # seconds between looks at the processes

_TRAIN = """
import runpy, sys
sys.argv[0] = "train"
runpy.run_module("aaren_rl.train", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class CellJob:
    """One training run: the arguments of `aaren_rl.train`, without --resume, and the run folder they lead to."""

    arguments: tuple[str, ...]
    run: Path


def launch(job: CellJob, resume: bool, death: signal.Signals) -> subprocess.Popen[bytes]:
    """Starts a run as a process; its output is appended to the run's train.log.

    It gets `death` when this process ends, however that ends, and is gone soon after: it would go on unseen, and keep
    its folder from the one that takes its place.
    """
    arguments = list(job.arguments)
    if "--threads" not in arguments:
        arguments += ["--threads", "1"]
    if resume:
        arguments.append("--resume")
    # Not torchrun's, where a sweep is started under it: a run is one process.
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    job.run.mkdir(parents=True, exist_ok=True)
    with (job.run / "train.log").open("ab") as log:
        return start_child(
            _TRAIN,
            arguments,
            death=death,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**environment, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C goes to the sweep alone, which passes it on once
        )


class LocalBackend:
    """Processes of this machine."""

    def __init__(self, slots: int) -> None:
        """At most `slots` at once."""
        self.slots = slots

    def start(self, job: CellJob, resume: bool) -> subprocess.Popen[bytes]:
        """A process; it saves if this one is killed."""
        return launch(job, resume, signal.SIGTERM)

    def code(self, handle: subprocess.Popen[bytes]) -> int | None:
        """The exit code, the signal's number negative where one ended it; None while it runs."""
        return handle.poll()

    def stop(self, handle: subprocess.Popen[bytes]) -> None:
        """Asks it to save and end."""
        handle.terminate()

    def close(self) -> None:
        """Nothing to do: the processes have ended."""
