"""Train, score and compare agents over several seeds: `aaren-rl compare`."""

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime
from itertools import product
from pathlib import Path

from ..base.ranges import GPUS, RETURN, SEED
from ..cli import Parser, import_registering, positive, progress_bar, run, shell_line, split_at_dashes
from ..envs import UsageError, is_own, task_name
from ..envs.load.sources import OF_THE_TABLE, default_name
from ..policies.names import AGENTS, find_agent
from ..sweep.processes import CellJob, make_job
from ..sweep.schedule import run_cells
from ..train.settings import presets
from .cells import check_comparable, write_results

COMPARED = ["decision-aaren", "decision-transformer"]  # where no others are asked for
DESCRIPTION = """\
Train agents over several seeds, score them on the same episodes, and write a report: report.html, report.md,
results.json and a TensorBoard folder. What is trained already is read, what is missing is trained.

  aaren-rl compare --env hopper-medium --agents decision-aaren decision-transformer --seeds 3
  aaren-rl compare --env hopper-medium walker2d-medium --seeds 5 --source d4rl --out paper
  aaren-rl compare --env-id MyEnv-v0 --register my_package --source my.hdf5       # data of your own
  tensorboard --logdir comparison/tensorboard
"""
EPILOG = """\
Settings that train has and compare has not go behind a --: compare --env hopper-medium -- --width 64 --layers 2
"""


def make_parser() -> Parser:
    """The command line."""
    parser = Parser("compare", DESCRIPTION, "--env NAME [NAME ...] [options] [-- settings of train]", epilog=EPILOG)
    add = parser.add_argument
    add("--env", nargs="+", metavar="NAME", help="tasks, such as hopper-medium; with --env-id names for the data")
    agents = f"of {', '.join(AGENTS)} [first two]"
    add("--agents", nargs="+", metavar="NAME", default=COMPARED, help=agents)
    add("--seeds", type=positive, metavar="N", default=3, help="training seeds 0 to N - 1 [3]")
    add("--updates", type=positive, metavar="N", help="gradient steps, for every agent (the preset's)")
    add("--source", nargs="+", metavar="S", default=["auto"], help="data, as train's; several files of your own [auto]")
    add("--env-id", metavar="ID", help="your own Gymnasium environment, with --source FILE ...")
    add("--env-kwargs", metavar="JSON", help="arguments of that environment, as a JSON object")
    add("--ref-min-score", type=RETURN.number, metavar="X", help="return that scores 0, with --env-id")
    add("--ref-max-score", type=RETURN.number, metavar="X", help="return that scores 100, with --env-id")
    add("--preset", metavar="NAME", default="default", help=f"settings to start from: {' or '.join(presets())}")
    add("--episodes", type=positive, metavar="N", default=20, help="episodes a score [20]")
    add("--eval-seed", type=SEED.integer, metavar="S", default=1000, help="environment i is reset with S + i [1000]")
    add("--target-returns", type=RETURN.number, nargs="+", metavar="R", help="returns to ask for in the sweep")
    add("--out", type=Path, metavar="DIR", default=Path("comparison"), help="report and runs go here [comparison]")
    add("--jobs", type=positive, metavar="N", help="runs at once, one thread each (one a core)")
    ray = "train on Ray: of its own, or the cluster at ADDRESS"
    add("--ray", nargs="?", const="local", metavar="ADDRESS", help=ray)
    add("--gpus-per-run", type=GPUS.number, metavar="X", default=0.0, help="with --ray: share of a GPU [0]")
    parser.add_shared()
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    own, settings = split_at_dashes(argv)
    parser = make_parser()
    parser.set_defaults(settings=settings, line=shell_line("compare", [*own, *(["--", *settings] if settings else [])]))
    return run(parser, compare, own)


