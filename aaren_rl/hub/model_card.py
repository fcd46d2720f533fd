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
    header = yaml.safe_dump(_header(card, scores, name, license), sort_keys=False, allow_unicode=True, width=1000)
    return f"---\n{header}---\n\n{_body(card, scores)}"


def _header(card: PolicyCard, scores: Sequence[Score], name: str, license: str) -> dict[str, Any]:
    tags = ["reinforcement-learning", "offline-rl", card.agent, card.env_id, card.dataset, REPOSITORY]
    header: dict[str, Any] = {
        "license": license,
        "library_name": REPOSITORY,
        "pipeline_tag": "reinforcement-learning",
        "tags": list(dict.fromkeys(tags)),
    }
    if scores:
        header["model-index"] = [{"name": name, "results": [_result(card, score) for score in scores]}]
    return header


def _result(card: PolicyCard, score: Score) -> dict[str, Any]:
    metrics = [{"type": "mean_reward", "name": _named("mean return", score), "value": round(score.return_mean, 2)}]
    if score.normalized_score_mean is not None:
        name = _named(f"normalised score ({score.reference})", score)
        metrics.append({"type": "normalized_score", "name": name, "value": round(score.normalized_score_mean, 2)})
    data = f"{card.dataset} ({SOURCES.get(card.source, card.source)})"
    return {
        "task": {"type": "reinforcement-learning", "name": "reinforcement learning"},
        "dataset": {
            "type": score.env_id,
            "name": f"{score.env_id}, trained on {data}",
        },
        "metrics": metrics,
    }


def _named(metric: str, score: Score) -> str:
    return (
        f"{metric}, asked return {asked_words(score.target_return)}, {score.episodes} episodes from seed {score.seed}"
    )


def _body(card: PolicyCard, scores: Sequence[Score]) -> str:
    versions = ", ".join(f"{package} {version}" for package, version in card.versions.items() if package != "device")
    windows = f"s of {card.context_length} steps" if card.context == "window" else ""
    shape = card.model
    asked = 'float("inf")' if card.target_return is None else f"{card.target_return:g}"  # inf: auto
    parts = [
        f"# {label(card.agent)} for {card.env}",
        f"Plays `{card.env_id}`. Trained offline for {card.updates:,} updates (seed {card.seed}).",
        "## Scores\n\n" + (_table(scores) if scores else "None were recorded."),
        "## How it was made\n\n"
        + "\n".join(
            f"- {what}: {value}"
            for what, value in (
                ("Data", f"{card.dataset}, {SOURCES.get(card.source, card.source)} (`{card.source_path}`)"),
                ("Environment", f"`{card.env_id}`, time limit {card.horizon} steps"),
                ("Training contexts", card.context + windows),
                ("Rollout", describe_rollout(card.rollout, card.rollout_context)),
                ("Asked return", f"{asked_words(card.target_return)} by default, scaled by 1 / {card.return_scale:g}"),
                ("Weights", card.weights),
                ("Model", f"{shape.get('layers')} layers of width {shape.get('width')}, {shape.get('heads')} heads"),
                ("Made with", f"{versions}, on {card.versions.get('device', 'an unknown device')}"),
            )
        ),
        "## Use\n\n```python\nfrom aaren_rl.hub import from_pretrained\n\n"
        'policy = from_pretrained("this-folder")\n'
        f"state = policy.initial_state(batch_size=1, target_return={asked})\n"
        "action, state = policy.act(observation, reward, state)  # observation (1, O), last reward (1,)\n```",
        "`config.json` holds the data's statistics and all else that the policy needs; loading executes nothing.",
    ]
    return "\n\n".join(parts) + "\n"


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
