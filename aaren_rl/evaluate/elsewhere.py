"""A policy in another environment than that of its card."""

import dataclasses
import sys
from typing import Any

from ..base.errors import UsageError
from ..envs.tasks.arguments import env_kwargs
from ..envs.tasks.environment import has_no_limit
from ..policies.card import PolicyCard


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
