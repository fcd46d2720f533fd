"""A policy in the layout of the Hugging Face hub: written, and read again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from ..agents import Policy
from ..errors import CheckpointError, UsageError, one_line
from ..evaluate.scores import Score
from ..files import check_free, is_there, read_small, write_folder, write_text
from ..policies.folder import HUB_CARD, HUB_WEIGHTS, load_policy, read_card, write_card
from ..policies.tensors import save_tensors
from .model_card import model_card

if TYPE_CHECKING:
    import torch


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
        if not is_there(Path(folder, name)):
            raise CheckpointError(f"{folder}: no {name} here; give a folder that save_pretrained wrote")
    return load_policy(folder, rollout=rollout, rollout_context=rollout_context, device=device)


def read_scores(file: Path) -> list[Score]:
    """What `evaluate --json` wrote.

    Raises:
        UsageError: it is something else.
    """
    try:
        trees = json.loads(read_small(file))
        if not isinstance(trees, list) or not trees:
            raise ValueError("not a list with a score in it")
        json.dumps(trees, allow_nan=False)  # raises where a number is not finite
        scores = [Score.of(tree) for tree in trees]
        if not all(isinstance(value, float | int) for score in scores for value in score.scalars("").values()):
            raise ValueError("a score that is no number")
        return scores
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{file}: not what evaluate --json writes ({one_line(error)})") from error


def _check_own(score: Score, *own: object) -> None:
    found = (score.agent, score.env, score.updates, score.training_seed, score.weights)
    if found != own:
        raise CheckpointError(f"the score is of {found}, the policy is {own}; evaluate this policy")
