"""Episodes simulated on several processes, in order."""

import queue
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import count, islice
from typing import Self

from ..processes import Worker, serve
from .policy import Job, Track, simulate


def serve_requests() -> None:
    """Body of a worker."""
    serve(simulate)


class WorkerPool:
    """`size` worker processes for the body of a `with` statement, which end at once when it is left."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._workers: list[Worker] = []
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(size)

    def __enter__(self) -> Self:
        try:
            while len(self._workers) < self._size:
                self._workers.append(Worker(__name__, "simulates episodes"))
                self._idle.put(self._workers[-1])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.kill()
        self._threads.shutdown()
        for worker in self._workers:
            worker.close()

    def play(self, job: Job, n_steps: int) -> Iterator[Track]:
        """Episodes of one policy from `job`'s first on, as many as it takes to reach `n_steps`, the last one whole.

        Raises SimulationError where a worker died, or what it simulates raised.
        """
        jobs = (job._replace(first_episode=first) for first in count(job.first_episode, job.n_episodes))
        pending = deque(self._threads.submit(self._run, job) for job in islice(jobs, 2 * self._size))
        try:
            while True:
                _wait_for_first(pending)
                for track in pending.popleft().result():
                    yield track
                    n_steps -= len(track.rewards)
                    if n_steps <= 0:
                        return
                pending.append(self._threads.submit(self._run, next(jobs)))
        finally:
            for future in pending:
                future.cancel()

    def _run(self, job: Job) -> list[Track]:
        worker = self._idle.get()
        try:
            worker.send(job)
            tracks: list[Track] = worker.receive()
        finally:
            self._idle.put(worker)
        return tracks


def _wait_for_first(pending: deque[Future[list[Track]]]) -> None:
    """Wait for the first result; any failure is raised at once, for the jobs before it may take long."""
    while not pending[0].done():
        for future in pending:
            if future.done():
                future.result()
        wait([future for future in pending if not future.done()], return_when=FIRST_COMPLETED)
