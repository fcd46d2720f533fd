"""Train SAC in an environment and make D4RL-like data sets of it: `python -m aaren_rl.collect`."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from .cli import Parser, StopRequest, choose_device, positive
from .collect_checkpoint import load_run
from .collect_config import CollectConfig, new_config, read_config, resumed_config, write_config
from .envs.collect import Target, env_name, inspect_env
from .errors import UsageError, run_command
from .run import RunFolder

DESCRIPTION = """\
Train SAC (stable-baselines3) in a Gymnasium environment, and keep checkpoints and all experience.

  python -m aaren_rl.collect --env Ant-v4 --steps 1000000
  python -m aaren_rl.collect --env Pendulum-v1 --steps 20000 --stop-at-return -200
"""
EPILOG = """\
Everything lands in <out>/<env>/seed<N>/. Ctrl-C saves; --resume goes on.
Exit codes: 2 usage, 3 data, 4 checkpoint, 5 environment, 6 numerics.
"""
# Those of the command line; the seed is in the run's path.
SETTINGS = [field.name for field in dataclasses.fields(CollectConfig) if field.name != "seed"]


def make_parser() -> Parser:
    """The command line."""
    parser = Parser("collect", DESCRIPTION)
    parser.epilog = EPILOG
    parser.usage = "python -m aaren_rl.collect --env ID [options]"
    add, unset = parser.add_argument, argparse.SUPPRESS
    add("--env", metavar="ID", required=True, help="Gymnasium environment with continuous actions, such as Hopper-v4")
    add("--steps", type=positive, metavar="N", default=unset, help="environment steps to train for [1000000]")
    add("--stop-at-return", type=float, metavar="R", default=unset, help="stop at an evaluation with this mean return")
    add("--stop-at-score", type=float, metavar="S", default=unset, help="the same as a D4RL score (MuJoCo tasks)")
    add("--checkpoint-every", type=positive, metavar="N", default=unset, help="save and evaluate every N steps [20000]")
    add("--envs", type=positive, metavar="N", default=unset, help="training environments side by side [4]")
    add("--updates-per-step", type=float, metavar="X", default=unset, help="gradient updates an environment step [0.5]")
    add("--learning-rate", type=float, metavar="X", default=unset, help="of actor, critics and entropy [3e-4]")
    add(
        "--random-steps",
        type=int,
        metavar="N",
        default=unset,
        help="random actions first [5000; at most a tenth of --steps]",
    )
    add("--max-episode-steps", type=positive, metavar="N", help="cut episodes after N steps (the environment's own)")
    add("--register", metavar="MODULE", help="import a module of yours that registers environments")
    add("--seed", type=int, metavar="N", default=0, help="training seed [0]")
    add("--out", type=Path, metavar="DIR", default=Path("collected"), help="where runs go [collected]")
    add("--resume", action="store_true", help="go on with the run in its folder")
    add("--threads", type=positive, metavar="N", default=1, help="torch threads; more hardly help nets this small [1]")
    add("--device", metavar="NAME", default="cpu", help="auto, cpu or cuda [cpu]")
    add("--debug", action="store_true", help="show the traceback of an error")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    arguments = make_parser().parse_args(argv)
    return run_command(lambda: collect(arguments), debug=arguments.debug)


def collect(arguments: argparse.Namespace) -> int:
    """Trains, or goes on; returns the exit code."""
    _register(arguments.register)
    device = choose_device(arguments.device)
    torch.set_num_threads(arguments.threads)
    given = {name: getattr(arguments, name) for name in SETTINGS if name in arguments}
    path = arguments.out / env_name(arguments.env) / f"seed{arguments.seed}"
    stored = read_config(path / "config.yaml") if arguments.resume and (path / "config.yaml").exists() else None
    target = inspect_env(arguments.env, arguments.max_episode_steps or (stored.horizon if stored else None))
    config = resumed_config(stored, target, given) if stored else new_config(target, arguments.seed, given)
    with StopRequest() as stop, RunFolder(path) as folder:
        if not arguments.resume:
            folder.require_new()
        elif stored is None:
            raise UsageError(f"{path}: no run to resume; leave --resume out to start one")
        return _train(config, target, folder, device, stop)


def _register(module: str | None) -> None:
    """Imports a module that the user named, as `python -m` would find it."""
    if module is None:
        return
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"--register {module}: {error}; is it in this folder, or installed?") from error


def _train(config: CollectConfig, target: Target, folder: RunFolder, device: torch.device, stop: StopRequest) -> int:
    # Imports stable-baselines3, which takes seconds: not before all arguments are known to be right.
    from .collect_training import CollectRun

    run = CollectRun(config, target, folder.path, load_run(folder.path), device)
    write_config(folder.config_file, config)
    print(f"run folder: {folder.path}", file=sys.stderr)
    run.play(stop)
    if stop.signal is not None:
        print(f"stopped at step {run.trainer.steps:,}; --resume goes on from here", file=sys.stderr)
        return stop.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
