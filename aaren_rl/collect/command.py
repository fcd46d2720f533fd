"""Train SAC or DQN in an environment and write D4RL-like datasets: `aaren-rl collect`."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..base.errors import UsageError
from ..base.ranges import SAC_SEED, SHARE, THREADS
from ..cli import Parser, StopRequest, choose_device, import_registering, positive, run
from ..envs import load_task
from ..envs.data.minari.spec import minari_data_dir
from ..envs.data.minari.write import write_minari
from ..runs.folder import RunFolder
from .checkpoint import Saved, load_run
from .config import LATER, CollectConfig, env_name, inspect_env, make_config, read_config, read_kwargs, write_config
from .levels import LEVELS, Source, Stopped, choose_checkpoints, dataset_name, random_return, write_levels

DESCRIPTION = """\
Train SAC (Stable-Baselines3; DQN for discrete actions) in a Gymnasium environment, then write
datasets like those of D4RL: random, medium, medium-replay, medium-expert and expert.

  aaren-rl collect --env-id Ant-v4 --steps 1000000
  aaren-rl collect --env-id Pendulum-v1 --steps 20000 --checkpoint-every 2000 --stop-at-return -200
  aaren-rl collect --env-id CartPole-v1 --steps 50000 --checkpoint-every 2000
  aaren-rl train --env ant-medium --source collected/Ant-v4/seed0/datasets/ant-medium.hdf5
