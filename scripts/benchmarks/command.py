"""The command line of scripts/bench: every benchmark first tests the code it times against a reference."""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from matplotlib.figure import Figure

from aaren_rl.base.errors import UsageError
from aaren_rl.base.fields import THREADS
from aaren_rl.base.files import check_writable, write_json, write_whole
from aaren_rl.cli import Parser, import_registering, run

from . import learning, memory, rollout, scan, steering, train
from .harness import Figures
from .machine import Machine, torch_threads

# Each has HELP, DESCRIPTION and EPILOG, `add_arguments(parser)`, `measure(arguments)`, which returns figures,
# `show(figures)`, which returns the lines to print, and `plot(figures)`.
BENCHMARKS = rollout, learning, steering, memory, train, scan


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one benchmark. Returns the exit code."""
    parser = Parser(description="Measure time and memory. Each benchmark has its own --help.", prog="scripts/bench")
    commands = parser.add_subparsers(required=True, metavar="BENCHMARK")
    for benchmark in BENCHMARKS:
        name = benchmark.__name__.rpartition(".")[2]
        texts = {"help": benchmark.HELP, "description": benchmark.DESCRIPTION, "epilog": benchmark.EPILOG}
        own = commands.add_parser(name, **texts)
        benchmark.add_arguments(own)
        own.add_argument("--threads", type=THREADS.integer, default=1, help="threads of torch (default: %(default)s)")
        own.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
        own.add_argument("--plot", type=Path, metavar="FILE", help="also draw the figures here: .png, .svg or .pdf")
        own.set_defaults(benchmark=benchmark)
    return run(parser, _run, argv)


def _run(arguments: argparse.Namespace) -> int:
    check_writable("--json", arguments.json)
    check_writable("--plot", arguments.plot)
    plot, form = arguments.plot, "" if arguments.plot is None else arguments.plot.suffix.lstrip(".").lower()
    if plot is not None and form not in Figure().canvas.get_supported_filetypes():  # fail before minutes of measuring
        raise UsageError(f"--plot {plot}: cannot draw a {form or 'file without an ending'}; use .png, .svg or .pdf")
    figures = _measure(arguments)
    if plot is not None:
        drawn = io.BytesIO()
        arguments.benchmark.plot(figures).savefig(drawn, format=form, dpi=150)
        write_whole(plot, drawn.getvalue())
    return 0


def _measure(arguments: argparse.Namespace) -> Figures:
    """Runs a benchmark, prints its figures, writes them where they are wanted, and returns them."""
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
