"""`aaren-rl COMMAND ...`, the same as `python -m aaren_rl.COMMAND ...`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

COMMANDS = {
    "train": "train an agent offline and score it",
    "evaluate": "score a trained policy",
    "export": "write a trained policy as an ONNX file that runs without PyTorch",
    "compare": "train and score agents over several seeds, and write a report",
    "datasets": "list, describe, verify, download and convert data sets",
    "collect": "train SAC in any environment and write D4RL-like data sets",
    "sweep": "train a grid of runs",
    "import-weights": "take over a Decision Transformer that others trained",
    "hub": "write a trained policy in the layout of the Hugging Face hub",
    "bench": "measure time and memory",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Hands over to the command; returns its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    listing = "\n".join(f"  {name:<14} {text}" for name, text in COMMANDS.items())
    usage = f"usage: aaren-rl COMMAND [options]\n\n{listing}"
    if argv and argv[0] in COMMANDS:
        # Imported on demand: --help of one command need not wait for the others' imports.
        room = argv[0].replace("-", "_")
        return int(importlib.import_module(f".{room}.command", __package__).main(argv[1:]))
    if argv and argv[0] in ("-h", "--help"):
        print(f"{usage}\n\nEach command has its own --help.")
        return 0
    print(f"error: {'unknown command ' + repr(argv[0]) if argv else 'which command?'}\n{usage}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
