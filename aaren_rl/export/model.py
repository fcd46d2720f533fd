"""A policy as an ONNX model, tested against the policy before it is written."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from .._version import __version__
from ..agents import Policy
from ..base.errors import NumericsError, ResourcesError, UsageError
from ..cli import progress_bar
from ..envs import make_env
from ..envs.simulation.stepping import begin, take
from ..envs.tasks.environment import close_env
from ..policies.card import PolicyCard
from ..policies.names import target_number
from ..runtime import FORMAT, OnnxPolicy, from_bytes

if TYPE_CHECKING:
    import onnx

CHECKED_STEPS = 1000
TOLERANCE = 1e-5  # in units of half the action range, or in probability for discrete actions


def checked_model(policy: Policy, card: PolicyCard, precision: str, seed: int) -> tuple[onnx.ModelProto, float]:
    """The ONNX model of a policy, and the largest difference of its actions. Raises as `make_model` and `check`."""
    model = make_model(policy, card, precision)
    difference = check(policy, make_onnx_policy(model), card, seed)
    how = {"precision": precision, "checked_steps": CHECKED_STEPS, "largest_difference": difference}
    _describe(model, card, **how)
    return model, difference


def make_model(policy: Policy, card: PolicyCard, precision: str = "float32") -> onnx.ModelProto:
    """The ONNX model of a policy, untested.

    Raises:
        UsageError: the mixer has no ONNX graph in this rollout mode, or the policy is guided.
        ResourcesError: a package is missing.
    """
    if policy.guidance != 1:
        raise UsageError("guided policies cannot be exported; export the base policy")
    try:
        from .onnx_graph import step_graph
    except ImportError as error:
        raise ResourcesError("export needs the package onnx: pip install 'aaren-rl[export]'") from error
    model = step_graph(policy, precision=precision)
    _describe(model, card, precision=precision)
    return model


def _describe(model: onnx.ModelProto, card: PolicyCard, **how: object) -> None:
    from onnx.helper import set_model_props

    described = {"policy": dataclasses.asdict(card), "export": {"aaren-rl": __version__, **how}}
    texts = {name: json.dumps(value) for name, value in described.items()}
    set_model_props(model, {"aaren_rl_format": FORMAT, **texts})


def make_onnx_policy(model: onnx.ModelProto) -> OnnxPolicy:
    """The policy of an ONNX model."""
    return from_bytes(model.SerializeToString(), "the exported model")


class _Drawn:
    """Takes the place of environments: observations as far apart as those of the data, and small rewards."""

    def __init__(self, card: PolicyCard, count: int, seed: int) -> None:
        self._rng, self._count = np.random.default_rng(seed), count
        self._mean, self._std = np.array(card.observation_mean), np.array(card.observation_std)
        self._reward = card.return_scale / card.horizon

    def reset(self) -> npt.NDArray[Any]:
        return self._rng.normal(self._mean, self._std, (self._count, len(self._mean)))

    def step(self, _: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32], bool]:
        rewards = self._rng.normal(0.0, self._reward, self._count)
        return self.reset(), rewards.astype(np.float32), False  # nothing depends on the actions

    def close(self) -> None:
        """Nothing is open."""


class _Played:
    """Environments of seeds from `seed` on: observations (B, O), rewards (B,), and whether an episode ended."""

    def __init__(self, card: PolicyCard, count: int, seed: int) -> None:
        self._envs, self._seed = [make_env(card.env_id, **card.env_kwargs) for _ in range(count)], seed

    def reset(self) -> npt.NDArray[Any]:
        return np.stack([begin(env, seed=self._seed + i)[0] for i, env in enumerate(self._envs)])

    def step(self, actions: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32], bool]:
        taken = [take(env, action) for env, action in zip(self._envs, actions, strict=True)]
        observations, rewards, terminated, truncated, _ = zip(*taken, strict=True)
        return np.stack(observations), np.array(rewards, np.float32), any(terminated + truncated)

    def close(self) -> None:
        for env in self._envs:
            close_env(env)


def check(policy: Policy, onnx_policy: OnnxPolicy, card: PolicyCard, seed: int) -> float:
    """The largest difference of an action from PyTorch, in units of half its range, for several target returns.

    For discrete actions, the difference of probabilities, the softmax of the logits. PyTorch selects the actions. When
    an episode ends another starts, but the states of the policies continue, to test them after any number of steps.
    Where a policy was trained without an environment, observations are drawn with the means and deviations of the data.

    Raises:
        NumericsError: it is above 1e-5 or NaN.
        SimulationError: the environment cannot be made, or fails.
    """
    target = target_number(card.target_return)
    targets = np.array([target, target / 2] + [math.inf] * (policy.model.max_return_estimate is not None))
    count = len(targets)
    half = policy.scaling.action_half.double().cpu().numpy()
    policy = dataclasses.replace(policy, compiled=False)  # plain PyTorch operations
    envs = (_Played if card.env_id else _Drawn)(card, count, seed)
    largest = 0.0
    try:
        observations, rewards = envs.reset(), np.zeros(count, np.float32)
        state, exported = policy.initial_state(count, targets), onnx_policy.initial_state(count, targets)
        for step in progress_bar(iterable=range(CHECKED_STEPS), desc="check", unit="step", leave=False):
            now = observations, rewards
            acted, state = policy.logits(*now, state) if policy.discrete else policy.act(*now, state)
            other, exported = onnx_policy.logits(*now, exported) if policy.discrete else onnx_policy.act(*now, exported)
            action = np.copy(state.previous_action)  # type: ignore[arg-type]  # never None after a step
            exported = exported._replace(previous_action=action)  # the executed action
            if policy.discrete:
                acted, other = softmax(acted, 1), softmax(other, 1)
            largest = max(largest, difference := float((np.abs(other - acted) / half).max()))
            if not difference <= TOLERANCE:
                raise NumericsError(
                    f"the action of the exported policy at step {step} differs from PyTorch by {difference:.2g} "
                    f"(more than {TOLERANCE:g} {'in probability' if policy.discrete else 'of half its range'}); "
                    "nothing was written"
                )
            observations, rewards, ended = envs.step(action)
            if ended:
                observations = envs.reset()
    finally:
        envs.close()
    return largest
