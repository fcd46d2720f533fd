"""What the tests of bad inputs share: sound files, a command in this process, and how both must end."""

from __future__ import annotations

import contextlib
import io
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

from aaren_rl.__main__ import main
from aaren_rl.errors import CommandError

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


class World(NamedTuple):
    """A data set, the run trained on it, and the policy as ONNX."""

    root: Path
    data: Path
    run: Path
    onnx: Path


class Case(NamedTuple):
    """A command line that is made when a test runs, in an empty working directory, and its right exit codes."""

    name: str
    make: Callable[[World], list[str]]
    codes: Iterable[int] = ANY


def sample(cases: Iterable[Case], every: int) -> list[Any]:
    """Parameters of a test: one of `every` in the default run, all with `-m faults`."""
    found = list(cases)
    return [
        pytest.param(case, id=case.name, marks=[] if i % every == 0 else pytest.mark.slow)
        for i, case in enumerate(found)
    ]


def arrays(**changes: Any) -> dict[str, Any]:
    """A sound data set of 80 steps; None takes an array out."""
    rng = np.random.default_rng(0)
    sound = {
        "observations": rng.standard_normal((80, odd_environments.SIZE)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (80, odd_environments.ACTIONS)).astype(np.float32),
        "rewards": rng.standard_normal(80).astype(np.float32),
        "terminals": np.zeros(80, bool),
        "timeouts": np.arange(80) % odd_environments.STEPS == odd_environments.STEPS - 1,
    }
    return {name: array for name, array in (sound | changes).items() if array is not None}


def write(path: Path, content: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in content.items():
            file[name] = array
    return path


def make_world(root: Path) -> World:
    data, onnx = write(root / "tiny.hdf5", arrays()), root / "policy.onnx"
    run = root / "runs" / "tiny" / "decision-aaren" / "seed0"
    for line in (
        ["train", *OWN, "--source", str(data), "--out", str(root / "runs"), *TINY],
        ["export", str(run), "--out", str(onnx), *REGISTER],
        ["evaluate", str(onnx), "--episodes", "1", *REGISTER],
    ):
        code, said = ended(line)
        assert code == 0, said
    return World(root, data, run, onnx)


def ended(line: list[str]) -> tuple[int, str]:
    """Exit code of `aaren-rl LINE`, and what it wrote to standard error."""
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        try:
            code = main(line)
        except SystemExit as left:
            code = left.code
    return code, errors.getvalue()


def must_end_well(line: list[str], codes: Iterable[int] = ANY) -> None:
    """One of the exit codes, one line that says why, no process left, and no more memory than MOST_MIB."""
    there = children()
    code, said = ended(line)
    assert code in codes, f"exit code {code}: {said[-300:]}"
    assert "Traceback" not in said and "fault of aaren-rl" not in said, said[-2000:]
    told = [text for text in said.splitlines() if "error: " in text]
    assert len(told) == (1 if code else 0), said[-2000:] or "no line says why"
    assert all(text.isprintable() and len(text) < 6000 for text in told)
    until = time.monotonic() + 3
    while left := children() - there:
        assert time.monotonic() < until, f"{left} left behind"
        time.sleep(0.02)
    # KiB; the most so far, which no case may move past the limit.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < MOST_MIB * 1024
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 * MOST_MIB * 1024


def children() -> set[int]:
    """The processes below this one; those that only wait to be asked for their exit code do not count."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            state, parent = stat.read_text().rsplit(") ", 1)[1].split()[:2]
            # Python's own helpers stay until its end.
            if (
                int(parent) == os.getpid()
                and state != "Z"
                and b"multiprocessing" not in (stat.with_name("cmdline").read_bytes())
            ):
                found.add(int(stat.parent.name))
    return found


def must_be_refused(call: Callable[[], object]) -> None:
    """One of the documented exceptions, in one line about what was given."""
    with pytest.raises((ValueError, TypeError, FloatingPointError, CommandError)) as caught:
        call()
    text = str(caught.value)
    assert text and text.isprintable() and len(text) < 6000, f"{text!a:.300}"
    assert not any(word in text for word in INNER), text[:300]


def may_be_read(call: Callable[[], object]) -> None:
    """A result, or the package's own error."""
    try:
        call()
    except CommandError as error:
        assert str(error).isprintable()
