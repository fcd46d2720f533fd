"""Many training runs at once, on this machine's cores or on Ray: `python -m aaren_rl.sweep GRID`.

Every run is a process of its own, `python -m aaren_rl.train ...`, so that one that dies takes no other with it. A sweep
can be stopped and called again: finished runs are left as they are, the others go on from their last checkpoint.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ..cli import Parser, positive
from ..errors import run_command
from .grid import read_grid
from .schedule import run_cells

DESCRIPTION = """\
Train a grid of runs, several at once; call it again to go on where it was stopped.

  python -m aaren_rl.sweep paper --out runs/paper -- --source local
  python -m aaren_rl.sweep grid.yaml --ray --gpus-per-run 0.25
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    end = argv.index("--") if "--" in argv else len(argv)
    parser = Parser("sweep", DESCRIPTION)
    parser.usage = "python -m aaren_rl.sweep GRID [options] [-- arguments of aaren_rl.train for every run]"
    parser.add_argument("grid", metavar="GRID", help="a YAML file, or paper: the 120 runs of the paper's Table 1")
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("runs"), help="where runs go [runs]")
    parser.add_argument("--jobs", type=positive, metavar="N", help="runs at once (default: one a core; all Ray has)")
    parser.add_argument(
        "--ray", nargs="?", const="local", metavar="ADDRESS", help="run on Ray: of its own, or the cluster at ADDRESS"
    )
    parser.add_argument("--gpus-per-run", type=float, metavar="X", default=0.0, help="with --ray: share of a GPU [0]")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    arguments = parser.parse_args(argv[:end])
    return run_command(lambda: _sweep(arguments, argv[end + 1 :]), debug=arguments.debug)


def _sweep(arguments: argparse.Namespace, more: list[str]) -> int:
    cells = read_grid(arguments.grid).cells(arguments.out, more)
    gpus = arguments.gpus_per_run
    return run_cells(cells, jobs=arguments.jobs, ray_address=arguments.ray, gpus_per_cell=gpus)
