"""Worker processes that answer pickled requests over their pipes, and end when this process does, in a request too.

They are fresh interpreters, not multiprocessing's: those import the caller's main module again, which breaks a script
without an `if __name__ == "__main__"` guard and loads the caller's whole program into every worker.
"""

import fcntl
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any, NamedTuple

from ..errors import EnvsError, ResourcesError, SimulationError, one_line
from ..lifeline import start_child

# Room for a request to be written while the worker still writes its last answer: neither may wait for the other. Some
# thousand environments' actions fit; more would use up what Linux grants a user for pipes.
_PIPE_BYTES = 2**18


class _Failure(NamedTuple):
    """What a worker answers in place of a result."""

    message: str


def serve(answer: Callable[[Any], Any]) -> None:
    """Body of a worker: answer the requests on stdin on stdout, until stdin ends."""
    results = os.fdopen(os.dup(1), "wb")
    # Whatever a library prints must not end up between the results.
    os.dup2(2, 1)
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            pickle.dump(_attempt(answer, request), results, protocol=pickle.HIGHEST_PROTOCOL)
            results.flush()
        except BrokenPipeError:
            # The caller was killed. Leave without the interpreter's attempt to flush what is left.
            os._exit(0)


def _attempt(answer: Callable[[Any], Any], request: Any) -> Any:  # noqa: ANN401  whatever the worker takes and answers
    try:
        return answer(request)
    except EnvsError as error:
        return _Failure(str(error))
    # The user's environment may raise anything: its message reaches the user, as one line, by the other process.
    except Exception as error:
        return _Failure(f"a worker raised {one_line(repr(error))}")


class Worker:
    """A process that runs `module.serve_requests()`; it ends with this process however this one ends.

    `doing` says in its error what it does: "simulates Hopper-v4". `variables` are added to its environment; its
    standard error goes to `errors`, or where this process's goes.
    """

    def __init__(
        self, module: str, doing: str, variables: Mapping[str, str] | None = None, errors: IO[bytes] | None = None
    ) -> None:
        """Start the process.

        Raises:
            ResourcesError: the system has no room for another process or its pipes.
        """
        self._doing = doing
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        # One process per core already; threads of the matrix product would only get in each other's way.
        environment.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", OMP_NUM_THREADS="1", **(variables or {}))
        try:
            self._process = start_child(
                f"from {module} import serve_requests; serve_requests()",
                flags=["-P"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                # Ctrl-C goes to this process alone, which then ends the workers without tracebacks from each.
                start_new_session=True,
            )
        except OSError as error:
            raise ResourcesError(
                f"no process that {doing} can be started ({error.strerror or error}); use fewer processes, end others"
            ) from error
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            # A user has so much room for pipes, whatever program they belong to: then these stay as they are.
            with suppress(PermissionError):
                fcntl.fcntl(stream, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def send(self, request: Any) -> None:  # noqa: ANN401  whatever the worker's module takes
        """Hand a request over.

        Raises:
            SimulationError: the worker has died.
        """
        assert self._process.stdin is not None
        try:
            pickle.dump(request, self._process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()
        except OSError as error:
            raise self._death() from error

    def receive(self) -> Any:  # noqa: ANN401  whatever the worker's module answers
        """Wait for the answer to the oldest request that has none yet.

        Raises:
            SimulationError: the worker has died, or raised (the message is its own).
        """
        assert self._process.stdout is not None
        try:
            answer = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise self._death() from error
        if isinstance(answer, _Failure):
            raise SimulationError(answer.message)
        return answer

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Close the pipes of a process that has ended."""
        for stream in (self._process.stdin, self._process.stdout):
            # A request that was being sent when the worker was killed is still in the buffer.
            with suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()

    def _death(self) -> SimulationError:
        code = self._process.wait()
        return SimulationError(
            f"a worker that {self._doing} ended with code {code}; see its message above, or try again"
        )
