"""Measurements: `aaren-rl bench BENCHMARK`.

Every benchmark first tests the code it times against a reference. If they differ, it prints only an error.
"""

import argparse
import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

from matplotlib.figure import Figure

from ..base.errors import UsageError
from ..base.files import check_outputs, write_json, write_whole
from ..base.machine import Machine, torch_threads
from ..base.ranges import THREADS
from ..cli import Parser, import_registering, run
from . import rollout


def _parser(benchmarks: Sequence[ModuleType], prog: str) -> Parser:
    parser = Parser(description="Measure time and memory. Each benchmark has its own --help.", prog=prog)
    commands = parser.add_subparsers(required=True, metavar="BENCHMARK")
    for benchmark in benchmarks:
        name = benchmark.__name__.rpartition(".")[2]
        texts = {"help": benchmark.HELP, "description": benchmark.DESCRIPTION, "epilog": benchmark.EPILOG}
        own = commands.add_parser(name, **texts)
        benchmark.add_arguments(own)
        own.add_argument("--threads", type=THREADS.integer, default=1, help="threads of torch (default: %(default)s)")
        own.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
        own.add_argument("--plot", type=Path, metavar="FILE", help="also draw the figures here: .png, .svg or .pdf")
        own.set_defaults(benchmark=benchmark)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    check_outputs({"--json": arguments.json, "--plot": arguments.plot})
    plot, form = arguments.plot, "" if arguments.plot is None else arguments.plot.suffix.lstrip(".").lower()
    if plot is not None and form not in Figure().canvas.get_supported_filetypes():  # fail before minutes of measuring
        raise UsageError(f"--plot {plot}: cannot draw a {form or 'file without an ending'}; use .png, .svg or .pdf")
    import_registering(getattr(arguments, "register", None))
    benchmark = arguments.benchmark
    with torch_threads(arguments.threads):
        figures = benchmark.measure(arguments)
        machine = Machine.here()
    figures["machine"] = asdict(machine)
    device = figures.get("device", "cpu")
    print("\n".join([f"{machine}{'' if device == 'cpu' else f'; {device}'}", *benchmark.show(figures)]))
    if arguments.json is not None:
        write_json(arguments.json, figures)
    if plot is not None:
        drawn = io.BytesIO()
        benchmark.plot(figures).savefig(drawn, format=form, dpi=150)
        write_whole(plot, drawn.getvalue())
    return 0


def main(
    argv: Sequence[str] | None = None,
    *,
    benchmarks: Sequence[ModuleType] = (rollout,),
    prog: str = "aaren-rl bench",
) -> int:
    """Run one benchmark. Returns the exit code.

    Args:
        benchmarks: modules with HELP, DESCRIPTION and EPILOG, `add_arguments(parser)`, `measure(arguments)`, which
            returns figures, and `show(figures)` and `plot(figures)`, which return the lines to print and a matplotlib
            figure of them.
        prog: the program's name in its --help.
    """
    return run(_parser(benchmarks, prog), _run, argv)
