"""What the tests of bad inputs share: sound files, a command in a process of its own, and how it must end."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import odd_environments
import pytest

from aaren_rl.base.errors import AarenRLError

REGISTER = ["--register", odd_environments.__name__]
OWN = ["--env-id", "Good-v0", *REGISTER]
TINY = (
    "--width 8 --layers 1 --heads 2 --updates 2 --warmup-updates 1 --steps-per-update 40 --eval-every 2 "
    "--eval-episodes 1 --final-episodes 1 --threads 1 --context window --context-length 4 --target-return 4"
).split()
ANY = range(2, 8)
MOST_MIB = 2048
# What only NumPy's and PyTorch's own messages say.
INNER = ("broadcast", "mat1", "size of tensor", "setting an array element", "numpy.core", "Unsupported ufunc")
# Forks children from a process that has imported everything and started no threads.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["aaren_rl.train.run", "aaren_rl.evaluate.command", "aaren_rl.export.command", __name__])


class World(NamedTuple):
    """A data set, the run trained on it, and the policy as ONNX."""

    root: Path
    data: Path
    run: Path
    onnx: Path

    def fill(self, line: Iterable[str], **more: str) -> list[str]:
        """A command line in which RUN, DATA and ONNX stand for these."""
        words = {"RUN": str(self.run), "DATA": str(self.data), "ONNX": str(self.onnx), **more}
        return [words.get(word, word) for word in line]


class Case(NamedTuple):
    """A command line that is made when a test runs, in an empty working directory, and its right exit codes."""

    name: str
    make: Callable[[World], list[str]]
    codes: Iterable[int] = ANY


class Ended(NamedTuple):
    """How a command ended: its exit code (that of its process where a signal ended it), its standard error, the most
    memory that its process or one of its children had, in MiB, and the processes that outlived it.
    """

    code: int | None
    said: str
    peak: float = 0
    left: tuple[int, ...] = ()


def sample(cases: Iterable[Case], every: int) -> list[Any]:
    """Parameters of a test: one of `every` in the default run, all with `-m faults`."""
    return [
        pytest.param(case, id=case.name, marks=[pytest.mark.slow] * bool(i % every)) for i, case in enumerate(cases)
    ]


def arrays() -> dict[str, Any]:
    """A sound data set of 80 steps."""
    rng = np.random.default_rng(0)
    return {
        "observations": rng.standard_normal((80, odd_environments.SIZE)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (80, odd_environments.ACTIONS)).astype(np.float32),
        "rewards": rng.standard_normal(80).astype(np.float32),
        "terminals": np.zeros(80, bool),
        "timeouts": np.arange(80) % odd_environments.STEPS == odd_environments.STEPS - 1,
    }


def make_world(root: Path) -> World:
    data, onnx = root / "tiny.hdf5", root / "policy.onnx"
    with h5py.File(data, "w") as file:
        file.update(arrays())
    world = World(root, data, root / "runs" / "tiny" / "decision-aaren" / "seed0", onnx)
    for line in (
        ["train", *OWN, "--source", "DATA", "--out", str(root / "runs"), *TINY],
        ["export", "RUN", "--out", "ONNX", *REGISTER],
        ["evaluate", "ONNX", "--episodes", "1", *REGISTER],
    ):
        must_end_well(world.fill(line), {0})
    return world


def ended(line: list[str]) -> Ended:
    """Runs `aaren-rl LINE` in a process of its own, here."""
    answer, given = SERVER.Pipe(duplex=False)
    child = SERVER.Process(target=_run, args=(line, os.getcwd(), dict(os.environ), given))
    child.start()
    given.close()
    code, said, peak = None, "", 0.0
    with contextlib.suppress(EOFError):  # ended by a signal
        code, said, peak = answer.recv()
    child.join()
    until = time.monotonic() + 3
    while (left := _group(child.pid)) and time.monotonic() < until:
        time.sleep(0.02)
    return Ended(child.exitcode if code is None else code, said, peak, left)


def _run(line: list[str], folder: str, variables: dict[str, str], given: Any) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    from aaren_rl.__main__ import main

    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        try:
            code = main(line)
        except SystemExit as left:
            code = left.code
    peak = max(resource.getrusage(whose).ru_maxrss for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    given.send((code, errors.getvalue(), peak / 1024))


def _group(leader: int | None) -> tuple[int, ...]:
    """The processes of a group that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, group = stat.read_text().rpartition(") ")[2].split()[:3]
            found += [int(stat.parent.name)] if int(group) == leader and state != "Z" else []
    return tuple(found)


def must_end_well(line: list[str], codes: Iterable[int] = ANY) -> None:
    """One of the exit codes, one line that says why, no process left, and no more memory than MOST_MIB."""
    check(ended(line), codes)


def check(end: Ended, codes: Iterable[int] = ANY) -> None:
    assert end.code in codes, f"exit code {end.code}: {end.said[-300:]}"
    assert "Traceback" not in end.said and "bug in aaren-rl" not in end.said, end.said[-2000:]
    told = [text for text in end.said.splitlines() if "error: " in text]
    assert len(told) == (1 if end.code else 0), end.said[-2000:] or "no line says why"
    assert all(text.isprintable() and len(text) < 6000 for text in told)
    assert not end.left, f"{end.left} left behind"
    assert end.peak < MOST_MIB, f"{end.peak:.0f} MiB"


def must_be_refused(call: Callable[[], object], *errors: type[Exception]) -> None:
    """One of these exceptions, in one line about what was given."""
    with pytest.raises(errors) as caught:
        call()
    text = str(caught.value)
    assert text and text.isprintable() and len(text) < 6000, f"{text!a:.300}"
    assert not any(word in text for word in INNER), text[:300]


def may_be_read(call: Callable[[], object]) -> None:
    """A result, or the package's own error."""
    try:
        call()
    except AarenRLError as error:
        assert str(error).isprintable()
