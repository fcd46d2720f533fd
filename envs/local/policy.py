"""Behavior policies, and the episodes that they play."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain, count, repeat
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from ...base.system import core_count
from ..data.episodes import Episode
from ..simulation import begin, take
from ..tasks.environment import close_env, make_env

_LOG_STD_RANGE = (-20.0, 2.0)

# Actions are multiples of this: processors add a product's terms in different orders, which in float64 changes an
# action by some 1e-15, and an action that is changed at all is soon another episode.
_GRID = 2.0**-16

# Measured: 8 episodes at once take 20 % less time per step than 1, and 16 no less than 8.
_AT_ONCE = 8


class BehaviorPolicy:
    """A trained SAC actor: two ReLU layers, then mean and log standard deviation of a tanh-squashed Gaussian.

    `path` is a safetensors file with the (in, out) kernels and the biases of hidden_0, hidden_1, mean and log_std.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        weights = {name: weight.astype(np.float64) for name, weight in load_file(path).items()}
        self._hidden = [(weights[f"hidden_{i}.kernel"], weights[f"hidden_{i}.bias"]) for i in range(2)]
        # One product instead of two for both heads.
        self._heads = np.concatenate([weights[f"{head}.kernel"] for head in ("mean", "log_std")], axis=1)
        self._heads_bias = np.concatenate([weights[f"{head}.bias"] for head in ("mean", "log_std")])
        self.action_dim = len(weights["mean.bias"])

    def gaussian(
        self, observations: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Mean and standard deviation, both (B, A), of the Gaussian before the tanh, for observations (B, O)."""
        x = observations.astype(np.float64)
        for kernel, bias in self._hidden:
            x = np.maximum(x @ kernel + bias, 0.0)
        mean, log_std = np.split(x @ self._heads + self._heads_bias, 2, axis=1)
        return mean, np.exp(np.clip(log_std, *_LOG_STD_RANGE))

    def act(self, observations: npt.NDArray[np.float32], noise: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Actions (B, A) in [-1, 1] for observations (B, O) and standard normal noise (B, A); zero noise: the median.

        The same on every processor.
        """
        mean, std = self.gaussian(observations)
        return (np.round(np.tanh(mean + std * noise) / _GRID) * _GRID).astype(np.float32)


def play(
    envs: list[gym.Env[Any, Any]], policy: BehaviorPolicy | None, horizon: int, seed: tuple[int, ...], first: int
) -> list[Episode]:
    """An episode of each environment, the numbers `first`, `first` + 1, ...; one product of the policy serves all.

    Without a policy, actions are uniformly random. All randomness of an episode comes from `seed` and its number.
    SimulationError: an environment fails.
    """
    rngs = [np.random.default_rng((*seed, first + e)) for e in range(len(envs))]
    begun = [begin(env, seed=int(rng.integers(2**31)))[0] for env, rng in zip(envs, rngs, strict=True)]
    now = np.stack(begun).astype(np.float32)
    shape = (horizon, *envs[0].action_space.shape)  # type: ignore[misc]  # a Box has one
    if policy is None:
        noise = np.stack([rng.uniform(-1.0, 1.0, shape).astype(np.float32) for rng in rngs])
    else:
        noise = np.stack([rng.standard_normal(shape, dtype=np.float32) for rng in rngs])
    actions = noise  # a row holds the noise until its step overwrites it with the action
    observations = np.empty((len(envs), horizon, now.shape[1]), np.float32)
    rewards = np.empty((len(envs), horizon), np.float32)
    lengths, terminated = np.zeros(len(envs), np.int64), np.zeros(len(envs), np.bool_)
    running = list(range(len(envs)))
    for t in range(horizon):
        observations[running, t] = now[running]
        if policy is not None:
            actions[running, t] = policy.act(now[running], noise[running, t])
        going = []
        for e in running:
            now[e], rewards[e, t], terminated[e], truncated, _ = take(envs[e], actions[e, t].copy(), f"step {t + 1}")
            lengths[e] = t + 1
            if not (terminated[e] or truncated):
                going.append(e)
        if not (running := going):
            break
    # Copies: most of the arrays may be unused.
    return [
        Episode(observations[e, :n].copy(), actions[e, :n].copy(), rewards[e, :n].copy(), bool(terminated[e]))
        for e, n in enumerate(lengths)
    ]


def episodes_of(
    env_id: str, policy: BehaviorPolicy | None, horizon: int, seed: tuple[int, ...], n_steps: int
) -> Iterator[Episode]:
    """Episodes from number 0 on until they have `n_steps`, the last one whole; threads play several at once.

    MuJoCo runs in parallel in threads. SimulationError: an environment fails.
    """
    threads = min(core_count(), -(-n_steps // (_AT_ONCE * horizon)))
    with ExitStack() as stack:

        def made() -> gym.Env[Any, Any]:
            env = make_env(env_id)
            stack.callback(close_env, env)
            return env.unwrapped  # Gymnasium's wrappers cost time at every step: `horizon` is the time limit

        teams = [[made() for _ in range(_AT_ONCE)] for _ in range(threads)]
        pool = stack.enter_context(ThreadPoolExecutor(threads))
        for first in count(0, _AT_ONCE * threads):
            numbers = range(first, first + _AT_ONCE * threads, _AT_ONCE)
            played = pool.map(play, teams, repeat(policy), repeat(horizon), repeat(seed), numbers)
            for episode in chain.from_iterable(played):
                yield episode
                n_steps -= len(episode)
                if n_steps <= 0:
                    return
