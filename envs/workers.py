"""Simulation jobs on several processes, with results in the order of the jobs.

The workers are fresh interpreters, not multiprocessing's: those import the caller's main module again, which breaks
a script without an `if __name__ == "__main__"` guard and loads the caller's whole program into every worker.
"""

import os
import pickle
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import count, islice
from typing import Self

from .errors import SimulationError
from .simulate import Job, Track, simulate


def serve() -> None:
    """Body of a worker: read jobs from stdin and write tracks to stdout, until stdin ends."""
    results = os.fdopen(os.dup(1), "wb")
    # Whatever a library prints must not end up between the results.
    os.dup2(2, 1)
    while True:
        try:
            job: Job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            pickle.dump(simulate(job), results, protocol=pickle.HIGHEST_PROTOCOL)
            results.flush()
        except BrokenPipeError:
            # The caller was killed. Leave without the interpreter's attempt to flush what is left.
            os._exit(0)


class _Worker:
    """A worker process; it ends with this process however this one ends, because its stdin does."""

    def __init__(self) -> None:
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        # One process per core already; threads of the matrix product would only get in each other's way.
        environment.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", OMP_NUM_THREADS="1")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            # Ctrl-C goes to this process alone, which then ends the workers without tracebacks from each.
            start_new_session=True,
        )

    def run(self, job: Job) -> list[Track]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            pickle.dump(job, self._process.stdin)
            self._process.stdin.flush()
            tracks: list[Track] = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            code = self._process.wait()
            raise SimulationError(
                f"a worker that simulates {job.env_id} ended with code {code}; see its message above, or try again"
            ) from error
        return tracks

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            # A job that was being sent when the worker was killed is still in the buffer.
            with suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()


class WorkerPool:
    """`size` worker processes for the body of a `with` statement, which end at once when it is left."""

    def __init__(self, size: int) -> None:
        """Note the size; the processes start on entry."""
        self._size = size
        self._workers: list[_Worker] = []
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(size)

    def __enter__(self) -> Self:
        """Start the processes."""
        try:
            for _ in range(self._size):
                self._workers.append(_Worker())
                self._idle.put(self._workers[-1])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the processes, whatever they are doing."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.kill()
        self._threads.shutdown()
        for worker in self._workers:
            worker.close()

    def run(self, jobs: Iterator[Job]) -> Generator[list[Track], None, None]:
        """Yield the tracks of each job in order; jobs are taken a few ahead of the results.

        Closing the generator drops the jobs that no worker has begun.

        Raises:
            SimulationError: a worker died.
        """
        pending = deque(self._threads.submit(self._run, job) for job in islice(jobs, 2 * self._size))
        try:
            while pending:
                yield pending.popleft().result()
                pending.extend(self._threads.submit(self._run, job) for job in islice(jobs, 1))
        finally:
            for future in pending:
                future.cancel()

    def _run(self, job: Job) -> list[Track]:
        worker = self._idle.get()
        try:
            return worker.run(job)
        finally:
            self._idle.put(worker)


def worker_count() -> int:
    """One process for each core this one may use."""
    return len(os.sched_getaffinity(0))


def play_steps(pool: WorkerPool, job: Job, n_steps: int) -> Generator[Track, None, None]:
    """Episodes of one policy from `job`'s first on, as many as it takes to reach `n_steps`, the last one whole.

    Raises:
        SimulationError: a worker died.
    """
    jobs = (job._replace(first_episode=first) for first in count(job.first_episode, job.n_episodes))
    with closing(pool.run(jobs)) as results:
        for tracks in results:
            for track in tracks:
                yield track
                n_steps -= len(track.rewards)
                if n_steps <= 0:
                    return
