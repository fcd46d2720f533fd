"""A policy ready for the Hugging Face hub: a policy folder with a model card."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path, PurePath

from ..base.errors import CheckpointError, UsageError, one_line
from ..base.files import check_free, read_small
from ..base.json_dataclass import read
from ..evaluate.scores import Score, describe_rollout
from ..evaluate.tables import format_table
from ..policies.card import PolicyCard
from ..policies.folder import load_policy, save_policy
from ..policies.names import SOURCES, label, target_words, weights_words


def read_scores(file: Path) -> list[Score]:
    """What `evaluate --json` wrote; raises UsageError where it is something else."""
    try:
        trees = json.loads(read_small(file))
        # Without the path that it was evaluated at.
        return [read(Score, {name: tree[name] for name in tree if name != "policy"}) for tree in trees]
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise UsageError(f"{file}: not what evaluate --json writes ({one_line(error)})") from error


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
    folder = Path(folder)
    check_free(folder)
    policy = load_policy(run)
    card = dataclasses.replace(policy.card, source_path=PurePath(policy.card.source_path).name)
    acting = [describe_rollout(card.rollout, card.rollout_context), *([str(policy.tree)] if policy.tree else [])]
    own = (card.agent, card.env, card.env_id, card.updates, card.weights, card.seed, ", ".join(acting))
    for score in scores:
        found = score.agent, score.env, score.env_id, score.updates, score.weights, score.training_seed, score.acting()
        if found != own:
            raise CheckpointError(f"the score is of {found}, the policy is {own}; evaluate this policy")
    readme = model_card(card, scores, folder.resolve().name, license)
    save_policy(folder, card, {card.weights: policy.model.state_dict()}, readme)
    return folder


def model_card(card: PolicyCard, scores: Sequence[Score], name: str, license: str) -> str:
    """README.md of the model `name`, as the hub reads it: a YAML header and Markdown. `scores` are of its weights."""
    from huggingface_hub import EvalResult, ModelCardData  # a second

    results = [
        EvalResult(
            task_type="reinforcement-learning",
            dataset_type=score.env_id,
            dataset_name=f"{score.env_id}, trained on {card.dataset} ({SOURCES.get(card.source, card.source)})",
            metric_type=kind,
            metric_name=f"{words}, target return {target_words(score.target_return)}, "
            f"{score.episodes} episodes from seed {score.seed}",
            metric_value=round(value, 2),
        )
        for score in scores
        for kind, words, value in (
            ("mean_reward", "mean return", score.return_mean),
            ("normalized_score", f"normalized score ({score.reference})", score.normalized_score_mean),
        )
        if value is not None
    ]
    tags = ["reinforcement-learning", "offline-rl", card.agent, card.env_id, card.dataset, "aaren-rl"]
    header = ModelCardData(
        license=license,
        library_name="aaren-rl",
        pipeline_tag="reinforcement-learning",
        tags=[tag for tag in tags if tag],
        model_name=name,
        eval_results=results or None,
    )
    windows = f"s of {card.context_length} steps" if card.context == "window" else ""
    trained = f"{card.updates:,} gradient steps on {card.context}{windows or ' contexts'}, seed {card.seed}"
    made = {
        "Data": f"{card.dataset}, {SOURCES.get(card.source, card.source)} (`{card.source_path}`)",
        "Environment": f"`{card.env_id}`, time limit {card.horizon} steps" if card.env_id else "none",
        "Training": "elsewhere" if card.source == "imported" else trained,
        "Rollout": f"{describe_rollout(card.rollout, card.rollout_context)}, {weights_words(card.weights)}",
        "Target return": f"{target_words(card.target_return, '.15g')} by default",
        "Made with": ", ".join(f"{package} {version}" for package, version in card.versions.items()),
    }
    return f"""\
---
{header.to_yaml()}
---

# {label(card.agent)} for {card.env}

```text
{format_table(scores, speed=False) if scores else "No scores were recorded."}
```

{chr(10).join(f"- {name}: {text}" for name, text in made.items())}

```python
from aaren_rl.hub import from_pretrained

policy = from_pretrained("this-folder")
state = policy.initial_state(batch_size=1, target_return=policy.target_return)
action, state = policy.act(observation, reward, state)  # observation (1, O), last reward (1,)
```

`config.json` holds the data's statistics and all else that the policy needs; loading executes nothing.
"""
