"""The model card of a policy: README.md as the Hugging Face hub reads it, a YAML header and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from ..evaluate.scores import Score, describe_rollout
from ..policies.card import PolicyCard
from ..policies.names import SOURCES, asked_words, label

REPOSITORY = "aaren-rl"


def model_card(card: PolicyCard, scores: Sequence[Score], name: str, license: str) -> str:
    """The text of README.md.

    Args:
        card: how the policy was made.
        scores: of its default weights; may be empty.
        name: of the model.
        license: of the weights, an identifier that the hub knows.
    """
    data = f"{card.dataset} ({SOURCES.get(card.source, card.source)})"
    tags = ["reinforcement-learning", "offline-rl", card.agent, card.env_id, card.dataset, REPOSITORY]
    header: dict[str, Any] = {
        "license": license,
        "library_name": REPOSITORY,
        "pipeline_tag": "reinforcement-learning",
        "tags": list(dict.fromkeys(tags)),
    }
    results = [
        {
            "task": {"type": "reinforcement-learning", "name": "reinforcement learning"},
            "dataset": {"type": score.env_id, "name": f"{score.env_id}, trained on {data}"},
            "metrics": _metrics(score),
        }
        for score in scores
    ]
    if results:
        header["model-index"] = [{"name": name, "results": results}]
    written = yaml.safe_dump(header, sort_keys=False, allow_unicode=True, width=1000)
    return f"---\n{written}---\n\n{_body(card, scores)}"


def _metrics(score: Score) -> list[dict[str, Any]]:
    said = f"asked return {asked_words(score.target_return)}, {score.episodes} episodes from seed {score.seed}"
    values = {"mean_reward": ("mean return", score.return_mean)}
    if score.normalized_score_mean is not None:
        values["normalized_score"] = f"normalised score ({score.reference})", score.normalized_score_mean
    return [
        {"type": kind, "name": f"{name}, {said}", "value": round(value, 2)} for kind, (name, value) in values.items()
    ]


def _body(card: PolicyCard, scores: Sequence[Score]) -> str:
    versions = ", ".join(f"{package} {version}" for package, version in card.versions.items() if package != "device")
    windows = f"s of {card.context_length} steps" if card.context == "window" else ""
    shape = card.model
    asked = 'float("inf")' if card.target_return is None else f"{card.target_return:g}"  # inf: auto
    return f"""\
# {label(card.agent)} for {card.env}

Plays `{card.env_id}`. Trained offline for {card.updates:,} updates (seed {card.seed}).

## Scores

{_table(scores) if scores else "None were recorded."}

## How it was made

- Data: {card.dataset}, {SOURCES.get(card.source, card.source)} (`{card.source_path}`)
- Environment: `{card.env_id}`, time limit {card.horizon} steps
- Training contexts: {card.context}{windows}
- Rollout: {describe_rollout(card.rollout, card.rollout_context)}
- Asked return: {asked_words(card.target_return)} by default, scaled by 1 / {card.return_scale:g}
- Weights: {card.weights}
- Model: {shape.get("layers")} layers of width {shape.get("width")}, {shape.get("heads")} heads
- Made with: {versions}, on {card.versions.get("device", "an unknown device")}

## Use

```python
from aaren_rl.hub import from_pretrained

policy = from_pretrained("this-folder")
state = policy.initial_state(batch_size=1, target_return={asked})
action, state = policy.act(observation, reward, state)  # observation (1, O), last reward (1,)
```

`config.json` holds the data's statistics and all else that the policy needs; loading executes nothing.
"""


def _table(scores: Sequence[Score]) -> str:
    lines = ["| asked return | rollout | episodes | seeds from | return | score |", "|-|-|-|-|-|-|"]
    for score in scores:
        normalized = score.normalized_score_mean
        cells = (
            asked_words(score.target_return),
            score.acting(),
            str(score.episodes),
            str(score.seed),
            f"{score.return_mean:.1f} ± {score.return_std:.1f}",
            "-" if normalized is None else f"{normalized:.1f} ± {score.normalized_score_std or 0.0:.1f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    reference = scores[0].reference
    legend = "no reference returns" if reference is None else f"100 (return - random) / (expert - random), {reference}"
    beside = f" Beside it, {data}." if (data := scores[0].data()) else ""
    return "\n".join([*lines, "", f"In `{scores[0].env_id}`; score: {legend}; ± over episodes.{beside}"])
