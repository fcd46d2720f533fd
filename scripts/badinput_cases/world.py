"""What is sound: a data set, a run trained on it, its other forms; made once, in the parent."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from . import environments

MODULE = environments.__name__  # what --register takes
TINY = (
    "--width 8 --layers 1 --heads 2 --updates 2 --warmup-updates 1 --steps-per-update 40 --eval-every 2 "
    "--eval-episodes 1 --final-episodes 1 --threads 1 --context window --context-length 4"
).split()


@dataclass(frozen=True)
class Case:
    """A bad input.

    Attributes:
        name: "kind: what".
        call: gives the exit code.
        codes: those that are right; None: any of 2 to 7.
        interrupt: seconds after which Ctrl-C comes; None: never.
    """

    name: str
    call: Callable[[], int]
    codes: frozenset[int] | None = None
    interrupt: float | None = None


def command(name: str, argv: list[str], *codes: int, what: str = "", interrupt: float | None = None) -> Case:
    """A case that is a command line, `aaren-rl NAME ARGV`."""

    def call() -> int:
        from aaren_rl.__main__ import main

        return main([name, *argv])

    shown = what or " ".join(argument if len(argument) < 40 else f"{argument[:37]}..." for argument in argv)
    return Case(f"{name}: {shown}", call, frozenset(codes) or None, interrupt)


def arrays(steps: int = 80) -> dict[str, np.ndarray]:
    """Of a sound data set: episodes of `environments.STEPS`."""
    rng = np.random.default_rng(0)
    ends = np.arange(steps) % environments.STEPS == environments.STEPS - 1
    return {
        "observations": rng.standard_normal((steps, environments.SIZE)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (steps, environments.ACTIONS)).astype(np.float32),
        "rewards": rng.standard_normal(steps).astype(np.float32),
        "terminals": np.zeros(steps, bool),
        "timeouts": ends,
    }


def write(path: Path, content: dict[str, np.ndarray]) -> Path:
    """A data set of these arrays in a file."""
    with h5py.File(path, "w") as file:
        for name, array in content.items():
            file[name] = array
    return path


class World:
    """The sound files: `data`, `run`, `policy`, `onnx` and `hub`."""

    def __init__(self, root: Path) -> None:
        """Makes them; raises where something that is sound is refused."""
        self.root = root / "good"
        self.root.mkdir(parents=True)
        self.data = write(self.root / "tiny.hdf5", arrays())
        out = self.root / "runs"
        self.own = ["--env-id", "Good-v0", "--register", MODULE]
        sound = [*self.own, "--source", str(self.data), "--out", str(out), "--target-return", "4", *TINY]
        self.run = out / "tiny" / "decision-aaren" / "seed0"
        self._must("train", sound)
        self.policy, self.onnx, self.hub = self.run / "policy", self.root / "policy.onnx", self.root / "hub"
        registered = ["--register", MODULE]
        self._must("export", [str(self.run), "--out", str(self.onnx), *registered])
        self._must("hub", [str(self.run), str(self.hub), "--episodes", "1", *registered])
        self._must("evaluate", [str(self.onnx), "--episodes", "1", *registered])
        self._must("evaluate", [str(self.hub), "--episodes", "1", *registered])

    def _must(self, name: str, argv: list[str]) -> None:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = command(name, argv).call()
        if code:
            sys.exit(f"{name} {' '.join(argv)}: exit code {code}\n{said.getvalue()}")
