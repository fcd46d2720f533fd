"""Scores that say how they were made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from .envs import Reference, Rollouts, SequencePolicy, make_env, normalized_score, rollout
from .envs.simulation.recording import Recorder
from .envs.simulation.rollout import OnAction
from .errors import CheckpointError
from .policies.card import PolicyCard
from .policies.names import SOURCES

State = TypeVar("State")


class ScoredPolicy(SequencePolicy[State], Protocol[State]):
    """What is scored: `agents.Policy`, or `runtime.Runner`."""

    @property
    def rollout(self) -> str:
        """The rollout mode."""
        ...

    @property
    def context_length(self) -> int:
        """K of the modes rolling and window, in steps."""
        ...


@dataclass(frozen=True)
class Score:
    """The outcome of one evaluation, with everything needed to repeat it.

    Returns are in the environment's units; normalised scores are 100 (R - random) / (expert - random) with the returns
    of `reference`, and None where there is none; standard deviations are over episodes.
    """

    env: str
    dataset: str
    source: str
    source_path: str
    env_id: str
    agent: str
    context: str
    context_length: int
    rollout: str
    rollout_context: int
    weights: str
    updates: int
    training_seed: int
    target_return: float
    episodes: int
    seed: int
    return_mean: float
    return_std: float
    reference: str | None
    normalized_score_mean: float | None
    normalized_score_std: float | None
    length_mean: float
    actions_per_second: float
    returns: list[float]
    attention: str = "softmax"  # where it is not: how tree attention was computed

    def acting(self) -> str:
        """The rollout mode with all that belongs to it."""
        mode = describe_rollout(self.rollout, self.rollout_context)
        return mode if self.attention == "softmax" else f"{mode}, {self.attention}"

    @property
    def headline(self) -> float:
        """The one number to compare policies of a task by: the normalised score, else the return."""
        return self.return_mean if self.normalized_score_mean is None else self.normalized_score_mean

    def scalars(self, prefix: str) -> dict[str, float]:
        """What is logged of an evaluation, under the same tags for every agent."""
        score = self.normalized_score_mean
        return {
            **({} if score is None else {f"{prefix}/normalized_score": score}),
            f"{prefix}/return_mean": self.return_mean,
            f"{prefix}/return_std": self.return_std,
            f"{prefix}/length_mean": self.length_mean,
            f"{prefix}/actions_per_second": self.actions_per_second,
        }

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(tree: Any) -> Score | None:  # noqa: ANN401  read from a file
        """The inverse; None stays None.

        Raises:
            CheckpointError: the values are no score.
        """
        try:
            return None if tree is None else Score(**tree)
        except TypeError as error:
            raise CheckpointError(f"the checkpoint's scores are not readable: {error}") from error


def mismatch(context: str, context_length: int, rollout: str) -> str | None:
    """A line to show where the rollout mode asks for contexts that training did not show; None where it does not."""
    if context == "window" and rollout == "carry":
        return (
            f"note: trained on windows of {context_length} steps, which do not prepare for the rollout carry: scores "
            "are far lower than what the policy can do; use rolling or window, or train on mixed contexts"
        )
    if context == "episode" and rollout != "carry":
        return (
            f"note: trained on whole episodes only, which do not prepare for the rollout {rollout}: scores are far "
            "lower than what the policy can do; use carry, or train on mixed contexts"
        )
    return None


def score_policy(
    policy: ScoredPolicy[State],
    card: PolicyCard,
    *,
    weights: str,
    episodes: int,
    target_returns: Sequence[float],
    seed: int,
    on_step: Callable[[int, int], None] | None = None,
    on_action: OnAction | None = None,
    recorder: Recorder | None = None,
) -> list[Score]:
    """Rolls a policy out for every asked return, all at once, and scores it.

    Args:
        policy: the policy.
        card: how it was made.
        weights: "raw" or "average": which of its weights `policy` holds.
        episodes: number of environments for each asked return, one episode each.
        target_returns: asked for, in the environment's units; a score for each.
        seed: environment i is reset with seed + i, the same for every asked return.
        on_step: progress, see `envs.rollout`.
        on_action: the actions, see `envs.rollout`.
        recorder: keeps the episodes, see `envs.rollout`.

    Raises:
        CheckpointError: the environment's sizes are not the policy's.
        SimulationError: the environment is unknown or fails.
        NonFiniteActionError: the policy gives NaN.
    """
    check_fits(card)
    out = rollout(
        policy,
        card.env_id,
        env_kwargs=card.env_kwargs,
        episodes=episodes,
        target_return=target_returns,
        seed=seed,
        on_step=on_step,
        on_action=on_action,
        recorder=recorder,
    )
    parts = np.split(np.arange(len(out.returns)), len(target_returns))
    return [
        _score(policy, card, weights, target, seed, out, part)
        for target, part in zip(target_returns, parts, strict=True)
    ]


def check_fits(card: PolicyCard) -> None:
    """Holds a policy's sizes against its environment's.

    Raises:
        CheckpointError: they differ.
        SimulationError: the environment is unknown or cannot be made.
    """
    env = make_env(card.env_id, **card.env_kwargs)
    found = env.observation_space.shape, env.action_space.shape
    env.close()
    sizes = card.model["observation_dim"], card.model["action_dim"]
    if found != ((sizes[0],), (sizes[1],)):
        raise CheckpointError(
            f"the policy was trained on {card.dataset} with {sizes[0]} observations and "
            f"{sizes[1]} actions, {card.env_id} has {found[0]} and {found[1]}; choose another environment"
        )


def _score(
    policy: ScoredPolicy[State],
    card: PolicyCard,
    weights: str,
    target_return: float,
    seed: int,
    out: Rollouts,
    part: npt.NDArray[np.int64],
) -> Score:
    """The score of the episodes `part` of a rollout."""
    returns, scores = out.returns[part], None
    if card.reference is not None and card.reference_returns is not None:
        scores = normalized_score(Reference(card.reference, *card.reference_returns), returns)
    return Score(
        env=card.env,
        dataset=card.dataset,
        source=card.source,
        source_path=card.source_path,
        env_id=card.env_id,
        agent=card.agent,
        context=card.context,
        context_length=card.context_length,
        rollout=policy.rollout,
        rollout_context=policy.context_length,
        weights=weights,
        updates=card.updates,
        training_seed=card.seed,
        target_return=target_return,
        episodes=len(part),
        seed=seed,
        return_mean=float(returns.mean()),
        return_std=float(returns.std()),
        reference=card.reference,
        normalized_score_mean=None if scores is None else float(scores.mean()),
        normalized_score_std=None if scores is None else float(scores.std()),
        length_mean=float(out.lengths[part].mean()),
        actions_per_second=out.actions_per_second,
        returns=returns.tolist(),
        attention=_attention(policy),
    )


def describe_rollout(mode: str, context: int) -> str:
    """A rollout mode with K where it has one."""
    return mode if mode == "carry" else f"{mode}, K = {context}"


def _attention(policy: ScoredPolicy[State]) -> str:
    """How attention is computed; an exported policy has no tree, nor torch to ask with."""
    if not hasattr(policy, "model"):
        return "softmax"
    from .agents import Policy, tree_config

    assert isinstance(policy, Policy)
    return str(tree_config(policy) or "softmax")


def format_table(scores: Sequence[Score]) -> str:
    """The scores of one policy as a table, under a line that says how they were made."""
    first = scores[0]
    made = f"{first.updates} updates on {first.context} contexts, training seed {first.training_seed}"
    lines = [
        f"{first.env}, {first.agent}: {'weights' if first.source == 'imported' else made}, {first.weights} weights",
        f"data: {first.dataset} from {SOURCES.get(first.source, first.source)}; rollout {first.acting()}; "
        f"{first.env_id}, {first.episodes} episodes from seed {first.seed}",
        "",
        f"{'target':>8} {'return':>8} {'+-':>7} {'score':>7} {'+-':>6} {'length':>7} {'actions/s':>10}",
    ]
    lines += [
        f"{s.target_return:>8g} {s.return_mean:>8.1f} {s.return_std:>7.1f} {_cell(s.normalized_score_mean):>7} "
        f"{_cell(s.normalized_score_std):>6} {s.length_mean:>7.1f} {s.actions_per_second:>10.0f}"
        for s in scores
    ]
    if first.reference is None:
        legend = "no score: this environment has no reference returns (--ref-min-score, --ref-max-score)"
    else:
        legend = f"score: 100 (return - random) / (expert - random), {first.reference}"
    return "\n".join([*lines, "", f"{legend}; +- over episodes"])


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
