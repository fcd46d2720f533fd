"""Simulation jobs on several processes, with results in the order of the jobs."""

import queue
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from itertools import count, islice
from typing import Self, cast

from ..errors import EnvsError
from ..processes import Worker, serve
from .policy import Job, Track, simulate


def serve_requests() -> None:
    """Body of a worker."""
    serve(simulate)


class WorkerPool:
    """`size` worker processes for the body of a `with` statement, which end at once when it is left."""

    def __init__(self, size: int) -> None:
        """Note the size; the processes start on entry."""
        self._size = size
        self._workers: list[Worker] = []
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(size)
        self._failed: Future[None] = Future()  # has the error of the first worker that failed

    def __enter__(self) -> Self:
        """Start the processes."""
        try:
            for _ in range(self._size):
                self._workers.append(Worker(__name__, "simulates episodes"))
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
            SimulationError: a worker died, or what it simulates raised.
        """
        pending = deque(self._threads.submit(self._run, job) for job in islice(jobs, 2 * self._size))
        try:
            while pending:
                # A failure is told at once, not when its turn comes: the jobs before it may take long.
                wait(cast("list[Future[object]]", [pending[0], self._failed]), return_when=FIRST_COMPLETED)
                if self._failed.done():
                    self._failed.result()
                yield pending.popleft().result()
                pending.extend(self._threads.submit(self._run, job) for job in islice(jobs, 1))
        finally:
            for future in pending:
                future.cancel()

    def _run(self, job: Job) -> list[Track]:
        worker = self._idle.get()
        try:
            worker.send(job)
            tracks: list[Track] = worker.receive()
            return tracks
        except EnvsError as error:
            with suppress(InvalidStateError):  # another was first
                self._failed.set_exception(error)
            raise
        finally:
            self._idle.put(worker)


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
