"""The command line of scripts/bench."""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from aaren_rl.base.errors import UsageError
from aaren_rl.base.files import check_outputs, write_whole
from aaren_rl.bench.command import make_parser, measure
from aaren_rl.cli import run

from . import learning, memory, rollout, scan, steering, train

BENCHMARKS = rollout, learning, steering, memory, train, scan  # besides what `make_parser` says, with `plot(figures)`


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one benchmark. Returns the exit code."""
    parser, parts = make_parser("scripts/bench", BENCHMARKS)
    for part in parts:
        part.add_argument("--plot", type=Path, metavar="FILE", help="also draw the figures here: .png, .svg or .pdf")
    return run(parser, _run, argv)


def _run(arguments: argparse.Namespace) -> int:
    check_outputs({"--json": arguments.json, "--plot": arguments.plot})
    plot, form = arguments.plot, "" if arguments.plot is None else arguments.plot.suffix.lstrip(".").lower()
    if plot is not None and form not in Figure().canvas.get_supported_filetypes():  # fail before minutes of measuring
        raise UsageError(f"--plot {plot}: cannot draw a {form or 'file without an ending'}; use .png, .svg or .pdf")
    figures = measure(arguments)
    if plot is not None:
        drawn = io.BytesIO()
        arguments.benchmark.plot(figures).savefig(drawn, format=form, dpi=150)
        write_whole(plot, drawn.getvalue())
    return 0
