"""Train an agent offline, evaluate it in MuJoCo during training and save a policy folder: `aaren-rl train`."""

import argparse
from collections.abc import Sequence

from ..cli import launched, run
from .config import RunConfig
from .options import make_parser, make_request
from .settings import make_config


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code."""
    return run(make_parser(), _train, argv)


def _train(arguments: argparse.Namespace) -> int:
    if arguments.help_all:
        agent, preset = getattr(arguments, "agent", RunConfig.agent), arguments.preset
        print(make_parser(make_config({"agent": agent}, preset), preset).format_help(), end="")
        return 0
    request = make_request(arguments)
    if launched() == 1:  # of several processes, only one prints
        _ = request.config  # its errors come before torch is imported, which takes seconds
    from .acceleration import keep_freed_memory
    from .run import run_training

    keep_freed_memory()
    return run_training(request)
