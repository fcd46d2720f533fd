"""Train SAC in an environment and make D4RL-like data sets of it: `python -m aaren_rl.collect`."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from ..cli import Parser, StopRequest, choose_device, import_registering, positive, run
from ..envs import load_task
from ..envs.data.minari.spec import minari_data_dir
from ..envs.data.minari.write import write_minari
from ..errors import UsageError
from ..ranges import COUNT_FROM_0, POSITIVE, RETURN, SAC_SEED, SHARE, THREADS
from ..runs.folder import RunFolder
from .checkpoint import Saved, load_run
from .config import LATER, CollectConfig, new_config, read_config, resumed_config, write_config
from .levels import LEVELS, Source, Stopped, choose_checkpoints, dataset_name, random_return, write_levels
from .target import Target, env_name, inspect_env

DESCRIPTION = """\
Train SAC (stable-baselines3) in a Gymnasium environment, then write data sets as D4RL's: random,
medium, medium-replay, medium-expert and expert.

  python -m aaren_rl.collect --env Ant-v4 --steps 1000000
  python -m aaren_rl.collect --env Pendulum-v1 --steps 20000 --stop-at-return -200
  python -m aaren_rl.train --env ant-medium --source collected/Ant-v4/seed0/datasets/ant-medium.hdf5
"""
EPILOG = """\
All lands in <out>/<env>/seed<N>/, the data in datasets/. Ctrl-C saves, --resume goes on; --levels
with a run that is there writes data from what it has, without training. Expert is the best
checkpoint, medium the one nearest to a third of the way to it from random actions, both acting as
in training (stochastic); medium-replay is all experience up to medium.
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
    add("--stop-at-return", type=RETURN.number, metavar="R", default=unset, help="stop at this mean return")
    add("--stop-at-score", type=RETURN.number, metavar="S", default=unset, help="the same as a D4RL score")
    add("--checkpoint-every", type=positive, metavar="N", default=unset, help="save and evaluate every N steps [20000]")
    add("--envs", type=positive, metavar="N", default=unset, help="training environments side by side [4]")
    add("--updates-per-step", type=POSITIVE.number, metavar="X", default=unset, help="updates a step [0.5]")
    add("--learning-rate", type=POSITIVE.number, metavar="X", default=unset, help="of all its networks [3e-4]")
    add(
        "--random-steps",
        type=COUNT_FROM_0.integer,
        metavar="N",
        default=unset,
        help="random actions first [5000; at most a tenth of --steps]",
    )
    add("--max-episode-steps", type=positive, metavar="N", help="cut episodes after N steps (the environment's own)")
    add("--levels", choices=LEVELS, nargs="+", metavar="LEVEL", help="data sets to write [all]")
    add("--dataset-steps", type=positive, metavar="N", default=200_000, help="steps of each policy's data [200000]")
    add(
        "--medium-fraction",
        type=SHARE.number,
        metavar="X",
        default=1 / 3,
        help="medium's place from random to expert [1/3]",
    )
    add("--minari", action="store_true", help="write the data as Minari datasets too: collected/<env>/<level>-v0")
    add("--seed", type=SAC_SEED.integer, metavar="N", default=0, help="training seed [0]")
    add("--out", type=Path, metavar="DIR", default=Path("collected"), help="where runs go [collected]")
    add("--resume", action="store_true", help="go on with the run in its folder")
    add("--threads", type=THREADS.integer, metavar="N", default=1, help="torch threads of the training [1]")
    parser.add_shared(device="cpu")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return run(make_parser(), collect, argv)


def collect(arguments: argparse.Namespace) -> int:
    """Trains, or goes on, then makes the data; returns the exit code."""
    import_registering(arguments.register)
    device = choose_device(arguments.device)
    torch.set_num_threads(arguments.threads)
    given = {name: getattr(arguments, name) for name in SETTINGS if name in arguments}
    path = arguments.out / env_name(arguments.env) / f"seed{arguments.seed}"
    there = (path / "config.yaml").exists()
    # Asking for levels of a run that is there means: as it is.
    trains = arguments.resume or arguments.levels is None or not there
    stored = read_config(path / "config.yaml") if there and (arguments.resume or not trains) else None
    target = inspect_env(arguments.env, arguments.max_episode_steps or (stored.horizon if stored else None))
    if stored is None:
        config = new_config(target, arguments.seed, given)
    else:
        config = resumed_config(stored, target, given, may_change=LATER if trains else set())
    with StopRequest() as stop, RunFolder(path) as folder:
        if stored is None and arguments.resume:
            folder.require_run()
        elif stored is None:
            folder.require_new()
        saved = load_run(path)
        if trains:
            saved = _train(config, target, folder, saved, device, stop)
        if stop.signal is not None:
            print(f"stopped at step {saved.steps if saved else 0:,}; --resume goes on from here", file=sys.stderr)
            return stop.exit_code
        return _write_levels(arguments, target, path, saved, stop)


def _train(
    config: CollectConfig,
    target: Target,
    folder: RunFolder,
    saved: Saved | None,
    device: torch.device,
    stop: StopRequest,
) -> Saved:
    # Imports stable-baselines3, which takes seconds: not before all arguments are known to be right.
    from .run import CollectRun

    run = CollectRun(config, target, folder.path, saved, device)
    write_config(folder.config_file, config)
    print(f"run folder: {folder.path}", file=sys.stderr)
    run.play(stop)
    return run.saved()


def _write_levels(
    arguments: argparse.Namespace, target: Target, path: Path, saved: Saved | None, stop: StopRequest
) -> int:
    """Makes the data sets that are not there yet and prints a table of all; returns the exit code."""
    if saved is None:
        raise UsageError(f"{path}: nothing was saved yet; --resume trains")
    seed = arguments.seed
    choice = choose_checkpoints(saved.evaluations, random_return(target, seed), arguments.medium_fraction)
    print(choice, file=sys.stderr)
    source = Source(target, path, seed, saved.replay, saved.restarts, choice, arguments.register)
    levels = [level for level in LEVELS if level in (arguments.levels or LEVELS)]
    files = {level: path / "datasets" / f"{dataset_name(target, level)}.hdf5" for level in levels}
    try:
        print(write_levels(source, files, arguments.dataset_steps, stop))
    except Stopped:
        print("stopped; the same command with --levels makes what is missing", file=sys.stderr)
        return stop.exit_code
    if arguments.minari:
        _write_minari(target, files)
    return 0


def _write_minari(target: Target, files: Mapping[str, Path]) -> None:
    """The data sets as Minari datasets too; one that is there already is left alone, with a line that says so."""
    for level, file in files.items():
        dataset_id = f"collected/{env_name(target.env_id).lower()}/{level}-v0"
        folder = minari_data_dir(dataset_id).parent
        if folder.exists():
            print(f"{folder}: is there already and stays as it is; delete it to write it anew", file=sys.stderr)
            continue
        _, episodes = load_task(
            f"collected-{file.stem}", str(file), env_id=target.env_id, max_episode_steps=target.horizon
        )
        description = f"made by aaren-rl's collect, not D4RL's; {'; '.join(episodes.notes)}"
        print(write_minari(dataset_id, episodes, env_id=target.env_id, description=description))
