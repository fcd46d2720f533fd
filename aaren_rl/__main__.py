"""`aaren-rl COMMAND ...`, the same as `python -m aaren_rl COMMAND ...`."""

import sys
from collections.abc import Sequence

from ._version import __version__
from .base.entry import did_you_mean, start

COMMANDS = {
    "train": "train an agent offline and score it",
    "evaluate": "score a trained policy",
    "export": "write a trained policy as an ONNX file that runs without PyTorch",
    "compare": "train and score agents over several seeds, and write a report",
    "datasets": "list, describe, verify, download and convert datasets",
    "collect": "record episodes of trained policies as a dataset",
    "sweep": "train a grid of runs",
    "import-weights": "import a pretrained Decision Transformer",
    "hub": "write a trained policy in Hugging Face Hub format",
}
# The module of a command, where it is not COMMAND/command.py
MODULES = {"train": "train.options", **{name: f"{name}.{name}" for name in ("evaluate", "compare", "sweep")}}


def module_of(command: str) -> str:
    """The module whose `main` a command runs."""
    return f"aaren_rl.{MODULES.get(command, command.replace('-', '_') + '.command')}"


def main(argv: Sequence[str] | None = None) -> int:
    """Hands over to the command; returns its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    listing = "\n".join(f"  {name:<14} {text}" for name, text in COMMANDS.items())
    usage = f"usage: aaren-rl COMMAND [options]\n\n{listing}"
    given = argv[0] if argv else ""
    if given in ("-h", "--help"):
        print(f"{usage}\n\nEach command has its own --help.")
        return 0
    if given in ("-V", "--version"):
        print(f"aaren-rl {__version__}")
        return 0
    command = given.replace("_", "-")  # as its module is called, too
    if command in COMMANDS:
        # Imported on demand: --help of one command need not wait for the others' imports.
        return start(module_of(command), argv[1:])
    problem = f"unknown command {given!r}{did_you_mean(given, COMMANDS)}" if argv else "a command is required"
    print(f"error: {problem}\n{usage}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
