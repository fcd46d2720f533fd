"""Many training runs at once, on this machine's cores or on Ray: `aaren-rl sweep GRID`.

Every run is a process of its own, so that one that dies takes no other with it. A sweep can be stopped and called
again: finished runs are skipped, the others go on from their last checkpoint.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..cli import Parser, run, split_at_dashes
from .grid import read_grid
from .pool import add_places, train_all

DESCRIPTION = """\
Train a grid of runs, several at once; call it again to go on where it was stopped.

  aaren-rl sweep local -- --updates 100                # briefly, 12 sets
  aaren-rl sweep grid.yaml                             # yours
  aaren-rl sweep grid.yaml --ray --gpus-per-run 0.25   # four runs on each GPU
  aaren-rl sweep grid.yaml --ray 10.0.0.1:6379         # on a cluster
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    own, more = split_at_dashes(argv)
    parser = Parser("sweep", DESCRIPTION, "GRID [options] [-- arguments of train for every run]")
    grids = "a YAML file; paper: the 120 runs of the paper's Table 1; local: the same sets, made locally"
    parser.add_argument("grid", metavar="GRID", help=grids)
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("runs"), help="where runs go [runs]")
    add_places(parser)
    parser.add_shared()
    return run(parser, lambda arguments: _sweep(arguments, more), own)


def _sweep(arguments: argparse.Namespace, more: list[str]) -> int:
    registering = [] if arguments.register is None else ["--register", arguments.register]
    requests = read_grid(arguments.grid).requests(arguments.out, [*registering, *more])
    return train_all(requests, arguments.jobs, arguments.ray, arguments.gpus_per_run)
