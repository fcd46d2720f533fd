"""The command line of scripts/bench."""

from __future__ import annotations

from collections.abc import Sequence

from aaren_rl.bench import command

from . import learning, memory, scan, steering, train

BENCHMARKS = learning, steering, memory, train, scan


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one benchmark. Returns the exit code."""
    return command.main(argv, benchmarks=BENCHMARKS, prog="scripts/bench")