def compare(arguments: argparse.Namespace) -> int:
    """Trains what is missing, scores everything, writes the report; returns the exit code."""
    # Late: these take seconds, which --help and mistakes on the command line need not wait for.
    from ..base.machine import torch_threads
    from ..evaluate.scores import above_data
    from ..policies.folder import read_card
    from .imitation import imitation, imitation_differences
    from .measure import Evaluation, gather, measured_on
    from .report.figures import NARROW, OVERVIEW, figures, overview
    from .report.write import format_comparison, write_report
    from .tensorboard import write_board

    import_registering(arguments.register)
    jobs = _jobs(arguments)
    if code := run_cells(jobs, jobs=arguments.jobs, ray_address=arguments.ray, gpus_per_cell=arguments.gpus_per_run):
        print("stopped; the same command continues from here", file=sys.stderr)
        return code
    returns = arguments.target_returns and tuple(arguments.target_returns)
    if returns and not any(find_agent(agent).conditioned for agent in arguments.agents):
        print(f"note: --target-returns has no effect with {', '.join(arguments.agents)}", file=sys.stderr)
    episodes, in_sweep = arguments.episodes, max(1, arguments.episodes // 2)
    how = Evaluation(episodes, arguments.eval_seed, in_sweep, returns)
    # Times of an action are taken on one thread, as a small robot's computer would have.
    with torch_threads(1), progress_bar(iterable=jobs, desc="scoring", unit="run") as bar:
        cells = [gather(j.run, how, lambda step, _: bar.set_postfix_str(f"step {step}", refresh=False)) for j in bar]
    check_comparable(cells)
    cards = [card for card in (read_card(job.run) for job in jobs[::-1]) if card.return_range is not None]
    for env, card in {card.env: card for card in cards}.items():
        if note := above_data([card.target_return, *(returns or ())], card):
            print(f"{env}: {note}", file=sys.stderr)
    settings = {
        "command": arguments.line,
        "preset": jobs[0].preset,
        "episodes": arguments.episodes,
        "eval_seed": arguments.eval_seed,
        **({"train": arguments.settings} if arguments.settings else {}),
        "date": datetime.now().astimezone().isoformat(" ", "minutes"),
        **measured_on(),
    }
    differences = imitation_differences(cells)
    errors: dict[str, Sequence[object]] = {"imitation": imitation(cells), "imitation_differences": differences}
    out: Path = arguments.out
    write_results(out / "results.json", cells, settings, errors)
    write_report(out, cells, settings)
    drawn = figures(cells) | {OVERVIEW: overview(cells, NARROW)}  # TensorBoard shows all in one small size
    write_board(out, cells, drawn, (out / "report.md").read_text(encoding="utf-8"))
    print(f"\n{format_comparison(cells)}\n\nreport: {out / 'report.html'}")
    return 0


def _jobs(arguments: argparse.Namespace) -> list[CellJob]:
    options = ("env_id", "env_kwargs", "ref_min_score", "ref_max_score", "updates")
    shared = {name: value for name in options if (value := getattr(arguments, name)) is not None}
    more = [*([] if arguments.register is None else ["--register", arguments.register]), *arguments.settings]
    jobs = []
    for env, source in _tasks(arguments.env, arguments.source, arguments.env_id):
        task = {"env": task_name(env, source, arguments.env_id), "source": source, **shared}
        for seed, agent in product(range(arguments.seeds), dict.fromkeys(arguments.agents)):
            run_of = {**task, "agent": agent, "seed": seed}
            jobs.append(make_job(run_of, arguments.out / "runs", more, arguments.preset))
    return jobs


def _tasks(names: Sequence[str] | None, sources: Sequence[str], env_id: str | None) -> list[tuple[str, str]]:
    own = [is_own(source, env_id, (names or [default_name(source)])[0]) for source in sources]
    if not any(own):
        if names is None:
            raise UsageError("--env is missing, for example --env hopper-medium; data of your own need --env-id too")
        if len(sources) > 1:
            raise UsageError("--source: the tasks of --env share one; several files are for --env-id")
        return [(name, sources[0]) for name in dict.fromkeys(names)]
    if of_table := [source for source in sources if source in OF_THE_TABLE]:
        if env_id is None:
            raise UsageError(f"--source: {of_table[0]} is for the tasks of --env; compare other data on their own")
        raise UsageError(f"--env-id {env_id} needs a dataset: --source PATH of an HDF5 file, not {of_table[0]}")
    if env_id is None and (files := [source for source in sources if not source.startswith("minari:")]):
        raise UsageError(f"--source {files[0]}: agents are compared by playing; name the environment with --env-id ID")
    names = [default_name(source) for source in sources] if names is None else list(names)
    if not all(own) or len(names) != len(sources) or len(set(names)) < len(names):
        raise UsageError(
            f"--env, --source: {len(names)} names ({', '.join(names)}) for {len(sources)} sources; data of your own "
            "need a file and a name each"
        )
    return list(zip(names, sources, strict=True))
