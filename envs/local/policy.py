"""Behavior policies and the episodes they make, on several processes."""

import importlib
import json
import os
import queue
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import lru_cache
from itertools import count, islice
from typing import Any, NamedTuple, Self

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from ...base.processes import Worker, serve
from ..data.episodes import Episode
from ..simulation.stepping import begin, take
from ..tasks.environment import make_env

EXPLORATION = 0.1  # how often a Q-network's action is a random one, in training too
_LOG_STD_RANGE = (-20.0, 2.0)

# Actions are multiples of this: processors add a product's terms in different orders, which in float64 changes an
# action by some 1e-15, and an action that is changed at all is soon another episode.
_GRID = 2.0**-16


class BehaviorPolicy:
    """A trained SAC actor: two ReLU layers, then mean and log standard deviation of a tanh-squashed Gaussian.

    `path` is a safetensors file with the (in, out) kernels and the biases of hidden_0, hidden_1, mean and log_std; of a
    Q-network of DQN's, which acts by `choose`, of hidden_0, hidden_1 and values.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        weights = {name: weight.astype(np.float64) for name, weight in load_file(path).items()}
        self._hidden = [(weights[f"hidden_{i}.kernel"], weights[f"hidden_{i}.bias"]) for i in range(2)]
        # One product instead of two for both heads.
        heads = ("values",) if "values.bias" in weights else ("mean", "log_std")
        self._heads = np.concatenate([weights[f"{head}.kernel"] for head in heads], axis=1)
        self._heads_bias = np.concatenate([weights[f"{head}.bias"] for head in heads])
        self.action_dim = len(weights[f"{heads[0]}.bias"])

    def gaussian(
        self, observations: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Mean and standard deviation, both (B, A), of the Gaussian before the tanh, for observations (B, O)."""
        mean, log_std = np.split(self._outputs(observations), 2, axis=1)
        return mean, np.exp(np.clip(log_std, *_LOG_STD_RANGE))

    def _outputs(self, observations: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        x = observations.astype(np.float64)
        for kernel, bias in self._hidden:
            x = np.maximum(x @ kernel + bias, 0.0)
        outputs: npt.NDArray[np.float64] = x @ self._heads + self._heads_bias
        return outputs

    def choose(self, observations: npt.NDArray[np.float32], noise: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Actions (B,) from 0 on of a Q-network, and uniform noise (B, 2): the best, or any with EXPLORATION."""
        best = self._outputs(observations).argmax(1)
        return np.where(noise[:, 0] < EXPLORATION, uniform_choice(noise, self.action_dim), best)

    def act(self, observations: npt.NDArray[np.float32], noise: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Actions (B, A) in [-1, 1] for observations (B, O) and standard normal noise (B, A); zero noise: the median.

        The same on every processor.
        """
        mean, std = self.gaussian(observations)
        return (np.round(np.tanh(mean + std * noise) / _GRID) * _GRID).astype(np.float32)


def uniform_choice(noise: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """One of `count` actions from 0 on for each row of uniform noise (B, 2)."""
    return (noise[:, 1] * count).astype(np.int64)


class Job(NamedTuple):
    """Some consecutive episodes of one policy (None: uniform random actions).

    `register` names a module to import first, which registers the environment; it never comes from a file.
    """

    env_id: str
    policy: str | None
    horizon: int
    seed: tuple[int, ...]
    first_episode: int
    n_episodes: int
    register: str | None = None
    env_kwargs: str = "{}"  # JSON


class _Running:
    """An episode in progress; all its randomness comes from (seed, its number)."""

    def __init__(self, job: Job, env: gym.Env[Any, Any], episode: int) -> None:
        rng = np.random.default_rng((*job.seed, episode))
        observation, _ = begin(env, seed=int(rng.integers(2**31)))
        self.noise: npt.NDArray[Any]
        self.actions: npt.NDArray[Any]
        if isinstance(env.action_space, gym.spaces.Discrete):
            self.noise, self.actions = rng.random((job.horizon, 2)), np.empty(job.horizon, np.int64)
        else:
            shape = (job.horizon, env.action_space.shape[0])  # type: ignore[index]
            if job.policy is None:
                self.noise = rng.uniform(-1.0, 1.0, shape).astype(np.float32)
            else:
                self.noise = rng.standard_normal(shape, dtype=np.float32)
            self.actions = self.noise  # a row holds the noise until the step overwrites it with the action
        self.observations = np.empty((job.horizon, len(observation)), dtype=np.float32)
        self.observations[0] = observation
        self.rewards = np.empty(job.horizon, dtype=np.float32)
        self.env, self.length, self.terminated = env, 0, False

    def step(self, action: npt.NDArray[Any]) -> bool:
        """Takes one step; returns whether the episode continues."""
        t = self.length
        self.actions[t] = action
        observation, reward, self.terminated, truncated, _ = take(self.env, action, f"step {t + 1}")
        self.rewards[t] = reward
        self.length = t + 1
        going = not (self.terminated or truncated or self.length == len(self.rewards))
        if going:
            self.observations[t + 1] = observation
        return going

    def episode(self) -> Episode:
        rows = slice(self.length)
        return Episode(self.observations[rows], self.actions[rows], self.rewards[rows], self.terminated)


class ActionUnits:
    """Converts actions of policies, in [-1, 1] or integers from 0 on, to the environment's units."""

    def __init__(self, space: gym.Space[Any]) -> None:
        self._start = int(space.start) if isinstance(space, gym.spaces.Discrete) else None
        if self._start is not None:
            return
        assert isinstance(space, gym.spaces.Box)
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
        # A bound in float64 may lie between two float32 numbers: the one inside.
        self._low = np.where(low < space.low, np.nextafter(low, np.float32(np.inf)), low)
        self._high = np.where(high > space.high, np.nextafter(high, np.float32(-np.inf)), high)
        self._same = bool(np.all(self._low == -1.0) and np.all(self._high == 1.0))

    def __call__(self, actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Actions (..., A) in the environment's units, unchanged if those are [-1, 1]; or integers (B,)."""
        if self._start is not None:
            return actions.reshape(-1) + self._start
        if self._same:
            return actions
        middle, half = (self._low + self._high) / 2, (self._high - self._low) / 2
        scaled: npt.NDArray[np.float32] = np.clip(middle + half * actions, self._low, self._high)
        return scaled


@lru_cache(maxsize=2)
def _policy(path: str) -> BehaviorPolicy:
    return BehaviorPolicy(path)


@lru_cache(maxsize=1)
def _environments(env_id: str, count: int, register: str | None, env_kwargs: str) -> list[gym.Env[Any, Any]]:
    if register is not None:
        for name in register.split(","):
            importlib.import_module(name)
    return [make_env(env_id, **json.loads(env_kwargs)) for _ in range(count)]


def simulate(job: Job) -> list[Episode]:
    """Runs the episodes of a job in parallel, so that one matrix product of the policy serves all of them."""
    policy = _policy(job.policy) if job.policy is not None else None
    numbers = range(job.first_episode, job.first_episode + job.n_episodes)
    envs = _environments(job.env_id, job.n_episodes, job.register, job.env_kwargs)
    runs = [_Running(job, env, number) for env, number in zip(envs, numbers, strict=True)]
    space = envs[0].action_space
    units, count = ActionUnits(space), int(space.n) if isinstance(space, gym.spaces.Discrete) else None
    active = runs
    while active:
        drawn = np.stack([run.noise[run.length] for run in active])
        if policy is not None:
            act = policy.act if count is None else policy.choose
            drawn = act(np.stack([run.observations[run.length] for run in active]), drawn)
        elif count is not None:
            drawn = uniform_choice(drawn, count)
        active = [run for run, action in zip(active, units(drawn), strict=True) if run.step(action)]
    return [run.episode() for run in runs]


def serve_requests() -> None:
    """Body of a worker."""
    serve(simulate)


class WorkerPool:
    """`size` worker processes for the body of a `with` statement; they end immediately when it exits."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._workers: list[Worker] = []
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(size)

    def __enter__(self) -> Self:
        try:
            while len(self._workers) < self._size:
                self._workers.append(Worker(__name__, "simulates episodes"))
                self._idle.put(self._workers[-1])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.kill()
        self._threads.shutdown()
        for worker in self._workers:
            worker.close()

    def play(self, job: Job, n_steps: int) -> Iterator[Episode]:
        """Runs episodes of one policy, from the first of `job`, until they have `n_steps`; the last one is complete.

        Raises SimulationError if a worker died or its environment raised.
        """
        jobs = (job._replace(first_episode=first) for first in count(job.first_episode, job.n_episodes))
        pending = deque(self._threads.submit(self._run, job) for job in islice(jobs, 2 * self._size))
        try:
            while True:
                _wait_for_first(pending)
                for episode in pending.popleft().result():
                    yield episode
                    n_steps -= len(episode)
                    if n_steps <= 0:
                        return
                pending.append(self._threads.submit(self._run, next(jobs)))
        finally:
            for future in pending:
                future.cancel()

    def _run(self, job: Job) -> list[Episode]:
        worker = self._idle.get()
        try:
            worker.send(job)
            episodes: list[Episode] = worker.receive()
        finally:
            self._idle.put(worker)
        return episodes


def _wait_for_first(pending: deque[Future[list[Episode]]]) -> None:
    """Waits for the first result; any failure is raised immediately, because earlier jobs may take long."""
    while not pending[0].done():
        for future in pending:
            if future.done():
                future.result()
        wait([future for future in pending if not future.done()], return_when=FIRST_COMPLETED)
