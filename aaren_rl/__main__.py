"""`aaren-rl COMMAND ...`, the same as `python -m aaren_rl COMMAND ...`."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper

from ._version import __version__
from .base.errors import did_you_mean

COMMANDS = {  # name -> its module, what it does
    "train": ("train.config", "train an agent offline and score it"),
    "evaluate": ("evaluate", "score a trained policy"),
    "export": ("export.export", "write a policy as an ONNX file that runs without PyTorch"),
    "compare": ("compare", "train and score agents over several seeds, and write a report"),
    "datasets": ("datasets", "list, describe, verify, download and convert datasets"),
    "collect": ("collect", "record episodes of trained policies as a dataset"),
    "sweep": ("sweep", "train a grid of runs"),
    "import-weights": ("import_weights", "import a pretrained Decision Transformer"),
    "hub": ("hub", "write a trained policy in Hugging Face Hub format"),
}


def module_of(command: str) -> str:
    """The name of a command's module, whose `main` runs it."""
    return f"aaren_rl.{COMMANDS[command.replace('_', '-')][0]}"


def start(module: str, argv: Sequence[str] | None = None) -> int:
    """Imports the module of a command, such as "aaren_rl.train.config", and runs its `main`; returns its exit code.

    An interrupt during its imports, which take seconds, prints no traceback.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell closed it
            setattr(sys, name, open(os.devnull, "w"))
    if isinstance(sys.stdout, TextIOWrapper):  # in ASCII, where file names may be more
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return int(import_module(module).main(argv))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def main(argv: Sequence[str] | None = None) -> int:
    """Hands over to the command; returns its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    listing = "\n".join(f"  {name:<14} {text}" for name, (_, text) in COMMANDS.items())
    usage = f"usage: aaren-rl COMMAND [options]\n\n{listing}"
    given = argv[0] if argv else ""
    if given in ("-h", "--help"):
        print(f"{usage}\n\nEach command has its own --help.")
        return 0
    if given in ("-V", "--version"):
        print(f"aaren-rl {__version__}")
        return 0
    if given.replace("_", "-") in COMMANDS:
        # Imported on demand: --help of one command need not wait for the others' imports.
        return start(module_of(given), argv[1:])
    problem = f"unknown command {given!r}{did_you_mean(given, COMMANDS)}" if argv else "a command is required"
    print(f"error: {problem}\n{usage}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
