"""Train an agent offline, evaluate it in MuJoCo during training and save a policy folder: `aaren-rl train`.

The command line is built from the settings; `train_policy` and a sweep ask for runs by the same `Request`.
"""

import argparse
import typing
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..base.fields import COUNT, SEED, THREADS, Range
from ..cli import Parser, run, target_return
from ..policies.names import AGENTS
from .config import (
    RUN,
    SECTIONS,
    SETTINGS,
    Request,
    RunConfig,
    make_config,
    presets,
    settings_of,
)

# Settings that --help lists.
SHOWN = {"start_from", "env", "source", "env_id", "context", "rollout", "target_return", "updates"}

DESCRIPTION = """\
Train an agent offline, on logs of your own or on a MuJoCo task, score it while
it trains, and save the policy.

  aaren-rl train --env hopper-medium                # a few minutes
  aaren-rl train --source mine.hdf5                 # your logs, no simulator
  aaren-rl train --env-id MyEnv-v0 --register my_package --source mine.hdf5
  aaren-rl train --env hopper-medium --agent decision-transformer
  aaren-rl train --env hopper-medium --resume --updates 2000
  tensorboard --logdir runs                         # compare all runs
"""
EPILOG = """\
The dataset is D4RL's file if it is in ~/.d4rl/datasets (or $D4RL_DATASET_DIR). Otherwise it is a local dataset, made
on first use. The policy is saved in <out>/<env>/<agent>/seed<N>/ for aaren-rl evaluate. Exit codes: 2 usage,
3 data, 4 checkpoint, 5 environment, 6 numerics, 7 resources, 130 or 143 after Ctrl-C or SIGTERM, which save first.
"""


def make_parser(defaults: RunConfig | None = None, preset: str = "default") -> Parser:
    """The command line. Its help lists every setting if `defaults` of a preset are given."""
    parser = Parser("train", DESCRIPTION, "[--env NAME] [--source FILE] [options]", epilog=EPILOG)
    if defaults is not None:
        parser.epilog = f"In brackets: the values of {defaults.agent} in the preset {preset}.\n\n{EPILOG}"
    add = parser.add_argument
    add("--config", metavar="FILE", help="settings: the config.yaml of a run, or a part of one")
    _add_settings(parser, defaults)
    add("--agent", metavar="NAME", default=argparse.SUPPRESS, help=f"{', '.join(AGENTS)} [first]")
    add("--preset", metavar="NAME", default="default", help=f"default settings: {' or '.join(presets())}")
    seed = "training seed [0, or that of --config]"
    add("--seed", type=SEED.integer, metavar="N", default=argparse.SUPPRESS, help=seed)
    add("--out", type=Path, metavar="DIR", default=Path("runs"), help="parent folder of runs [runs]")
    add("--threads", type=THREADS.integer, metavar="N", help="CPU threads (default: all cores)")
    resumed = "resume this run; a larger --updates extends it, --source NEW is where the same data are now"
    add("--resume", action="store_true", help=resumed)
    add("--memory-map", action="store_true", help="map a file from the disk, as where memory is short")
    add("--save-every", type=COUNT.integer, metavar="N", help="also save a checkpoint every N gradient steps")
    parser.add_shared(device="auto")
    add("--help-all", action="store_true", help="list every setting, with its default")
    return parser


def _add_settings(parser: argparse.ArgumentParser, defaults: RunConfig | None) -> None:
    values = {} if defaults is None else settings_of(defaults)
    brief = {name: SETTINGS[name][1].default for name in ("context", "updates")}  # a model's settings import torch
    groups = {name: parser.add_argument_group(name) if values else parser for name in SECTIONS}
    hints = {name: typing.get_type_hints(cls) for name, cls in SECTIONS.items()}
    for name, (section, item) in SETTINGS.items():
        default = (values or brief).get(name)
        text = item.metadata["help"] + ("" if default is None else f" [{default}]")
        hint = hints[section][name]
        options = _typed(typing.get_args(hint) or (hint,), item.metadata["limits"])
        flags = ["--from"] if name == "start_from" else []  # names that cannot be Python fields
        flags.append(f"--{name.replace('_', '-')}")
        shown = text if values or name in SHOWN else argparse.SUPPRESS
        groups[section].add_argument(*flags, dest=name, help=shown, default=argparse.SUPPRESS, **options)


def _typed(kinds: tuple[Any, ...], limits: Range | None) -> dict[str, Any]:
    if list[str] in kinds:
        return {"metavar": "S", "nargs": "+", "action": "extend"}
    if bool in kinds:
        return {"action": argparse.BooleanOptionalAction}
    if limits is None:
        return {"metavar": "NAME"}
    if int in kinds:
        return {"type": limits.integer, "metavar": "N"}
    return {"type": target_return if str in kinds else limits.number, "metavar": "X"}


def make_request(arguments: argparse.Namespace) -> Request:
    """The run that a command line asks for."""
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    if len(given.get("source", ())) == 1:
        (given["source"],) = given["source"]
    typed = {name: value for name, value in given.items() if name in SETTINGS or name in RUN}
    others = {item.name: given[item.name] for item in fields(Request) if item.name in given}
    return Request(typed, config_file=given.get("config"), **others)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code."""
    return run(make_parser(), _train, argv)


def _train(arguments: argparse.Namespace) -> int:
    if arguments.help_all:
        agent, preset = getattr(arguments, "agent", RunConfig.agent), arguments.preset
        print(make_parser(make_config({"agent": agent}, preset), preset).format_help(), end="")
        return 0
    from .run import run_training  # takes seconds, which --help need not wait for
    from .trainer import keep_freed_memory

    keep_freed_memory()
    return run_training(make_request(arguments))