"""
EPILOG = """\
Files are written to <out>/<env>/seed<N>/, the data to its datasets/. Ctrl-C saves, --resume
continues. With an existing run, --levels writes data without training. Expert is the best
checkpoint. Medium is the one whose return is nearest to a third of the way from random actions to
expert. Both act as in training (stochastic). Medium-replay is all experience up to medium.
Exit codes: 2 usage, 3 data, 4 checkpoint, 5 environment, 6 numerics.
"""
SETTINGS = [field for field in dataclasses.fields(CollectConfig) if "help" in field.metadata]


def make_parser() -> Parser:
    """The command line."""
    parser = Parser("collect", DESCRIPTION, "--env-id ID [options]", epilog=EPILOG)
    add = parser.add_argument
    add("--env-id", metavar="ID", required=True, help="Gymnasium environment, such as Hopper-v4 or CartPole-v1")
    for field in SETTINGS:
        limits, flag = field.metadata["limits"], f"--{field.name.replace('_', '-')}"
        kind, letter = (limits.integer, "N") if field.type is int else (limits.number, "X")
        add(flag, type=kind, default=argparse.SUPPRESS, metavar=letter, help=field.metadata["help"])
    add(
        "--max-episode-steps",
        type=positive,
        metavar="N",
        help="truncate episodes after N steps [the environment's own]",
    )
    add("--env-kwargs", metavar="JSON", help="arguments of the environment, as a JSON object")
    add("--levels", choices=LEVELS, nargs="+", metavar="LEVEL", help="datasets to write [all]")
    add("--dataset-steps", type=positive, metavar="N", default=200_000, help="steps per policy [200000]")
    fraction = "return of medium, as a share of the way from random to expert [1/3]"
    add("--medium-fraction", type=SHARE.number, metavar="X", default=1 / 3, help=fraction)
    add("--minari", action="store_true", help="also write Minari datasets: collected/<env>/<level>-seed<N>-v0")
    add("--seed", type=SAC_SEED.integer, metavar="N", default=0, help="training seed [0]")
    add("--out", type=Path, metavar="DIR", default=Path("collected"), help="folder for runs [collected]")
    add("--resume", action="store_true", help="continue the run in its folder")
    add("--threads", type=THREADS.integer, metavar="N", default=1, help="torch threads in training [1]")
    parser.add_shared(device="cpu")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return run(make_parser(), collect, argv)


def collect(arguments: argparse.Namespace) -> int:
    """Trains or resumes, then writes the data; returns the exit code."""
    import_registering(arguments.register)
    device = choose_device(arguments.device)
    torch.set_num_threads(arguments.threads)
    given = {field.name: getattr(arguments, field.name) for field in SETTINGS if field.name in arguments}
    path = arguments.out / env_name(arguments.env_id) / f"seed{arguments.seed}"
    there = (path / "config.yaml").exists()
    # --levels with an existing run does not train.
    trains = arguments.resume or arguments.levels is None or not there
    stored = read_config(path / "config.yaml") if there and (arguments.resume or not trains) else None
    if arguments.env_kwargs is not None:
        given["env_kwargs"] = read_kwargs(arguments.env_kwargs)
    kwargs = given.get("env_kwargs", stored.env_kwargs if stored else {})
    limit = arguments.max_episode_steps or (stored.horizon if stored else None)
    horizon = inspect_env(arguments.env_id, limit, kwargs)
    config = make_config(stored, arguments.env_id, arguments.seed, horizon, given, LATER if trains else set())
    with StopRequest() as stop, RunFolder(path) as folder:
        if arguments.resume:
            folder.require_run()
        elif stored is None:
            folder.require_new()
        saved = load_run(path)
        if trains:
            # Stable-Baselines3 takes seconds to import: not before all arguments are checked.
            from .run import CollectRun

            if (
                saved
                and saved.steps < config.steps
                and any(config.reached(e.return_mean) for e in saved.evaluations[-1:])
            ):
                print("note: --stop-at-return or --stop-at-score is reached; a higher one trains on", file=sys.stderr)
            training = CollectRun(config, path, saved, device)
            write_config(path / "config.yaml", config)
            print(f"run folder: {path}", file=sys.stderr)
            training.play(stop)
            saved = training.saved()
        if stop.signal is not None:
            print(f"stopped at step {saved.steps if saved else 0:,}; --resume continues from here", file=sys.stderr)
            return stop.exit_code
        return _write_levels(arguments, config, path, saved, stop)


def _write_levels(
    arguments: argparse.Namespace, config: CollectConfig, path: Path, saved: Saved | None, stop: StopRequest
) -> int:
    """Writes the missing datasets and prints a table of all; returns the exit code."""
    if saved is None:
        raise UsageError(f"{path}: nothing is saved yet; --resume trains")
    choice = choose_checkpoints(saved.evaluations, random_return(config), arguments.medium_fraction)
    print(choice, file=sys.stderr)
    source = Source(config, path, saved, choice, arguments.dataset_steps, arguments.register)
    levels = [level for level in LEVELS if level in (arguments.levels or LEVELS)]
    files = {level: path / "datasets" / f"{dataset_name(config, level)}.hdf5" for level in levels}
    try:
        print(write_levels(source, files, stop))
    except Stopped:
        print("stopped; the same command with --levels writes the missing datasets", file=sys.stderr)
        return stop.exit_code
    for level, file in files.items() if arguments.minari else ():
        dataset_id = minari_id_of(config, level)
        folder = minari_data_dir(dataset_id).parent
        if folder.exists():
            print(f"{folder}: already exists and is kept; delete it to write it again", file=sys.stderr)
            continue
        name, horizon, kwargs = f"collected-{file.stem}", config.horizon, config.env_kwargs
        options: dict[str, Any] = {"env_id": config.env_id, "env_kwargs": kwargs, "max_episode_steps": horizon}
        _, episodes = load_task(name, str(file), **options)
        description = f"made by aaren-rl collect, not a D4RL dataset; {'; '.join(episodes.notes)}"
        made = config.made_with
        print(write_minari(dataset_id, episodes, env_id=config.env_id, env_kwargs=made, description=description))
    return 0


def minari_id_of(config: CollectConfig, level: str) -> str:
    """The id of a level's Minari dataset, in which Minari allows no dots."""
    env = env_name(config.env_id).lower().replace(".", "-")
    return f"collected/{env}/{level}-seed{config.seed}-v0"
