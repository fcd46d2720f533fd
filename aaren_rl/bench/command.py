"""Measurements: `aaren-rl bench BENCHMARK`.

Every benchmark first tests the code it times against a reference. If they differ, it prints only an error.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

from ..base.files import check_writable, write_json
from ..base.machine import Machine, torch_threads
from ..base.ranges import THREADS
from ..cli import Parser, import_registering, run
from . import rollout
from .harness import Figures


def make_parser(prog: str, benchmarks: Sequence[ModuleType]) -> tuple[Parser, list[Parser]]:
    """The command line of a program, and the part of each of its benchmarks.

    These are modules with HELP, DESCRIPTION and EPILOG, `add_arguments(parser)`, `measure(arguments)`, which returns
    figures, and `show(figures)`, which returns the lines to print.
    """
    parser, parts = Parser(description="Measure time and memory. Each benchmark has its own --help.", prog=prog), []
    commands = parser.add_subparsers(required=True, metavar="BENCHMARK")
    for benchmark in benchmarks:
        name = benchmark.__name__.rpartition(".")[2]
        texts = {"help": benchmark.HELP, "description": benchmark.DESCRIPTION, "epilog": benchmark.EPILOG}
        own = commands.add_parser(name, **texts)
        benchmark.add_arguments(own)
        own.add_argument("--threads", type=THREADS.integer, default=1, help="threads of torch (default: %(default)s)")
        own.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
        own.set_defaults(benchmark=benchmark)
        parts.append(own)
    return parser, parts


def measure(arguments: argparse.Namespace) -> Figures:
    """Runs a benchmark, prints its figures, writes them where they are wanted, and returns them."""
    check_writable("--json", arguments.json)
    import_registering(getattr(arguments, "register", None))
    with torch_threads(arguments.threads):
        figures: Figures = arguments.benchmark.measure(arguments)
        machine = Machine.here()
    figures["machine"] = asdict(machine)
    device = figures.get("device", "cpu")
    shown = arguments.benchmark.show(figures)
    print("\n".join([f"{machine}{'' if device == 'cpu' else f'; {device}'}", *shown]))
    if arguments.json is not None:
        write_json(arguments.json, figures)
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    parser, _ = make_parser("aaren-rl bench", [rollout])
    return run(parser, _run, argv)


def _run(arguments: argparse.Namespace) -> int:
    measure(arguments)
    return 0
