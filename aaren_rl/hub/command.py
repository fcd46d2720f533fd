"""A policy in the layout of the Hugging Face hub: `aaren-rl hub RUN FOLDER`.

The folder holds config.json (the policy's card: how it was made and what it needs to act), model.safetensors (its
default weights) and README.md (the model card, with scores and how they were made). Nothing is sent anywhere.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..base.errors import UsageError
from ..base.files import check_free
from ..base.ranges import SEED
from ..cli import Parser, import_registering, positive, run, target_return
from ..evaluate.play import EpisodePlan, play
from ..policies.folder import load_policy, read_card
from .folder import read_scores, save_pretrained

DESCRIPTION = """\
Write a trained policy as a folder in the layout of the Hugging Face hub: config.json, model.safetensors and a
README.md that says how the policy was made and what it scores.

  aaren-rl hub runs/hopper-medium/decision-aaren/seed0 hopper-aaren
  aaren-rl hub RUN FOLDER --scores scores.json    # of evaluate RUN --json scores.json

Nothing is sent anywhere; `hf upload USER/NAME FOLDER` does that. FOLDER is a policy like any other:
  aaren-rl evaluate FOLDER
"""


def make_parser() -> Parser:
    """The command line."""
    parser = Parser("hub", DESCRIPTION, "RUN FOLDER [options]")
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder or policy folder")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="what to write; must not exist, or be empty")
    parser.add_argument("--license", metavar="NAME", default="mit", help="license of the weights [mit]")
    parser.add_argument("--scores", type=Path, metavar="FILE", help="of evaluate --json, instead of evaluating now")
    parser.add_argument("--episodes", type=positive, metavar="N", help="episodes a target return [20]")
    parser.add_argument(
        "--target-return", type=target_return, metavar="R", nargs="+", help="asked for (as in training)"
    )
    parser.add_argument("--seed", type=SEED.integer, metavar="S", help="of the first episode [1000]")
    parser.add_shared()
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return run(make_parser(), publish, argv)


def publish(arguments: argparse.Namespace) -> int:
    """Scores the policy where no scores were given, and writes the folder; returns the exit code."""
    check_free(arguments.folder)
    given = {"--episodes": arguments.episodes, "--target-return": arguments.target_return, "--seed": arguments.seed}
    if arguments.scores is not None and (idle := [name for name, value in given.items() if value is not None]):
        raise UsageError(f"{', '.join(idle)}: --scores has the scores already; leave one out")
    import_registering(arguments.register)
    card = read_card(arguments.run)
    if arguments.scores is not None:
        scores = read_scores(arguments.scores)
    else:
        targets = arguments.target_return or [card.target_return]
        seed = 1000 if arguments.seed is None else arguments.seed
        policy = load_policy(arguments.run)
        plan = EpisodePlan(card.weights, arguments.episodes or 20, targets, seed)
        scores = play(policy, card, plan)
    save_pretrained(arguments.run, arguments.folder, scores=scores, license=arguments.license)
    print(f"{arguments.folder}: {', '.join(sorted(file.name for file in arguments.folder.iterdir()))}")
    print(f"send it with: hf upload USER/NAME {arguments.folder}")
    return 0
