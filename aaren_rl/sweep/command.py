"""Many training runs at once, on this machine's cores or on Ray: `aaren-rl sweep GRID`.

Every run is a process of its own, `aaren-rl train ...`, so that one that dies takes no other with it. A sweep can be
stopped and called again: finished runs are left as they are, the others go on from their last checkpoint.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..base.ranges import GPUS
from ..cli import Parser, positive, run, split_at_dashes
from .grid import read_grid
from .schedule import run_cells

DESCRIPTION = """\
Train a grid of runs, several at once; call it again to go on where it was stopped.

  aaren-rl sweep paper --out runs/paper -- --source local
  aaren-rl sweep paper --jobs-per-gpu 8                # on this machine's GPUs, eight runs on each
  aaren-rl sweep grid.yaml --ray --gpus-per-run 0.25
  aaren-rl sweep own.yaml --register my_package       # an environment of your own, see its docs
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    own, more = split_at_dashes(argv)
    parser = Parser("sweep", DESCRIPTION, "GRID [options] [-- arguments of train for every run]")
    add = parser.add_argument
    grids = "a YAML file; paper: the 120 runs of the paper's Table 1; local: the same sets, made locally"
    add("grid", metavar="GRID", help=grids)
    add("--out", type=Path, metavar="DIR", default=Path("runs"), help="where runs go [runs]")
    add("--jobs", type=positive, metavar="N", help="runs at once (default: one a core; all Ray has)")
    on_ray = "run on Ray: of its own, or the cluster at ADDRESS"
    add("--ray", nargs="?", const="local", metavar="ADDRESS", help=on_ray)
    shared = "processes at once on every GPU here, each of which sees one GPU"
    add("--jobs-per-gpu", type=positive, metavar="N", help=shared)
    add("--gpus-per-run", type=GPUS.number, metavar="X", default=0.0, help="with --ray: of a GPU [0]")
    parser.add_shared()
    return run(parser, lambda arguments: _sweep(arguments, more), own)


def _sweep(arguments: argparse.Namespace, more: list[str]) -> int:
    registering = [] if arguments.register is None else ["--register", arguments.register]
    cells = read_grid(arguments.grid).cells(arguments.out, [*registering, *more])
    on_gpus = {"gpus_per_cell": arguments.gpus_per_run, "jobs_per_gpu": arguments.jobs_per_gpu}
    return run_cells(cells, jobs=arguments.jobs, ray_address=arguments.ray, **on_gpus)
