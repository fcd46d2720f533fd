"""Train an agent offline, score it in MuJoCo while it trains, and leave a policy folder: `python -m aaren_rl.train`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ..cli import launched
from ..envs import is_own
from ..errors import run_command
from .plan import NO_ENV, make_parser, make_plan
from .settings import given_settings


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if arguments.help_all:
        return run_command(lambda: _help_all(arguments), debug=arguments.debug)
    data = given_settings(arguments).get("data", {})
    if arguments.config is None and "env" not in data and not is_own(data.get("source", ""), data.get("env_id")):
        parser.error(NO_ENV)
    return run_command(lambda: _train(arguments), debug=arguments.debug)


def _help_all(arguments: argparse.Namespace) -> int:
    make_parser(show_all=True, agent=arguments.agent or "decision-aaren", preset=arguments.preset).print_help()
    return 0


def _train(arguments: argparse.Namespace) -> int:
    # Before what takes seconds to import, torch among it; of several processes, which find each other by it, one tells.
    plan = make_plan(arguments) if launched() == 1 else None
    from .session import run_training

    return run_training(arguments, plan)
