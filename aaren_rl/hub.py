"""A policy in the layout of the Hugging Face hub: `python -m aaren_rl.hub RUN FOLDER`.

The folder holds config.json (the policy's card: how it was made and what it needs to act), model.safetensors (its
default weights) and README.md (the model card, with scores and how they were made). Nothing is sent anywhere.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from .agents import Policy
from .cli import Parser, import_registering, positive
from .errors import CheckpointError, UsageError, run_command
from .evaluate.play import play
from .evaluate.scores import Score
from .files import check_free, write_folder, write_text
from .model_card import model_card
from .policies.folder import HUB_CARD, HUB_WEIGHTS, load_policy, read_card, write_card
from .policies.tensors import save_tensors

if TYPE_CHECKING:
    import torch

DESCRIPTION = """\
Write a trained policy as a folder in the layout of the Hugging Face hub: config.json, model.safetensors and a
README.md that says how the policy was made and what it scores.

  python -m aaren_rl.hub runs/hopper-medium/decision-aaren/seed0 hopper-aaren
  python -m aaren_rl.hub RUN FOLDER --scores scores.json    # of evaluate RUN --json scores.json

Nothing is sent anywhere; `hf upload USER/NAME FOLDER` does that. FOLDER is a policy like any other:
  python -m aaren_rl.evaluate FOLDER
"""


def save_pretrained(run: str | Path, folder: str | Path, *, scores: Sequence[Score] = (), license: str = "mit") -> Path:
    """Writes a trained policy in the hub's layout, whole or not at all, without the path of its data on this machine.

    Args:
        run: a run folder or a policy folder.
        folder: must not exist, or be empty.
        scores: of `evaluate` on these very weights, for the model card.
        license: of the weights, an identifier that the hub knows.

    Returns:
        The folder.

    Raises:
        UsageError: the folder holds something.
        CheckpointError: the policy is missing or damaged, or a score is another policy's.
    """
    folder = Path(folder)
    check_free(folder)
    policy, card = load_policy(run), read_card(run)
    card = dataclasses.replace(card, source_path=PurePath(card.source_path).name)
    for score in scores:
        _check_own(score, card.agent, card.env, card.updates, card.seed, card.weights)

    def fill(fresh: Path) -> None:
        save_tensors(policy.model.state_dict(), fresh / HUB_WEIGHTS)
        write_card(fresh / HUB_CARD, card, [HUB_WEIGHTS])
        write_text(fresh / "README.md", model_card(card, scores, folder.resolve().name, license))

    write_folder(folder, fill)
    return folder


def from_pretrained(
    folder: str | Path,
    *,
    rollout: str | None = None,
    rollout_context: int | None = None,
    device: torch.device | str = "cpu",
) -> Policy:
    """A policy from a local folder in the hub's layout; nothing in it is executed.

    Args:
        folder: with config.json and model.safetensors; `hf download USER/NAME --local-dir FOLDER` fetches one.
        rollout: "carry", "rolling" or "window" instead of the mode it was trained for.
        rollout_context: K of the modes rolling and window, in steps.
        device: where to run it.

    Raises:
        CheckpointError: a file is missing or damaged, or they do not fit together.
    """
    for name in (HUB_CARD, HUB_WEIGHTS):
        if not Path(folder, name).is_file():
            raise CheckpointError(f"{folder}: no {name} here; give a folder that save_pretrained wrote")
    return load_policy(folder, rollout=rollout, rollout_context=rollout_context, device=device)


def read_scores(file: Path) -> list[Score]:
    """What `evaluate --json` wrote.

    Raises:
        UsageError: it is something else.
    """
    try:
        return [Score(**tree) for tree in json.loads(file.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{file}: not what evaluate --json writes ({' '.join(str(error).split())})") from error


def _check_own(score: Score, *own: object) -> None:
    found = (score.agent, score.env, score.updates, score.training_seed, score.weights)
    if found != own:
        raise CheckpointError(f"the score is of {found}, the policy is {own}; evaluate this policy")


def make_parser() -> Parser:
    """The command line."""
    parser = Parser("hub", DESCRIPTION)
    parser.usage = "python -m aaren_rl.hub RUN FOLDER [options]"
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder or policy folder")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="what to write; must not exist, or be empty")
    parser.add_argument("--license", metavar="NAME", default="mit", help="licence of the weights [mit]")
    parser.add_argument("--scores", type=Path, metavar="FILE", help="of evaluate --json, instead of evaluating now")
    parser.add_argument("--episodes", type=positive, metavar="N", default=20, help="episodes a target return [20]")
    parser.add_argument("--target-return", type=float, metavar="R", nargs="+", help="asked for (as in training)")
    parser.add_argument("--seed", type=int, metavar="S", default=1000, help="environment i is reset with S + i [1000]")
    parser.add_argument("--register", metavar="MODULE", help="import this module, which registers your environment")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    arguments = make_parser().parse_args(argv)
    return run_command(lambda: publish(arguments), debug=arguments.debug)


def publish(arguments: argparse.Namespace) -> int:
    """Scores the policy where no scores were given, and writes the folder; returns the exit code."""
    check_free(arguments.folder)
    import_registering(arguments.register)
    card = read_card(arguments.run)
    if arguments.scores is not None:
        scores = read_scores(arguments.scores)
    else:
        scores = play(
            load_policy(arguments.run),
            card,
            weights=card.weights,
            episodes=arguments.episodes,
            target_returns=arguments.target_return or [card.target_return],
            seed=arguments.seed,
        )
    save_pretrained(arguments.run, arguments.folder, scores=scores, license=arguments.license)
    print(f"{arguments.folder}: {', '.join(sorted(file.name for file in arguments.folder.iterdir()))}")
    print(f"send it with: hf upload USER/NAME {arguments.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
