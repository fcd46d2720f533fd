"""Train, score and compare agents over several seeds: `python -m aaren_rl.compare`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..cli import Parser, import_registering, positive, progress_bar, run, split_at_dashes
from ..envs import task_name
from ..policies.names import AGENTS
from ..sweep.processes import CellJob
from ..sweep.schedule import run_cells
from ..train.settings import preset_names
from .cells import Cell, check_comparable, write_results
from .measure import Evaluation, gather

COMPARED = ["decision-aaren", "decision-transformer"]  # where no others are asked for
DESCRIPTION = """\
Train agents over several seeds, score them on the same episodes, and write a report: report.html, report.md,
results.json and a TensorBoard folder. What is trained already is read, what is missing is trained.

  python -m aaren_rl.compare --env hopper-medium --agents decision-aaren decision-transformer --seeds 3
  python -m aaren_rl.compare --env hopper-medium walker2d-medium --seeds 5 --source d4rl --out paper
  tensorboard --logdir comparison/tensorboard
"""
EPILOG = """\
Settings that train has and compare has not go behind a --: compare --env hopper-medium -- --width 64 --layers 2
"""


def make_parser() -> Parser:
    """The command line."""
    parser = Parser("compare", DESCRIPTION)
    parser.epilog = EPILOG
    parser.usage = "python -m aaren_rl.compare --env NAME [NAME ...] [options] [-- settings of train]"
    add = parser.add_argument
    add("--env", nargs="+", metavar="NAME", required=True, help="tasks, such as hopper-medium")
    add(
        "--agents",
        nargs="+",
        choices=AGENTS,
        metavar="NAME",
        default=COMPARED,
        help=f"of {', '.join(AGENTS)} [first two]",
    )
    add("--seeds", type=positive, metavar="N", default=3, help="training seeds 0 to N - 1 [3]")
    add("--updates", type=positive, metavar="N", help="training updates, for every agent (the preset's)")
    add("--source", metavar="S", default="auto", help="data, as train's [auto]")
    add("--preset", metavar="NAME", default="default", help=f"settings to start from: {' or '.join(preset_names())}")
    add("--episodes", type=positive, metavar="N", default=20, help="episodes a score [20]")
    add("--eval-seed", type=int, metavar="S", default=1000, help="environment i is reset with S + i [1000]")
    add("--target-returns", type=float, nargs="+", metavar="R", help="returns to ask for in the sweep")
    add("--out", type=Path, metavar="DIR", default=Path("comparison"), help="report and runs go here [comparison]")
    add("--jobs", type=positive, metavar="N", help="runs at once, one thread each (one a core)")
    add(
        "--ray", nargs="?", const="local", metavar="ADDRESS", help="train on Ray: of its own, or the cluster at ADDRESS"
    )
    add("--gpus-per-run", type=float, metavar="X", default=0.0, help="with --ray: share of a GPU [0]")
    parser.add_shared()
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    own, settings = split_at_dashes(argv)
    parser = make_parser()
    parser.set_defaults(settings=settings)
    return run(parser, compare, own)


def compare(arguments: argparse.Namespace) -> int:
    """Trains what is missing, scores everything, writes the report; returns the exit code."""
    # Late: matplotlib and scipy take a second, which --help and mistakes on the command line need not wait for.
    from .imitation import imitation, imitation_differences
    from .report.figures import figures
    from .report.write import format_comparison, write_report
    from .tensorboard import write_board

    import_registering(arguments.register)
    jobs = _jobs(arguments)
    if code := run_cells(jobs, jobs=arguments.jobs, ray_address=arguments.ray, gpus_per_cell=arguments.gpus_per_run):
        print("stopped; the same command goes on from here", file=sys.stderr)
        return code
    cells = _gather(jobs, arguments)
    check_comparable(cells)
    settings = {
        "command": "compare",
        "preset": arguments.preset,
        "episodes": arguments.episodes,
        "eval_seed": arguments.eval_seed,
        **({"train": arguments.settings} if arguments.settings else {}),
    }
    statistics: dict[str, Sequence[Any]] = {
        "imitation": imitation(cells),
        "imitation_differences": imitation_differences(cells),
    }
    write_results(arguments.out / "results.json", cells, settings, statistics)
    write_report(arguments.out, cells, settings)
    write_board(arguments.out, cells, figures(cells), (arguments.out / "report.md").read_text(encoding="utf-8"))
    print(f"\n{format_comparison(cells)}\n")
    print(f"report: {arguments.out / 'report.html'}")
    return 0


def _jobs(arguments: argparse.Namespace) -> list[CellJob]:
    """One training run a task, agent and seed."""
    jobs = []
    for env in arguments.env:
        name = task_name(env, arguments.source, None)
        for seed in range(arguments.seeds):
            for agent in dict.fromkeys(arguments.agents):
                run = arguments.out / "runs" / name / agent / f"seed{seed}"
                given = ["--env", env, "--agent", agent, "--seed", str(seed), "--source", arguments.source]
                given += ["--preset", arguments.preset, "--out", str(arguments.out / "runs"), *arguments.settings]
                if arguments.updates is not None:
                    given += ["--updates", str(arguments.updates)]
                if arguments.register is not None:
                    given += ["--register", arguments.register]
                jobs.append(CellJob(tuple(given), run))
    return jobs


def _gather(jobs: Sequence[CellJob], arguments: argparse.Namespace) -> list[Cell]:
    how = Evaluation(
        episodes=arguments.episodes,
        seed=arguments.eval_seed,
        sweep_episodes=max(1, arguments.episodes // 2),
        target_returns=None if arguments.target_returns is None else tuple(arguments.target_returns),
    )
    # Times of an action are taken on one thread, as a small robot's computer would have.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        cells = []
        with progress_bar(total=len(jobs), desc="scoring", unit="run") as bar:
            for job in jobs:
                cells.append(gather(job.run, how, lambda step, _: bar.set_postfix_str(f"step {step}", refresh=False)))
                bar.update()
        return cells
    finally:
        torch.set_num_threads(threads)
