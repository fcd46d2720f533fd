"""An exported policy beside PyTorch: both play the same steps."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..agents import Policy
from ..base.errors import NumericsError
from ..cli import progress_bar
from ..envs.simulation.stepping import begin, take
from ..envs.tasks.environment import close_env, make_env
from ..policies.card import PolicyCard
from ..policies.names import target_number
from ..runtime import OnnxPolicy

TOLERANCE = 1e-4  # in units of half the action range, or of the largest logit of discrete actions, at least 1

Floats = npt.NDArray[np.floating[Any]]


def check(policy: Policy, exported: OnnxPolicy, card: PolicyCard, seed: int, steps: int) -> float:
    """The largest difference of an action from PyTorch, or of a logit, for several target returns, in units as above.

    Several policies with a target each see one environment, and PyTorch's action for the first target is executed. When
    an episode ends another starts, but the states of the policies continue, to test them after any number of steps.

    Raises:
        NumericsError: it is above 1e-4 or NaN, or a discrete action is another one and not as likely.
        SimulationError: the environment cannot be made, or fails.
    """
    target = target_number(card.target_return)
    targets = np.array([target, target / 2] + [math.inf] * (policy.model.max_return_estimate is not None))
    policy = replace(policy, compiled=False)  # plain PyTorch operations
    state, other_state = policy.initial_state(len(targets), targets), exported.initial_state(len(targets), targets)
    half = policy.scaling.action_half.double().cpu().numpy()
    action: Any = None
    difference: Any
    largest = 0.0
    with closing(_observed(card, seed)) as environment:
        for step in progress_bar(iterable=range(steps), desc="check", unit="step", leave=False):
            observation, reward = environment.send(action)
            now = np.tile(observation, (len(targets), 1)), np.full(len(targets), reward)
            acted, state = policy.logits(*now, state) if policy.discrete else policy.act(*now, state)
            other, other_state = (exported.logits if policy.discrete else exported.act)(*now, other_state)
            taken: Any = state.previous_action
            other_state = other_state._replace(previous_action=taken.copy())  # the executed action
            action = taken[0].copy()
            difference, same = _logits(acted, other) if policy.discrete else (np.abs(other - acted) / half, True)
            largest = float(np.maximum(largest, np.max(difference)))  # of a NaN, NaN
            if not (largest <= TOLERANCE and same):
                raise NumericsError(
                    f"the exported policy differs from PyTorch at step {step} by {float(np.max(difference)):.2g} of "
                    f"{'the largest logit' if policy.discrete else 'half the action range'}, more than {TOLERANCE:g}"
                    f"{'' if same else ', and takes another action'}; nothing was written"
                )
    return largest


def _logits(acted: Floats, other: Floats) -> tuple[float, bool]:
    """The difference of logits (B, n), and whether PyTorch's choice is the other's, or as likely within it."""
    scale = max(1.0, float(np.abs(acted).max()))
    chosen = np.take_along_axis(other, acted.argmax(1, keepdims=True), 1)[:, 0]
    return float(np.abs(other - acted).max()) / scale, bool((chosen >= other.max(1) - TOLERANCE * scale).all())


def _observed(card: PolicyCard, seed: int) -> Generator[tuple[Floats, float], Any, None]:
    """Observations (O,) and the rewards before them; is sent actions. Without an environment they are drawn."""
    if not card.env_id:
        rng = np.random.default_rng(seed)
        while True:
            drawn = rng.normal(card.observation_mean, card.observation_std)
            yield drawn, rng.normal(0.0, card.return_scale / card.horizon)
    env, reward = make_env(card.env_id, **card.env_kwargs), 0.0
    try:
        observation, _ = begin(env, f"reset with seed {seed}", seed=seed)
        while True:
            action = yield observation, reward
            observation, reward, terminated, truncated, _ = take(env, action)
            if terminated or truncated:
                observation, _ = begin(env)
    finally:
        close_env(env)
