"""Write a trained policy as a folder in the layout of the Hugging Face hub: config.json, model.safetensors and a
README.md that says how the policy was made and what it scores.

  aaren-rl evaluate RUN --json scores.json
  aaren-rl hub RUN FOLDER --scores scores.json

Nothing is sent anywhere; `hf upload USER/NAME FOLDER` does that. FOLDER is a policy like any other:
  aaren-rl evaluate FOLDER
"""

# The folder holds config.json (the policy's card: how it was made and what it needs to act), model.safetensors (its
# default weights) and README.md (the model card, with scores and how they were made).

import argparse
import dataclasses
import json
import shlex
from collections.abc import Sequence
from importlib import resources
from pathlib import Path, PurePath

import yaml

from .base.errors import CheckpointError, UsageError, one_line
from .base.fields import read
from .base.files import check_free, read_small
from .cli import Parser, import_registering, run
from .evaluate.scores import Score, describe_rollout, format_table
from .policies.card import SOURCES, PolicyCard, target_words, weights_words
from .policies.folder import load_policy, save_policy
from .policies.table import label

__all__ = ["save_pretrained"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = Parser("hub", __doc__, "RUN FOLDER [options]")
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
    print(f"send it with: hf upload USER/NAME {shlex.quote(str(folder))}")
    return 0


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
    shared = "agent", "env", "env_id", "updates", "weights", "rollout", "rollout_context"
    own = *(getattr(card, name) for name in shared), card.seed, str(policy.tree or "softmax"), None
    for score in scores:
        found = *(getattr(score, name) for name in shared), score.training_seed, score.attention, score.temperature
        if found != own:
            raise CheckpointError(f"the score is of {found}, the policy is {own}; evaluate this policy")
    readme = model_card(card, scores, folder.resolve().name, license)
    save_policy(folder, card, {card.weights: policy.model.state_dict()}, readme)
    return folder


def plain(text: str) -> str:
    """Text that ends no code of Markdown."""
    return text.replace("`", "'")


def model_card(card: PolicyCard, scores: Sequence[Score], name: str, license: str) -> str:
    """README.md of the model `name`, as the hub reads it: a YAML header and Markdown. `scores` are of its weights."""
    source = SOURCES.get(card.source, card.source)
    tags = ["reinforcement-learning", "offline-rl", card.agent, card.env_id, card.dataset, "aaren-rl"]
    header = {
        "license": license,
        "library_name": "aaren-rl",
        "pipeline_tag": "reinforcement-learning",
        "tags": [tag for tag in tags if tag],
        "model_name": name,
    }
    windows = f"s of {card.context_length} steps" if card.context == "window" else ""
    trained = f"{card.updates:,} gradient steps on {card.context}{windows or ' contexts'}, seed {card.seed}"
    made = {
        "Data": f"{card.dataset}, {source} (`{plain(card.source_path)}`)",
        "Environment": f"`{card.env_id}`, time limit {card.horizon} steps" if card.env_id else "none",
        "Training": "elsewhere" if card.source == "imported" else trained,
        "Rollout": f"{describe_rollout(card.rollout, card.rollout_context)}, {weights_words(card.weights)}",
        "Target return": f"{target_words(card.target_return, '.15g')} by default",
        "Made with": ", ".join(f"{package} {version}" for package, version in card.versions.items()),
    }
    text = resources.files("aaren_rl.configs").joinpath("model_card.md").read_text(encoding="utf-8")
    return text.format(
        header=yaml.safe_dump(header, sort_keys=False, allow_unicode=True).rstrip(),
        title=f"{label(card.agent)} for {card.env}",
        scores=plain(format_table(scores, speed=False)) if scores else "No scores were recorded.",
        made="\n".join(f"- {name}: {text}" for name, text in made.items()),
    )
