"""Train agents over several seeds, score them on the same episodes, and write a report: report.md with figures/, and
results.json. What is trained already is read, what is missing is trained.

  aaren-rl compare --env hopper-medium --seeds 3
  aaren-rl compare --env-id MyEnv-v0 --register my_package --source mine.hdf5
  aaren-rl compare --env hopper-medium --agents decision-aaren bc --seeds 5
  aaren-rl compare --env hopper-medium -- --width 64   # settings of train alone
  tensorboard --logdir comparison/runs      # the curves of all runs
"""

import argparse
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from ..base.errors import UsageError
from ..base.fields import COUNT, RETURN, SEED
from ..cli import Parser, import_registering, listed, progress_bar, run, shell_line, split_at_dashes
from ..envs.load import default_name, is_own, task_name
from ..envs.tasks.table import get_task
from ..policies.table import AGENTS
from ..sweep import add_places, request_run, train_all
from ..train.config import Request

COMPARED = ["decision-aaren", "decision-transformer"]  # where no others are asked for


def make_parser() -> Parser:
    """The command line."""
    parser = Parser("compare", __doc__, "--env NAME [NAME ...] [options] [-- settings of train]")
    add = parser.add_argument
    add("--env", nargs="+", metavar="NAME", help="tasks, such as hopper-medium; with --env-id names for the data")
    agents = f"of {', '.join(AGENTS)} [first two]"
    add("--agents", nargs="+", metavar="NAME", default=COMPARED, help=agents)
    add("--seeds", type=COUNT.integer, metavar="N", default=3, help="training seeds 0 to N - 1 [3]")
    add("--updates", type=COUNT.integer, metavar="N", help="gradient steps, for every agent (the preset's)")
    add("--source", nargs="+", metavar="S", default=["auto"], help="data, as train's; several files of your own [auto]")
    add("--env-id", metavar="ID", help="your own Gymnasium environment, with --source FILE ...")
    add("--episodes", type=COUNT.integer, metavar="N", default=20, help="episodes a score [20]")
    add("--eval-seed", type=SEED.integer, metavar="S", default=1000, help="environment i is reset with S + i [1000]")
    add("--target-returns", type=RETURN.number, nargs="+", metavar="R", help="returns to ask for in the sweep")
    add("--out", type=Path, metavar="DIR", default=Path("comparison"), help="report and runs go here [comparison]")
    add_places(parser)
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
    import torch

    from .measure import Evaluation, gather, measured_on, write_results
    from .report import format_comparison, write_report
    from .statistics import imitation

    import_registering(arguments.register)
    jobs = _jobs(arguments)
    if code := train_all(jobs, arguments.jobs, arguments.ray, arguments.gpus_per_run):
        return code
    episodes = arguments.episodes
    how = Evaluation(episodes, arguments.eval_seed, max(1, episodes // 2), arguments.target_returns)
    torch.set_num_threads(1)  # as a small robot's computer would have: times of an action are taken
    with progress_bar(iterable=jobs, desc="scoring", unit="run") as bar:
        cells = [gather(j.folder, how, lambda step, _: bar.set_postfix_str(f"step {step}", refresh=False)) for j in bar]
    settings = {
        "command": arguments.line,
        "preset": jobs[0].preset,
        "episodes": episodes,
        "eval_seed": arguments.eval_seed,
        **({"train": arguments.settings} if arguments.settings else {}),
        "date": datetime.now().astimezone().isoformat(" ", "minutes"),
        **measured_on(),
    }
    out: Path = arguments.out
    write_results(out / "results.json", cells, settings, {"imitation": imitation(cells)})
    write_report(out, cells, settings)
    print(f"\n{format_comparison(cells)}\n\nreport: {out / 'report.md'}")
    return 0


def _jobs(arguments: argparse.Namespace) -> list[Request]:
    env_id, updates = arguments.env_id, arguments.updates
    shared = {name: value for name, value in (("env_id", env_id), ("updates", updates)) if value is not None}
    more = [*([] if arguments.register is None else ["--register", arguments.register]), *arguments.settings]
    runs = arguments.out / "runs"
    return [
        request_run({"env": env, "agent": agent, "seed": seed, "source": source, **shared}, runs, more)
        for env, source in _tasks(arguments.env, arguments.source, env_id)
        for seed in range(arguments.seeds)
        for agent in dict.fromkeys(arguments.agents)
    ]


def _tasks(names: Sequence[str] | None, sources: Sequence[str], env_id: str | None) -> list[tuple[str, str]]:
    """Name and source of every task: names of the table with the one source, or custom datasets with a name each."""
    if not any(is_own(source, env_id, (names or [default_name(source)])[0]) for source in sources):
        if names is None or len(sources) > 1:
            raise UsageError("--env: give the tasks, with one --source; data of your own need --env-id too")
        return [(get_task(name).name, sources[0]) for name in dict.fromkeys(names)]
    if env_id is None and (files := [source for source in sources if not source.startswith("minari:")]):
        raise UsageError(f"--source {files[0]}: agents are compared by playing; name the environment with --env-id ID")
    names = [default_name(source) for source in sources] if names is None else names
    if len(set(names)) != len(sources):
        raise UsageError(f"--env, --source: {listed(names)} for {len(sources)} sources; give each dataset a name")
    return [(task_name(name, source, env_id), source) for name, source in zip(names, sources, strict=True)]
