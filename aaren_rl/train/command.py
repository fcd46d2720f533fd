"""Train an agent offline, score it in MuJoCo while it trains, and leave a policy folder: `aaren-rl train`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..cli import launched, run
from .config import RunConfig
from .options import make_job, make_parser
from .settings import make_config


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return run(make_parser(), _train, argv)


def _train(arguments: argparse.Namespace) -> int:
    if arguments.help_all:
        agent, preset = getattr(arguments, "agent", RunConfig.agent), arguments.preset
        print(make_parser(make_config({"agent": agent}, preset), preset).format_help(), end="")
        return 0
    job = make_job(arguments)
    # Before what takes seconds to import, torch among it; of several processes, which find each other by it, one tells.
    config = job.make_config() if launched() == 1 else None
    from .session import run_training

    return run_training(job, config)
