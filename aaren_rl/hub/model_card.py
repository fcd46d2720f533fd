"""The model card of a policy: README.md as the Hugging Face hub reads it, a YAML header and Markdown."""

from collections.abc import Iterator, Sequence

from huggingface_hub import EvalResult, ModelCardData

from ..evaluate.scores import Score, describe_rollout
from ..evaluate.tables import format_table
from ..policies.card import PolicyCard
from ..policies.names import AUTO, SOURCES, label, target_words, weights_words


def model_card(card: PolicyCard, scores: Sequence[Score], name: str, license: str) -> str:
    """The text of README.md of the model `name`; `scores`, which may be none, are of the policy's default weights.

    `license` is that of the weights, an identifier that the hub knows.
    """
    header = ModelCardData(
        license=license,
        library_name="aaren-rl",
        pipeline_tag="reinforcement-learning",
        tags=["reinforcement-learning", "offline-rl", card.agent, card.env_id, card.dataset, "aaren-rl"],
        model_name=name,
        eval_results=[result for score in scores for result in _results(score, card)] or None,
    )
    table = f"```text\n{format_table(scores, speed=False)}\n```" if scores else "None were recorded."
    made_with = ", ".join(f"{name} {version}" for name, version in card.versions.items() if name != "device")
    windows = f"s of {card.context_length} steps" if card.context == "window" else ""
    shape, of = card.model, card.n_actions
    actions = (
        "" if of is None else f"- Actions: {of} integers from {card.action_start} on; the most likely one is taken\n"
    )
    trained = f"Trained offline for {card.updates:,} updates (seed {card.seed})."
    if card.source == "imported":
        trained = "Its weights were trained elsewhere."
    target = f'"{AUTO}"' if card.target_return == AUTO else target_words(card.target_return, ".15g")
    return f"""\
---
{header.to_yaml()}
---

# {label(card.agent)} for {card.env}

Plays `{card.env_id}`. {trained}

## Scores

{table}

## How it was made

- Data: {card.dataset}, {SOURCES.get(card.source, card.source)} (`{card.source_path}`)
- Environment: `{card.env_id}`, time limit {card.horizon} steps
{actions}- Training contexts: {card.context}{windows}
- Rollout: {describe_rollout(card.rollout, card.rollout_context)}
- Target return: {target_words(card.target_return)} by default, scaled by 1 / {card.return_scale:g}
- Weights: {weights_words(card.weights)}
- Model: {shape.get("layers")} layers of width {shape.get("width")}, {shape.get("heads")} heads
- Made with: {made_with}, on {card.versions.get("device", "an unknown device")}

## Use

```python
from aaren_rl.hub import from_pretrained

policy = from_pretrained("this-folder")
state = policy.initial_state(batch_size=1, target_return={target})
action, state = policy.act(observation, reward, state)  # observation (1, O), last reward (1,)
```

`config.json` holds the data's statistics and all else that the policy needs; loading executes nothing.
"""


def _results(score: Score, card: PolicyCard) -> Iterator[EvalResult]:
    data = f"{card.dataset} ({SOURCES.get(card.source, card.source)})"
    said = f"target return {target_words(score.target_return)}, {score.episodes} episodes from seed {score.seed}"
    values = {"mean_reward": ("mean return", score.return_mean)}
    if score.normalized_score_mean is not None:
        values["normalized_score"] = f"normalized score ({score.reference})", score.normalized_score_mean
    for kind, (name, value) in values.items():
        yield EvalResult(
            task_type="reinforcement-learning",
            dataset_type=score.env_id,
            dataset_name=f"{score.env_id}, trained on {data}",
            metric_type=kind,
            metric_name=f"{name}, {said}",
            metric_value=round(value, 2),
        )
