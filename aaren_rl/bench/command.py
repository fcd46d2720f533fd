"""Measurements: `python -m aaren_rl.bench BENCHMARK`.

Every benchmark first holds the code it times against a reference and prints nothing but an error if they differ: a
wrong result is not fast.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from matplotlib.figure import Figure

from ..cli import Parser, Subparser, run
from ..files import check_writable, write_json
from ..ranges import THREADS
from . import learning, learning_show, resources, rollout, scan, steering
from .timing import check_plot, save_plot
from .training import benchmark as train


class Benchmark(Protocol):
    """What a benchmark's module has."""

    HELP: str
    DESCRIPTION: str
    EPILOG: str

    def add_arguments(self, parser: Parser) -> None:
        """Adds the benchmark's own options."""

    def run(self, arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
        """Measures; returns the table to print and the figures for JSON."""


BENCHMARKS: dict[str, Benchmark] = {
    "learning": learning,
    "steering": steering,
    "rollout": rollout,
    "train": train,
    "scan": scan,
    "resources": resources,
}


PLOTS: dict[str, Callable[[dict[str, Any]], Figure]] = {
    "learning": learning_show.plot,
    "steering": steering.plot,
    "rollout": rollout.plot,
    "train": train.plot,
    "scan": scan.plot,
    "resources": resources.plot,
}


def _parser() -> Parser:
    parser = Parser("bench", "Measure time and memory. Each benchmark has its own --help.")
    benchmarks = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK", parser_class=Subparser)
    for name, benchmark in BENCHMARKS.items():
        own = benchmarks.add_parser(
            name, help=benchmark.HELP, description=benchmark.DESCRIPTION, epilog=benchmark.EPILOG
        )
        benchmark.add_arguments(own)
        own.add_argument("--threads", type=THREADS.integer, default=1, help="threads of torch (default: %(default)s)")
        own.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
        if name in PLOTS:
            own.add_argument("--plot", type=Path, metavar="FILE", help="also draw the figures here: .png, .svg or .pdf")
        own.add_shared(register=False)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    files = {"json": arguments.json, "plot": getattr(arguments, "plot", None)}
    for option, path in files.items():
        check_writable(f"--{option}", path)
    if files["plot"] is not None:
        check_plot(files["plot"])  # before minutes of measuring
    benchmark = BENCHMARKS[arguments.benchmark]
    threads = torch.get_num_threads()
    torch.set_num_threads(arguments.threads)
    try:
        table, figures = benchmark.run(arguments)
    finally:
        torch.set_num_threads(threads)
    print(table)
    if arguments.json is not None:
        write_json(arguments.json, figures)
    if files["plot"] is not None:
        save_plot(PLOTS[arguments.benchmark](figures), files["plot"])
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one benchmark; returns the exit code."""
    return run(_parser(), _run, argv)
