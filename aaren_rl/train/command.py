"""Train an agent offline, evaluate it in MuJoCo during training and save a policy folder: `aaren-rl train`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..cli import launched, run
from .config import RunConfig
from .options import make_job, make_parser
from .settings import make_config


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code."""
    return run(make_parser(), _train, argv)


def _train(arguments: argparse.Namespace) -> int:
    if arguments.help_all:
        agent, preset = getattr(arguments, "agent", RunConfig.agent), arguments.preset
        print(make_parser(make_config({"agent": agent}, preset), preset).format_help(), end="")
        return 0
    job = make_job(arguments)
    # Print this before torch is imported, which takes seconds. Of several processes, only one prints.
    config = job.make_config() if launched() == 1 else None
    from .session import run_training

    return run_training(job, config)
