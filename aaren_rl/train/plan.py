"""The command line of a training run, and what it asks for; a sweep asks the same of its runs."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..cli import Parser, import_registering
from ..envs import is_own, task_name
from ..envs.data.names import default_name
from ..errors import UsageError
from ..policies.names import AGENTS, AUTO, UNCONDITIONED
from ..ranges import COUNT, SEED, THREADS
from .config import RunConfig
from .settings import (
    Nested,
    add_settings,
    build_config,
    given_settings,
    load_preset,
    override,
    preset_names,
    read_settings,
)
from .starting import start_settings

NO_ENV = "--env is missing, for example --env hopper-medium"
# Settings that --help lists.
SHOWN = {"start_from", "env", "source", "env_id", "context", "rollout", "target_return", "updates"}
REM = ("rem_counts", "rem_dilation", "rem_max_power", "rem_gate")  # of recurrence encoding

DESCRIPTION = """\
Train an agent offline on a MuJoCo task, score it while it trains, and save the policy.

  python -m aaren_rl.train --env hopper-medium                                # Decision-Aaren, a few minutes
  python -m aaren_rl.train --env hopper-medium --agent decision-transformer   # the baseline
  python -m aaren_rl.train --env hopper-medium --resume --updates 2000        # a finished run, a thousand more
  python -m aaren_rl.train --env hopper-medium-replay --from runs/hopper-medium/decision-aaren/seed0   # fine-tuning
  tensorboard --logdir runs                                                   # all, side by side
"""
EPILOG = """\
The data set is D4RL's file where it lies in ~/.d4rl/datasets (or $D4RL_DATASET_DIR); otherwise a local set, made
on first use by behaviour policies that ship with the package. The policy lands in <out>/<env>/<agent>/seed<N>/;
score it with python -m aaren_rl.evaluate. Exit codes: 2 usage, 3 data, 4 checkpoint, 5 environment, 6 numerics,
7 resources; 143 and 130 after SIGTERM and Ctrl-C, which save first (a second Ctrl-C leaves at once).
"""


def make_parser(*, show_all: bool = False, agent: str = "decision-aaren", preset: str = "default") -> Parser:
    """The command line; `show_all` lists every setting in the help, with its value of an agent in a preset.

    Raises:
        UsageError: `show_all`, and there is no such agent or preset.
    """
    parser = Parser("train", DESCRIPTION)
    parser.epilog, defaults = EPILOG, None
    if show_all:
        defaults = build_config(agent, 0, load_preset(preset, agent))
        parser.epilog = f"In brackets: the values of {agent} in the preset {preset}.\n\n{EPILOG}"
    parser.usage = "python -m aaren_rl.train --env NAME [options]"
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings: a run's config.yaml, or a part of one")
    add_settings(parser, SHOWN, defaults=defaults)
    parser.add_argument(
        "--agent", choices=AGENTS, metavar="NAME", help=f"{', '.join(AGENTS)} [the first; --from's or --config's]"
    )
    parser.add_argument(
        "--preset", metavar="NAME", default="default", help=f"settings to start from: {' or '.join(preset_names())}"
    )
    parser.add_argument("--seed", type=SEED.integer, metavar="N", help="training seed [0; --config's]")
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("runs"), help="where runs go [runs]")
    parser.add_argument("--threads", type=THREADS.integer, metavar="N", help="CPU threads (default: all cores)")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model: minutes first, for GPUs")
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in its folder; with more --updates, too"
    )
    parser.add_argument("--save-every", type=COUNT.integer, metavar="N", help="save every N updates, as evaluations do")
    parser.add_shared(device="auto")
    parser.add_argument("--help-all", action="store_true", help="list every setting, with its default")
    return parser


@dataclass(frozen=True)
class Plan:
    """What a command line asks for.

    Attributes:
        typed: the settings that stood on it, by section.
        given: these, and those of the file that --config names.
        config: the whole configuration, with the preset's values and the defaults.
        run: the run's folder.
    """

    typed: Nested
    given: Nested
    config: RunConfig
    run: Path


def make_plan(arguments: argparse.Namespace) -> Plan:
    """The plan of a command line; the module of --register is imported.

    Raises:
        UsageError: a setting is unknown, of another type or out of range, the module cannot be imported, or torch's
            compiler is asked for and too old; the message names it.
        UnknownTaskError: a task that is none.
    """
    if arguments.compile:
        from .acceleration import check_compiler  # with torch

        check_compiler()
    import_registering(arguments.register)
    typed, given = given_settings(arguments), given_settings(arguments)
    named: dict[str, Any] = {}
    if arguments.config is not None:
        named, written = read_settings(arguments.config)
        given = override(written, typed)
    data = given.setdefault("data", {})
    if "env" not in data and not is_own(data.get("source", ""), data.get("env_id")):
        raise UsageError(NO_ENV)
    data.setdefault("env", default_name(data.get("source", "")))  # a name for data of your own
    name = task_name(data["env"], data.get("source", "auto"), data.get("env_id"))  # before it becomes part of a path
    started: Nested = {}
    agents = [arguments.agent, named.get("agent"), "decision-aaren"]
    if data.get("start_from") is not None:
        agent, started = start_settings(data["start_from"])
        agents.insert(1, agent)
    agent = next(agent for agent in agents if agent is not None)
    seed = next(seed for seed in (arguments.seed, named.get("seed"), 0) if seed is not None)
    sections = override(override(load_preset(arguments.preset, agent), started), given)
    config = build_config(agent, seed, _following(sections, given))
    return Plan(typed, given, config, arguments.out / name / agent / f"seed{seed}")


def remarks(plan: Plan) -> list[str]:
    """A line for every setting that stood on the command line and does nothing for this agent."""
    config, found = plan.config, []
    windows = ("window",) if config.constant_state else ("window", AUTO)
    idle = {
        "rollout_context": config.evaluation.rollout == "carry" and "the rollout carry",
        "context_length": config.data.context not in windows and f"{config.data.context} contexts",
        "stream_length": config.data.context not in ("stream", AUTO) and f"{config.data.context} contexts",
        "tree_budget": config.mixer != "tree" and config.agent,
        "tree_sampler": config.mixer != "tree" and config.agent,
        "target_return": config.agent in UNCONDITIONED and config.agent,
        "matrix_learning_rate": config.optimizer.optimizer != "muon" and "--optimizer adamw",
        **dict.fromkeys(REM, not config.mixer.endswith("rsa") and config.agent),
    }
    for name in (name for section in plan.typed.values() for name in section):
        if who := idle.get(name):
            found.append(f"note: --{name.replace('_', '-')} is of no effect with {who}")
    return found


def _following(sections: Nested, given: Nested) -> Nested:
    """The sections, with K of the rollout that of the training windows where these alone were given another length."""
    length, asked = given.get("data", {}).get("context_length"), given.get("evaluation", {}).get("rollout_context")
    if length is None or asked is not None or sections.get("data", {}).get("context") != "window":
        return sections
    return override(sections, {"evaluation": {"rollout_context": length}})
