"""One run of a sweep as a process, and the sweep's processes on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

RETRIES = 2  # of a run that a signal ended
POLL = 0.2  # seconds between looks at the processes

# A run ends with the process that started it, however that ends (Linux: PR_SET_PDEATHSIG is 1). Otherwise it would go
# on unseen and keep its folder from the one that takes its place.
_LAUNCH = """
import ctypes, runpy, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, int(sys.argv[1]))
sys.argv = ["train", *sys.argv[2:]]
runpy.run_module("aaren_rl.train", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class CellJob:
    """One training run: the arguments of `aaren_rl.train`, without --resume, and the run folder they lead to."""

    arguments: tuple[str, ...]
    run: Path


def launch(job: CellJob, resume: bool, death: signal.Signals) -> subprocess.Popen[bytes]:
    """Starts a run as a process that gets `death` when this one ends. Its output is appended to the run's train.log."""
    command = [sys.executable, "-c", _LAUNCH, str(int(death)), *job.arguments]
    if "--threads" not in job.arguments:
        command += ["--threads", "1"]
    if resume:
        command.append("--resume")
    # Not torchrun's, where a sweep is started under it: a run is one process.
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    job.run.mkdir(parents=True, exist_ok=True)
    with (job.run / "train.log").open("ab") as log:
        return subprocess.Popen(
            command,
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
