"""The policy that a command line of `evaluate` asks for: from a folder or an exported file, and its environment."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..agents.policy.base import BasePolicy
from ..base.errors import CheckpointError, UsageError
from ..cli import choose_device
from ..envs.tasks.arguments import env_kwargs
from ..envs.tasks.environment import has_no_limit
from ..policies.card import PolicyCard, card_from_json
from ..runtime import load_policy

if TYPE_CHECKING:
    from ..policies.folder import SavedPolicy


def open_policy(path: Path, arguments: argparse.Namespace) -> tuple[BasePolicy, PolicyCard, str]:
    """The policy of a folder or file as the options of `evaluate` want it, its card, and the name of its weights.

    Raises UsageError for an option that does not go with it, CheckpointError where it cannot be loaded.
    """
    if path.is_file() or path.suffix == ".onnx":  # where it is missing, torch may be, too
        return _open_exported(path, arguments)
    from ..policies import folder

    chosen = {name: getattr(arguments, name) for name in ("rollout", "rollout_context", "weights")}
    policy = folder.load_policy(path, **chosen, device=choose_device(arguments.device))
    acting = _attention(arguments, policy)
    if arguments.temperature is not None:
        try:
            acting = dataclasses.replace(acting, temperature=arguments.temperature)
        except ValueError as error:
            raise UsageError(f"--{error}") from error
    return acting, policy.card, arguments.weights or policy.card.weights


def _open_exported(path: Path, arguments: argparse.Namespace) -> tuple[BasePolicy, PolicyCard, str]:
    options = {"--rollout": arguments.rollout, "--rollout-context": arguments.rollout_context}
    if fixed := [name for name, asked in {**options, "--weights": arguments.weights}.items() if asked is not None]:
        raise UsageError(f"{', '.join(fixed)}: fixed in {path}; export the policy again with other options")
    changes = {
        "--attention tree": arguments.attention == "tree",
        "--tree-budget": arguments.tree_budget is not None,
        "--tree-sampler": arguments.tree_sampler is not None,
    }
    if asked := [name for name, given in changes.items() if given]:
        raise UsageError(f"{', '.join(asked)}: not for an exported policy; give a run folder")
    if arguments.device not in ("auto", "cpu"):
        raise UsageError(f"--device {arguments.device}: an exported policy runs on the CPU")
    policy = load_policy(path, temperature=arguments.temperature)
    try:
        card = card_from_json(policy.card)
    except ValueError as error:
        raise CheckpointError(f"{path}: its card cannot be used: {error}") from error
    if not isinstance(precision := policy.export.get("precision"), str):
        raise CheckpointError(f"{path}: the precision is missing; export the policy again")
    return policy, card, card.weights if precision == "float32" else f"{card.weights} {precision}"


def _attention(arguments: argparse.Namespace, policy: SavedPolicy) -> SavedPolicy:
    """The policy with the requested attention. The seed of the episodes also seeds the samples."""
    from ..agents import TreeConfig

    options = {"budget": arguments.tree_budget, "sampler": arguments.tree_sampler}
    asked = {name: value for name, value in options.items() if value is not None}
    if arguments.attention == "tree":
        try:
            return dataclasses.replace(policy, tree=TreeConfig(**asked, seed=arguments.eval_seed))
        except ValueError as error:
            raise UsageError(f"--attention tree: {error}") from error
    if asked:
        raise UsageError(f"--tree-{next(iter(asked))} needs --attention tree")
    return policy if arguments.attention is None else dataclasses.replace(policy, tree=None)


def in_environment(card: PolicyCard, env_id: str | None, given: str | None) -> PolicyCard:
    """The card of a policy in the environment `env_id`, None: its own, with arguments `given` as JSON beside its own.

    Reference returns and those of the data are valid in one environment only, and are left out elsewhere. Raises
    UsageError where the arguments cannot be used.
    """
    if env_id == "":
        raise UsageError("--env-id: must not be empty; leave it out for the policy's own environment")
    try:
        kwargs = {**card.env_kwargs, **env_kwargs(given)}
    except ValueError as error:
        raise UsageError(f"--env-kwargs {error}") from error
    env_id = env_id or card.env_id
    if given is not None and not env_id:
        raise UsageError("--env-kwargs: the policy was trained without an environment; add --env-id ID")
    if (env_id, kwargs) == (card.env_id, card.env_kwargs):
        return card
    if "max_episode_steps" not in kwargs and has_no_limit(env_id):
        kwargs["max_episode_steps"] = card.horizon
        print(f"note: {env_id} has no time limit: episodes end after {card.horizon:,} steps", file=sys.stderr)
    unknown: dict[str, Any] = {"reference": None, "reference_returns": None, "data_returns": {}}
    return dataclasses.replace(card, env_id=env_id, env_kwargs=kwargs, **unknown)
