"""Train an agent offline, score it in MuJoCo while it trains, and leave a policy folder: `python -m aaren_rl.train`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from ..cli import Parser, StopRequest, choose_device, import_registering, positive
from ..envs import Episodes, Reference, Task, is_own, load_task, task_name
from ..envs.data.names import default_name
from ..errors import run_command
from ..policies.names import AGENTS
from ..runs.folder import RunFolder
from .acceleration import check_compiler
from .config import DataConfig, RunConfig
from .loop import _Run
from .ranks import Ranks, join_ranks
from .settings import Nested, add_settings, build_config, given_settings, load_preset, override, preset_names

SHOWN = {"env", "source", "env_id", "context", "rollout", "target_return", "updates"}  # settings that --help lists

DESCRIPTION = """\
Train an agent offline on a MuJoCo task, score it while it trains, and save the policy.

  python -m aaren_rl.train --env hopper-medium                                # Decision-Aaren, a few minutes
  python -m aaren_rl.train --env hopper-medium --agent decision-transformer   # the baseline
  tensorboard --logdir runs                                                   # both, side by side
"""
EPILOG = """\
The data set is D4RL's file where it lies in ~/.d4rl/datasets (or $D4RL_DATASET_DIR); otherwise a local set, made
on first use by behaviour policies that ship with the package. The policy lands in <out>/<env>/<agent>/seed<N>/;
score it with python -m aaren_rl.evaluate. Exit codes: 2 usage, 3 data, 4 checkpoint, 5 environment, 6 numerics,
7 resources; 143 and 130 after SIGTERM and Ctrl-C, which save first (a second Ctrl-C leaves at once).
"""


def make_parser(*, show_all: bool) -> Parser:
    """The command line; `show_all` lists every setting in the help."""
    parser = Parser("train", DESCRIPTION)
    parser.epilog = EPILOG
    if not show_all:
        parser.usage = "python -m aaren_rl.train --env NAME [options]"
    add_settings(parser, SHOWN, show_all=show_all)
    parser.add_argument(
        "--agent", choices=AGENTS, metavar="NAME", default="decision-aaren", help=f"{', '.join(AGENTS)} [the first]"
    )
    parser.add_argument(
        "--preset", metavar="NAME", default="default", help=f"settings to start from: {' or '.join(preset_names())}"
    )
    parser.add_argument("--seed", type=int, metavar="N", default=0, help="training seed [0]")
    parser.add_argument("--register", metavar="MODULE", help="import this module, which registers your environment")
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("runs"), help="where runs go [runs]")
    parser.add_argument("--device", metavar="NAME", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--threads", type=positive, metavar="N", help="CPU threads (default: all cores)")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model: minutes first, for GPUs")
    parser.add_argument("--resume", action="store_true", help="go on with the run in its folder")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("--help-all", action="store_true", help="list every setting, with its default")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = make_parser(show_all="--help-all" in argv)
    arguments = parser.parse_args(argv)
    if arguments.help_all:
        parser.print_help()
        return 0
    data = given_settings(arguments).get("data", {})
    if "env" not in data and not is_own(data.get("source", ""), data.get("env_id")):
        parser.error("--env is missing, for example --env hopper-medium")
    return run_command(lambda: train(arguments), debug=arguments.debug)


def train(arguments: argparse.Namespace) -> int:
    """Set-up, loop, last evaluation; returns the exit code."""
    with join_ranks() as ranks:
        return _train(arguments, ranks)


def _train(arguments: argparse.Namespace, ranks: Ranks) -> int:
    given, asked, path = ranks.in_turn(lambda: plan(arguments))
    device = ranks.in_turn(lambda: ranks.device(choose_device(arguments.device)))
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    with ranks.in_turn(lambda: RunFolder(path, held=ranks.is_writer)) as folder:
        config = ranks.share(lambda: folder.resume(given) if arguments.resume else folder.start(asked))
        task, episodes = ranks.in_turn(lambda: load_data(config.data))
        ranks.share(lambda: folder.write_config(config))  # not before the data: a mistyped path leaves no run behind
        with StopRequest() as stop:
            run = _Run(config, task, episodes, device, path, ranks, compiled=arguments.compile)
            return run.play(stop, resume=arguments.resume)


def plan(arguments: argparse.Namespace) -> tuple[Nested, RunConfig, Path]:
    """What the command line asks for: its own settings, the whole configuration, and the run folder."""
    if arguments.compile:
        check_compiler()
    import_registering(arguments.register)
    given = given_settings(arguments)
    given["data"].setdefault("env", default_name(given["data"].get("source", "")))  # a name for data of your own
    preset = load_preset(arguments.preset, arguments.agent)
    asked = build_config(arguments.agent, arguments.seed, override(preset, given))
    name = task_name(asked.data.env, asked.data.source, asked.data.env_id)  # before it becomes part of a path
    return given, asked, arguments.out / name / arguments.agent / f"seed{arguments.seed}"


def load_data(data: DataConfig) -> tuple[Task, Episodes]:
    """The task and its episodes.

    Raises:
        EnvsError: see `envs.load_task`.
    """
    reference = None
    if data.ref_min_score is not None and data.ref_max_score is not None:
        reference = Reference("reference returns given by the user", data.ref_min_score, data.ref_max_score)
    return load_task(
        data.env,
        data.source,
        env_id=data.env_id,
        reference=reference,
        clip_actions=data.clip_actions,
        max_episode_steps=data.max_episode_steps,
        local_steps=data.local_steps,
    )
