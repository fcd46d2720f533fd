"""Child processes: fresh interpreters that end when this process ends, even if it is killed.

A child's standard input is a pipe whose other end this process alone holds: every system closes it with the process.
Linux also sends the child a signal. multiprocessing's children import the caller's main module again, which breaks a
script without an `if __name__ == "__main__"` guard and loads the caller's whole program into each.
"""

import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from .errors import AarenRLError, ResourcesError, SimulationError, one_line
from .system import kill_at_parents_end

_HEADER = 8  # bytes of a request's length

# Ctrl-C goes to this process alone, which then ends its children: on Windows by a flag, elsewhere by a session.
_APART: dict[str, Any] = {
    "start_new_session": True,
    "creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
}


def start_child(
    code: str,
    arguments: Sequence[str] = (),
    *,
    flags: Sequence[str] = (),
    **options: Any,  # noqa: ANN401  as `subprocess.Popen` takes them
) -> subprocess.Popen[bytes]:
    """A fresh Python that runs `code` with `arguments`, and does not outlive this process.

    `flags` are the interpreter's, `options` those of `subprocess.Popen`, but for its standard input. Raises OSError
    where the system has no room for another process or its pipes.
    """
    theirs, ours = os.pipe()
    try:
        command = [sys.executable, *flags, "-c", _bound(code, "_watch"), *arguments]
        child = subprocess.Popen(command, stdin=theirs, **options)
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    weakref.finalize(child, os.close, ours)
    return child


class Outcome(NamedTuple):
    """How a child of `run_child` ended: its exit code, None where its time was over, and what it printed."""

    code: int | None
    said: bytes


def run_child(
    code: str, *arguments: str, seconds: float, flags: Sequence[str] = ("-P",), keeps: str = "stdout"
) -> Outcome:
    """Runs a fresh Python for at most so many seconds; `keeps` names the stream to read, "stdout" or "stderr"."""
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, keeps: subprocess.PIPE}
    child = start_child(code, arguments, flags=flags, **streams)
    try:
        said = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return Outcome(None, b"")
    return Outcome(child.returncode, said[0] or said[1] or b"")


def _bound(code: str, listener: str) -> str:
    return f"from {__name__} import bind; bind({listener!r}, {os.getpid()})\n{code}"


def bind(listener: str, parent: int) -> None:
    """Ends this child with the process `parent`: `listener` waits for the end of its pipe."""
    kill_at_parents_end(parent)
    threading.Thread(target=globals()[listener], daemon=True).start()


def _watch() -> None:
    os.read(0, 1)  # nothing is ever written: this is the end of the parent
    os._exit(1)


class _Failure(NamedTuple):
    message: str  # a worker's answer in place of a result


_requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()  # of the worker that this process is, pickled


def _take_requests() -> None:
    """Reads requests while others are answered, so that the pipe never fills up and its end is seen at once.

    They are unpickled elsewhere: that imports modules, which the main thread may be importing.
    """
    with os.fdopen(os.dup(0), "rb") as stream:
        while header := stream.read(_HEADER):
            size = int.from_bytes(header, "little")
            if len(content := stream.read(size)) < size:
                break
            _requests.put(content)
        os._exit(1)  # the parent has ended


def serve(answer: Callable[[Any], Any]) -> None:
    """Body of a worker: answers requests on its standard output, until it is killed or its parent has ended."""
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not end up between the results
    while True:
        request = pickle.loads(_requests.get())
        try:
            answered = answer(request)
        except AarenRLError as error:
            answered = _Failure(str(error))
        # The user's environment may raise anything: its message reaches the user, as one line, by the other process.
        except Exception as error:
            answered = _Failure(f"a worker raised {one_line(repr(error))}")
        try:
            pickle.dump(answered, results, protocol=pickle.HIGHEST_PROTOCOL)
            results.flush()
        except OSError:  # the parent is gone: exit without flushing
            os._exit(0)


class Worker:
    """A child that runs `module.serve_requests()`, which takes pickled requests and answers them in order.

    `doing` says in its error what it does: "simulates Hopper-v4". `variables` are added to its environment. Its
    standard error goes where this process's goes; of a `quiet` one the last line is part of the error of its death.
    """

    def __init__(
        self, module: str, doing: str, variables: Mapping[str, str] | None = None, *, quiet: bool = False
    ) -> None:
        """Starts the process; raises ResourcesError where the system has no room for another or its pipes."""
        self._doing, self._errors = doing, tempfile.TemporaryFile() if quiet else None
        # One process per core already; threads of the matrix product would only get in each other's way.
        threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        options = {"env": {**os.environ, "PYTHONPATH": path, **threads, **(variables or {})}, **_APART}
        options |= dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        code = _bound(f"from {module} import serve_requests; serve_requests()", "_take_requests")
        command = [sys.executable, "-P", "-c", code]
        try:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(command, stderr=self._errors, **options)
        except OSError as error:
            raise ResourcesError(
                f"cannot start a process that {doing} ({error.strerror or error}); use fewer processes, or end others"
            ) from error

    def send(self, request: Any) -> None:  # noqa: ANN401  whatever the worker's module takes
        """Sends a request; raises SimulationError if the worker has died."""
        assert self._process.stdin is not None
        try:
            content = pickle.dumps(request, protocol=pickle.HIGHEST_PROTOCOL)
            self._process.stdin.writelines([len(content).to_bytes(_HEADER, "little"), content])
            self._process.stdin.flush()
        except OSError as error:
            raise self._death() from error

    def receive(self) -> Any:  # noqa: ANN401  whatever the worker's module answers
        """The answer to the oldest request that has none yet; raises SimulationError as `send`, or with its error."""
        assert self._process.stdout is not None
        try:
            answer = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise self._death() from error
        if isinstance(answer, _Failure):
            raise SimulationError(answer.message)
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Ends the process and closes its pipes."""
        self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            # A request that was being sent when the worker was killed is still in the buffer.
            with suppress(OSError):
                if stream is not None:
                    stream.close()

    def _death(self) -> SimulationError:
        code = self._process.wait()
        said = "see its message above, or try again"
        if self._errors is not None:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").split("\n")
            said = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing; try again")
        return SimulationError(f"a worker that {self._doing} ended with code {code}; {one_line(said)}")
