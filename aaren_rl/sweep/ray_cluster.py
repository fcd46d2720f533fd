"""The sweep's runs as tasks of Ray, on this machine or on a cluster."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory
from typing import Any

from ..base.errors import UsageError, one_line
from ..runs.folder import holds_training
from .processes import POLL, RETRIES, CellJob, launch

# Read when Ray is imported, and by the processes it starts: no reports home, and no remark on how GPUs are hidden.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

CONNECT = 10  # seconds; Ray itself tries a dead address for minutes
OBJECT_STORE = 80 * 2**20  # bytes; tasks return an exit code, and Ray's default is a third of the memory


def train_cell(job: CellJob, folder: str) -> int:
    """Body of a task: a run as a process of the worker's, in `folder`; returns its exit code."""
    os.chdir(folder)
    # At every start: Ray starts a task again whose worker died, and its process with it.
    process = launch(job, holds_training(job.run), saves=False)
    try:
        # Not wait(): Ray's cancel raises KeyboardInterrupt between two Python instructions.
        while (code := process.poll()) is None:
            time.sleep(POLL)
        return code
    except KeyboardInterrupt:
        process.terminate()
        return process.wait()


class RayTask:
    """A task that is asked as a process is."""

    def __init__(self, ray: Any, reference: Any) -> None:  # noqa: ANN401  Ray's module and its reference
        self._ray, self._reference = ray, reference

    def poll(self) -> int | None:
        """The run's exit code; that of SIGKILL where its worker died again and again."""
        ray = self._ray
        if not ray.wait([self._reference], timeout=0)[0]:
            return None
        try:
            return int(ray.get(self._reference))
        except ray.exceptions.TaskCancelledError:
            return 128 + signal.SIGTERM
        except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError):
            return -9  # SIGKILL, which not every system has

    def terminate(self) -> None:
        self._ray.cancel(self._reference, force=False)


@contextmanager
def connect(address: str, gpus: float) -> Iterator[Callable[..., RayTask]]:
    """What starts a run as a task of one CPU and a share of a GPU; "local" is a Ray that ends with the body.

    Raises UsageError where Ray is not installed, or there is none at the address.
    """
    try:
        import ray
    except ImportError as error:
        raise UsageError("Ray is not installed: pip install 'aaren-rl[sweep]', or leave --ray out") from error
    host, _, port = address.rpartition(":")
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "error"}
    with ExitStack() as stack:
        if address == "local":
            # A short path: Ray's sockets are in it, and a socket's path has at most 107 bytes.
            folder = stack.enter_context(TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True))
            options |= {"_temp_dir": folder, "include_dashboard": False, "object_store_memory": OBJECT_STORE}
        stack.callback(ray.shutdown)
        try:
            if host and "/" not in host and port.isdigit():
                socket.create_connection((host, int(port)), timeout=CONNECT).close()
            ray.init(**options)
        except (OSError, OverflowError, ValueError, RuntimeError) as error:
            raise UsageError(f"--ray {address}: Ray does not answer: {one_line(error)}") from error
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(train_cell)
        yield lambda job, *_: RayTask(ray, task.options(name=str(job.run)).remote(job, os.getcwd()))
