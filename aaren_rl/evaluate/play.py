"""What a policy scores: in episodes that it plays, and in imitating held-out ones, step by step (teacher-forced).

Scores of two training seeds may differ by 30 points while the held-out errors differ by a percent, so use these to
judge a recipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete
from scipy.special import log_softmax

from ..agents.policy.base import BasePolicy
from ..base.errors import CheckpointError, UsageError
from ..base.fields import AUTO
from ..base.files import note_once
from ..cli import progress_bar
from ..envs.simulation import rollout
from ..envs.tasks.environment import close_env, make_env, own_task
from ..envs.tasks.spaces import Layout, parts_of
from ..envs.tasks.table import Reference, normalized_score
from ..policies.card import Origin, PolicyCard, target_number
from ..policies.held_out import HeldOut
from ..policies.table import find_agent
from .scores import ActionError, Score

HELD_OUT_AT_ONCE = 64  # episodes per batch: more save no time per step


@dataclass(frozen=True)
class EpisodePlan:
    """The episodes of an evaluation."""

    weights: str  # weights of the policy: "raw" or "ema"
    episodes: int  # environments per target return, one episode each
    target_returns: Sequence[float | str]  # in units of the environment, or "auto"
    seed: int  # environment i is reset with seed + i, the same for every target return


def score_policy(policy: BasePolicy, card: PolicyCard, plan: EpisodePlan, **watchers: Any) -> list[Score]:  # noqa: ANN401
    """Roll out a policy for every target return, all in one batch, and score it. `card` describes the policy.

    `watchers` are `on_step` and `on_action` of `envs.rollout`.

    Raises:
        CheckpointError: the sizes of the environment and the policy differ.
        UsageError: the target is the maximum achievable return, and the policy cannot estimate it.
        SimulationError: the environment is unknown or fails.
        NonFiniteActionError: the policy returns NaN.
    """
    check_fits(card)
    if AUTO in plan.target_returns and not card.model.get("max_return_estimate"):
        hint = "give a number, or train it with --max-return-estimate"
        if not find_agent(card.agent).conditioned:
            hint = f"{card.agent} is not conditioned on returns; leave it out"
        raise UsageError(
            f"target return {AUTO}: this policy holds no estimate of the maximum achievable return; {hint}"
        )
    asked = [target_number(target) for target in plan.target_returns]
    played = {"env_kwargs": card.env_kwargs, "episodes": plan.episodes, "seed": plan.seed, **watchers}
    out = rollout(policy, card.env_id, target_return=asked, **played)
    origin: dict[str, Any] = {each.name: getattr(card, each.name) for each in fields(Origin)}
    origin |= {"rollout": policy.rollout, "rollout_context": policy.context_length, "weights": plan.weights}
    attention = str(getattr(policy, "tree", None) or "softmax")  # an exported policy has no tree
    made = []
    for i, target in enumerate(plan.target_returns):
        part = slice(i * plan.episodes, (i + 1) * plan.episodes)
        returns, lengths, scores = out.returns[part], out.lengths[part], None
        if card.reference is not None and card.reference_returns is not None:
            scores = normalized_score(Reference(card.reference, *card.reference_returns), returns)
        score = Score(
            **origin | {"target_return": target},
            training_seed=card.seed,
            episodes=plan.episodes,
            seed=plan.seed,
            return_mean=float(returns.mean()),
            return_std=float(returns.std()),
            normalized_score_mean=None if scores is None else float(scores.mean()),
            normalized_score_std=None if scores is None else float(scores.std()),
            length_mean=float(lengths.mean()),
            actions_per_second=out.actions_per_second,
            returns=returns.tolist(),
            lengths=lengths.tolist(),
            attention=attention,
            temperature=policy.temperature,
        )
        made.append(score)
    return made


def check_fits(card: PolicyCard) -> None:
    """Raise CheckpointError if the sizes of a policy and its environment differ, SimulationError if that fails.

    UsageError: the policy was trained without an environment.
    """
    if not card.env_id:
        raise UsageError(f"{card.env}: was trained without an environment, and this needs one; train with --env-id ID")
    env = make_env(card.env_id, **card.env_kwargs)
    seen, space, parts = env.observation_space.shape, env.action_space, env.unwrapped.observation_space
    close_env(env)
    if card.observation_space is not None or not isinstance(parts, Box):
        _check_parts(card, card.observation_space)
    own, actions = card.model.get("observation_dim"), card.model.get("action_dim")
    if card.n_actions is None:
        wanted, fits = f"{actions} actions", not isinstance(space, Discrete) and space.shape == (actions,)
    else:
        first, last = card.action_start, card.action_start + card.n_actions
        wanted = str(Discrete(card.n_actions, start=first))  # of which an environment may have more
        fits = isinstance(space, Discrete) and space.start <= first and last <= space.start + space.n
    if seen != (own,) or not fits:
        raise CheckpointError(
            f"the policy was trained on {card.dataset} with {own} observations and {wanted}, {card.env_id} has {seen} "
            f"and {space}; choose another environment"
        )


def _check_parts(card: PolicyCard, trained: Layout | None) -> None:
    """Raise CheckpointError where an environment flattens observations in another way than a policy was trained on."""
    shown = own_task(card.env, card.env_id, env_kwargs=card.env_kwargs).layout
    if shown is None:  # of what flattens itself, the parts are not known
        return
    here, there = list(parts_of(trained or shown).items()), list(parts_of(shown).items())
    told = [", ".join(f"{name.partition('/')[2]} ({size})" for name, size in of) for of in (here, there)]
    if trained is None and len(there) > 1:
        note_once(f"{card.env_id} flattens {told[1]}; the columns of the data must be in that order: they had no names")
    if here == there:
        return
    raise CheckpointError(
        f"the policy was trained on observations of {told[0]}, {card.env_id} flattens {told[1]}; train with --env-id "
        f"{card.env_id}, which puts the data in that order"
    )


def action_error(
    policy: BasePolicy, held_out: HeldOut, action_low: npt.ArrayLike = -1.0, action_high: npt.ArrayLike = 1.0
) -> ActionError:
    """Run `policy.act` over every episode from its first step, in the rollout mode of the policy.

    The target is the return of the episode. The policy gets its observations, rewards and executed actions, not its own
    actions. The bounds are those of the environment, (A,) or one for all; discrete actions have none.

    Raises:
        NonFiniteActionError: the policy returns NaN.
    """
    episodes = held_out.episodes
    half = (np.asarray(action_high, dtype=np.float64) - np.asarray(action_low, dtype=np.float64)) / 2
    longest_first = np.argsort(-episodes.lengths, kind="stable")
    sums, correct = np.zeros(len(episodes)), np.zeros(len(episodes), np.int64)
    step = policy.logits if policy.discrete else policy.act
    bar = progress_bar(total=episodes.n_steps, desc="held-out episodes", unit="step", leave=False)
    for at in range(0, len(episodes), HELD_OUT_AT_ONCE):
        chosen = longest_first[at : at + HELD_OUT_AT_ONCE]
        first, lengths = episodes.offsets[chosen], episodes.lengths[chosen]
        state = policy.initial_state(len(chosen), episodes.returns[chosen])
        rewards = np.zeros(len(chosen), np.float32)
        for t in range(int(lengths[0])):
            running = int((lengths > t).sum())
            if running < len(rewards):
                state, rewards = policy.select(state, np.arange(running)), rewards[:running]
            rows = first[:running] + t
            predicted, state = step(episodes.observations[rows], rewards, state)
            executed, rewards = episodes.actions[rows], episodes.rewards[rows]
            if policy.discrete:
                taken = executed - policy.action_start
                sums[chosen[:running]] -= log_softmax(predicted.astype(np.float64), 1)[np.arange(running), taken]
                correct[chosen[:running]] += predicted.argmax(1) == taken
            else:
                squares = np.square((predicted.astype(np.float64) - executed) / half)
                sums[chosen[:running]] += squares.mean(1)
            state = state._replace(previous_action=executed)
            bar.update(running)
    bar.close()
    right = correct.tolist() if policy.discrete else None
    weights = None if held_out.weights is None else held_out.weights.tolist()
    return ActionError(
        sums.tolist(), episodes.lengths.tolist(), held_out.floor, right, weights, without_looking(held_out, half)
    )


def without_looking(held_out: HeldOut, half: npt.NDArray[np.float64]) -> dict[str, float]:
    """What two rules that see no observation would get: the squared error, or the accuracy of discrete actions.

    "one action": always the mean of these actions, or the most frequent one; "the last action": it again. `half` is
    half of the range of an action, (A,) or one for all.
    """
    episodes, actions = held_out.episodes, held_out.episodes.actions
    of_episodes = np.ones(len(episodes)) if held_out.weights is None else held_out.weights
    weights = np.repeat(of_episodes, episodes.lengths)
    if episodes.discrete:
        choices, place = np.unique(actions, return_inverse=True)
        one = choices[np.bincount(place, weights).argmax()]
        found = {"one action": actions == one, "the last action": actions == np.roll(actions, 1)}
    else:
        guesses = {
            "one action": np.average(actions, axis=0, weights=weights),
            "the last action": np.roll(actions, 1, 0),
        }
        found = {name: np.square((actions - guess) / half).mean(1) for name, guess in guesses.items()}
    later = np.ones(len(actions), bool)  # the steps that have a last action
    later[episodes.offsets[:-1]] = False
    counted = {"one action": weights, "the last action": weights * later}
    return {name: float(np.average(found[name], weights=w)) for name, w in counted.items() if w.any()}
