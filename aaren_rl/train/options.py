"""Train an agent offline, evaluate it in MuJoCo during training and save a policy folder: `aaren-rl train`.

The command line is built from the settings; `train_policy` and a sweep ask for runs by the same `Request`.
"""

import argparse
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from ..base.errors import UsageError
from ..base.json_dataclass import check_type
from ..base.ranges import COUNT, SEED, THREADS, Range, check_limits
from ..cli import Parser, import_registering, run, target_return
from ..envs import is_own, task_name
from ..envs.load import default_name, expand
from ..policies.names import AGENTS
from .config import (
    RUN,
    SECTIONS,
    SETTINGS,
    RunConfig,
    make_config,
    presets,
    read_settings,
    run_folder,
    settings_of,
)

OnLog = Callable[[int, dict[str, float]], object]  # arguments: gradient step, logged values by tag

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


@dataclass(frozen=True)
class Request:
    """A training run as a command line or `train_policy` asks for it, which documents the fields."""

    typed: Mapping[str, Any]  # settings by name, given one by one; they override the file `config_file`
    config_file: str | Path | None = None
    preset: str = "default"
    register: str | None = None
    out: Path = Path("runs")
    device: str = "auto"
    threads: int | None = field(default=None, metadata={"limits": THREADS})
    resume: bool = False
    save_every: int | None = field(default=None, metadata={"limits": COUNT})
    on_log: OnLog | None = None
    memory_map: bool = False

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        try:
            for name in ("preset", "device", "register", "threads", "save_every"):
                check_type(getattr(self, name), hints[name], name)
            for name in ("env", "agent", "env_id", "start_from", "source"):  # used before the configuration is built
                check_type(self.typed.get(name), str | list[str] | None if name == "source" else str | None, name)
            check_limits(self)
        except ValueError as error:
            raise UsageError(str(error)) from error

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All given settings. Raises the errors of `import_registering` and `read_settings`."""
        import_registering(self.register)  # agents, too
        given = {} if self.config_file is None else read_settings(self.config_file)
        if "agent" in given:  # the file of a run, which sets what another agent or a preset would
            if self.typed.get("agent", given["agent"]) != given["agent"]:
                raise UsageError(f"--agent {self.typed['agent']}: --config has the settings of {given['agent']}")
            if self.preset != "default":
                raise UsageError(f"--preset {self.preset}: --config has all settings of a run")
        settings = {**given, **self.typed}
        return {**settings, "source": expand(settings["source"])} if "source" in settings else settings

    @cached_property
    def given(self) -> dict[str, Any]:
        """All given settings with a task name, which custom datasets may omit. Raises UsageError if it is missing."""
        settings = self.settings
        source, env_id = settings.get("source", "auto"), settings.get("env_id")
        if "env" not in settings and not is_own(source, env_id, default_name(source)):
            raise UsageError("--env is missing, for example --env hopper-medium")
        named = {"env": default_name(source), **settings}
        task_name(named["env"], source, env_id)
        return named

    @cached_property
    def config(self) -> RunConfig:
        """The complete configuration. Raises the errors of `given` and of `make_config`."""
        return make_config(self.given, self.preset)

    @cached_property
    def folder(self) -> Path:
        """The folder of the run. Raises the errors of `config`."""
        return run_folder(self.config, self.out)


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
