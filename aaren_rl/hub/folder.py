"""A policy ready for the Hugging Face hub: a policy folder with a model card."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path, PurePath

from ..base.errors import CheckpointError, UsageError, one_line
from ..base.files import check_free, read_small
from ..base.json_dataclass import read
from ..evaluate.scores import Score, describe_rollout
from ..policies.card import Origin
from ..policies.folder import load_policy, save_policy


def save_pretrained(run: str | Path, folder: str | Path, *, scores: Sequence[Score] = (), license: str = "mit") -> Path:
    """Writes a trained policy in the hub's layout, whole or not at all, without its data's path; returns the folder.

    Args:
        run: a run folder or a policy folder.
        folder: must not exist, or be empty.
        scores: of `evaluate` on these very weights, for the model card.
        license: of the weights, an identifier that the hub knows.

    Raises:
        UsageError: the folder holds something.
        CheckpointError: the policy is missing or damaged, or a score is another policy's.
    """
    from .model_card import model_card  # on demand: the hub's library takes a while

    folder = Path(folder)
    check_free(folder)
    policy = load_policy(run)
    card = dataclasses.replace(policy.card, source_path=PurePath(policy.card.source_path).name)
    acting = ", ".join(
        [describe_rollout(card.rollout, card.rollout_context), *([str(policy.tree)] if policy.tree else [])]
    )
    own = (*_identity(card), card.seed, acting)
    for score in scores:
        if (found := (*_identity(score), score.training_seed, score.acting())) != own:
            raise CheckpointError(f"the score is of {found}, the policy is {own}; evaluate this policy")
    readme = model_card(card, scores, folder.resolve().name, license)
    save_policy(folder, card, {card.weights: policy.model.state_dict()}, readme)
    return folder


def _identity(origin: Origin) -> tuple[object, ...]:
    return origin.agent, origin.env, origin.env_id, origin.updates, origin.weights


def read_scores(file: Path) -> list[Score]:
    """What `evaluate --json` wrote; raises UsageError where it is something else."""
    try:
        trees = json.loads(read_small(file))
        if not isinstance(trees, list) or not trees:
            raise ValueError("not a list with a score in it")
        for tree in trees:
            if isinstance(tree, dict):
                tree.pop("policy", None)  # the path it was evaluated at
        return [read(Score, tree) for tree in trees]
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{file}: not what evaluate --json writes ({one_line(error)})") from error
