"""A policy in the layout of the Hugging Face hub: `aaren-rl hub RUN FOLDER`.

The folder holds config.json (the policy's card: how it was made and what it needs to act), model.safetensors (its
default weights) and README.md (the model card, with scores and how they were made). Nothing is sent anywhere.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..cli import Parser, import_registering, run
from .folder import read_scores, save_pretrained

DESCRIPTION = """\
Write a trained policy as a folder in the layout of the Hugging Face hub: config.json, model.safetensors and a
README.md that says how the policy was made and what it scores.

  aaren-rl evaluate RUN --json scores.json
  aaren-rl hub RUN FOLDER --scores scores.json

Nothing is sent anywhere; `hf upload USER/NAME FOLDER` does that. FOLDER is a policy like any other:
  aaren-rl evaluate FOLDER
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = Parser("hub", DESCRIPTION, "RUN FOLDER [options]")
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder or policy folder")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="what to write; must not exist, or be empty")
    parser.add_argument("--license", metavar="NAME", default="mit", help="license of the weights [mit]")
    parser.add_argument("--scores", type=Path, metavar="FILE", help="scores of these weights, of evaluate --json")
    parser.add_shared()
    return run(parser, _publish, argv)


def _publish(arguments: argparse.Namespace) -> int:
    import_registering(arguments.register)
    scores = [] if arguments.scores is None else read_scores(arguments.scores)
    folder = save_pretrained(arguments.run, arguments.folder, scores=scores, license=arguments.license)
    print(f"{folder}: {', '.join(sorted(file.name for file in folder.iterdir()))}")
    print(f"send it with: hf upload USER/NAME {folder}")
    return 0
