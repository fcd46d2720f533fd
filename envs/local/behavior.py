"""Datasets made on this machine from behavior policies that ship with the package: D4RL-like, but not D4RL's files.

A behavior policy draws a Gaussian m + s z in each action dimension and gives its tanh (SAC, Haarnoja et al. 2018,
appendix C). A model that sees only the state cannot predict that action better than to its variance.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium as gym
import h5py
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file
from tqdm import tqdm

from ...base.errors import DataError, UsageError
from ...base.files import alone, core_count, sha256
from ...base.files import cache_dir as cache_dir
from ..data.episodes import Episode, Episodes, join, row_blocks
from ..data.files import readable, write_hdf5, write_pin
from ..simulation import play_episode
from ..tasks.environment import close_env, make_env
from ..tasks.table import D4RLTask, LocalTask, get_task

RECIPE_VERSION = 3  # part of the cache's path: increase it whenever a change alters the data
LEAST_STEPS = 1_000  # fewer leave a policy of some recipes no more than one short episode
_SEED = 0

Doubles: TypeAlias = npt.NDArray[np.float64]
Seed: TypeAlias = tuple[int, ...]

_POLICIES = Path(__file__).parent
_WAY_OUT = "set AAREN_RL_CACHE to another folder"

_LOG_STD_RANGE = (-20.0, 2.0)

# Actions are multiples of this: processors add a product's terms in different orders, which in float64 changes an
# action by some 1e-15, and an action that is changed at all is soon another episode.
_GRID = 2.0**-16

_AT_ONCE = 8  # episodes that a thread plays in turn, so that all have about the same work

# Expectations under the standard normal distribution by the trapezoidal rule: where the deviation is large and the tanh
# all but a step, it beats Gauss and Hermite's (41 nodes: an error of 8e-4 at s = 2 and 0.03 at 4).
_NODES = np.linspace(-8.0, 8.0, 61)
_WEIGHTS = np.exp(-(_NODES**2) / 2)
_WEIGHTS /= _WEIGHTS.sum()

_UNIFORM_VARIANCE = 1 / 3  # of the uniform distribution on [-1, 1]


# Behavior policies and the episodes that they play


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

    def gaussian(self, observations: npt.NDArray[np.float32]) -> tuple[Doubles, Doubles]:
        """Mean and standard deviation, both (B, A), of the Gaussian before the tanh, for observations (B, O)."""
        x = observations.astype(np.float64)
        for kernel, bias in self._hidden:
            x = np.maximum(x @ kernel + bias, 0.0)
        mean, log_std = np.split(x @ self._heads + self._heads_bias, 2, axis=1)
        return mean, np.exp(np.clip(log_std, *_LOG_STD_RANGE))

    def act(self, observations: npt.NDArray[np.float32], noise: Any = 0.0) -> npt.NDArray[np.float32]:
        """Actions (B, A) in [-1, 1] for observations (B, O) and standard normal noise (B, A); without it the median.

        The same on every processor.
        """
        mean, std = self.gaussian(observations)
        action: Doubles = np.round(np.tanh(mean + std * noise) / _GRID) * _GRID
        return action.astype(np.float32)


def play(env: gym.Env[Any, Any], policy: BehaviorPolicy | None, horizon: int, seed: Seed) -> Episode:
    """An episode of a policy, or of uniformly random actions; all of its randomness comes from `seed`.

    SimulationError: the environment fails.
    """
    rng = np.random.default_rng(seed)
    first, shape = int(rng.integers(2**31)), (horizon, *env.action_space.shape)  # type: ignore[misc]  # a Box has one
    if policy is None:
        actions = iter(rng.uniform(-1.0, 1.0, shape).astype(np.float32))
        return play_episode(env, lambda _: next(actions), first, horizon)
    noise = iter(rng.standard_normal(shape, dtype=np.float32))
    return play_episode(env, lambda seen: policy.act(seen[None], next(noise)[None])[0], first, horizon)


def episodes_of(env_id: str, policy: BehaviorPolicy | None, horizon: int, seed: Seed, steps: int) -> Iterator[Episode]:
    """Episodes from number 0 on until they have so many `steps`, the last one whole; threads play several at once.

    SimulationError: an environment fails.
    """
    threads = min(core_count(), -(-steps // (_AT_ONCE * horizon)))

    def several(env: gym.Env[Any, Any], first: int) -> list[Episode]:
        return [play(env, policy, horizon, (*seed, number)) for number in range(first, first + _AT_ONCE)]

    with ExitStack() as stack:
        envs = [make_env(env_id) for _ in range(threads)]
        for env in envs:
            stack.callback(close_env, env)
        pool = stack.enter_context(ThreadPoolExecutor(threads))
        # Gymnasium's wrappers cost time at every step: `horizon` is the time limit.
        plain = [env.unwrapped for env in envs]
        for first in count(0, _AT_ONCE * threads):
            for episode in chain.from_iterable(pool.map(several, plain, count(first, _AT_ONCE))):
                yield episode
                steps -= len(episode)
                if steps <= 0:
                    return


# Recipes and sets


@dataclass(frozen=True)
class Recipe:
    """A dataset's recipe: `policies` act one after another, each for an equal share of `steps`.

    A policy is named by the environment steps it was trained for; None: uniform random actions.
    """

    policies: tuple[int | None, ...]
    steps: int
    description: str

    def shares(self) -> list[int]:
        """Each policy's share of the steps; the episode that crosses its end is kept whole."""
        return [int(share) for share in np.diff(np.linspace(0, self.steps, len(self.policies) + 1).astype(int))]


def _recipes(
    replay: tuple[int, ...], expert: int, replay_steps: int = 200_000, *, other_run: bool = False
) -> dict[str, Recipe]:
    """A family's recipes, by level: SAC's checkpoints up to medium's, and expert's, which may be of `other_run`."""
    first, medium, best = (f"{steps // 1000:,}k steps" for steps in (replay[0], replay[-1], expert))
    of, than_medium = (" of another run", " of another run than medium") if other_run else ("", "")
    mixed = f"replay-like: SAC checkpoints from {first.removesuffix(' steps')} to {medium} in order, stochastic"
    return {
        "random": Recipe((None,), 100_000, "uniform random actions"),
        "medium": Recipe(replay[-1:], 200_000, f"SAC at {medium}, stochastic"),
        "medium-replay": Recipe(replay, replay_steps, f"{mixed}, not a replay buffer"),
        "medium-expert": Recipe((replay[-1], expert), 200_000, f"SAC at {medium}, then{of} at {best}, stochastic"),
        "expert": Recipe((expert,), 200_000, f"SAC at {best}{than_medium}, stochastic"),
    }


RECIPES: dict[str, dict[str, Recipe]] = {
    "hopper": _recipes((*range(40_000, 320_001, 40_000), 380_000), 620_000),
    "halfcheetah": _recipes(tuple(range(20_000, 180_001, 20_000)), 620_000, 180_000, other_run=True),
    "ant": _recipes((*range(60_000, 420_001, 60_000), 460_000), 1_070_000),
    "walker2d": _recipes((*range(80_000, 320_001, 80_000), 380_000, 420_000, 480_000), 680_000),
}


def local_levels(family: str) -> tuple[str, ...]:
    """Levels of a family ("hopper") that can be made locally; empty if no behavior policy ships."""
    return tuple(RECIPES.get(family, ()))


def local_path(task: D4RLTask | LocalTask, steps: int | None = None) -> Path:
    """Where a task's local set is kept once it is made; arguments and UsageError are those of `make_local`."""
    folder = cache_dir() / "datasets" / str(RECIPE_VERSION)
    if isinstance(task, LocalTask):
        if steps is not None:
            raise UsageError(f"--local-steps {steps}: the dataset of {task.name} has a fixed size; leave it out")
        return folder / f"{task.dataset}-local.hdf5"
    recipe = RECIPES.get(task.family, {}).get(task.level)
    size = "" if steps is None or (recipe is not None and steps == recipe.steps) else f"-{steps}"
    return folder / f"{task.name}{size}-local.hdf5"


def weights_path(task: D4RLTask, policy: int) -> Path:
    """The weights of a recipe's policy, named by the steps it was trained for."""
    return _POLICIES / f"{task.family}_{policy}.safetensors"


def recipe_of(task: D4RLTask, steps: int | None = None) -> Recipe:
    """How a task's local set of `steps` (None: the table's) is made; DataError where no policy ships for it."""
    recipe = RECIPES.get(task.family, {}).get(task.level)
    if recipe is None:
        made = ", ".join(f"{family}-{level}" for family, levels in RECIPES.items() for level in levels)
        raise DataError(f"{task.name}: no behavior policy for it ships with the package; local sets are {made}")
    return recipe if steps is None else replace(recipe, steps=steps)


def make_local(task: D4RLTask | LocalTask, steps: int | None = None, progress: bool = True) -> Path:
    """The HDF5 file of a task's local set, in D4RL's layout; made on the first call, then kept in the cache.

    The data depend on the recipe and on the versions of MuJoCo and Gymnasium, not on the processor or the number of
    processes. Of each policy a smaller set (`steps`; None: the recipe's) has the first episodes of a larger one.
    `progress` shows a bar on stderr. Raises UsageError where a built-in task's data have no other size, DataError where
    no behavior policy ships for the task or the cache cannot be written, SimulationError where a simulation failed.
    """
    path = local_path(task, steps)
    about: dict[str, str | int] = {"env_id": task.env_id, "origin": "made locally by aaren-rl"}
    if isinstance(task, LocalTask):
        make = partial(import_module(f".{task.made_by}", __package__).make_episodes, task, progress)
        about["policy"] = task.policy
    else:
        recipe = recipe_of(task, steps)
        make = partial(_collect, task, recipe, progress)
        about["origin"] = "made locally by aaren-rl; not the D4RL file"
        about |= {"policy": recipe.description, "steps": recipe.steps, "seed": _SEED}
    if path.is_file():
        return path
    with alone(path, "making", _WAY_OUT):
        # Another process may have written it while this one waited.
        if not path.is_file():
            for leftover in path.parent.glob(f".{path.name}.*.tmp"):
                leftover.unlink()
            used = {package: version(package) for package in ("gymnasium", "mujoco")}
            write_hdf5(path, make(), {**about, **used})
            write_pin(path, sha256(path))
    return path


def _collect(task: D4RLTask, recipe: Recipe, progress: bool) -> Episodes:
    made: list[Episode] = []
    shown: dict[str, Any] = {"desc": f"making {task.name} (local)", "unit": "step", "unit_scale": True}
    with tqdm(total=recipe.steps, disable=not progress, **shown) as bar:
        for policy, share in zip(recipe.policies, recipe.shares(), strict=True):
            # Seeds are of (base seed, policy, episode), so medium-expert is made of the first episodes of both.
            acting = None if policy is None else BehaviorPolicy(weights_path(task, policy))
            for episode in episodes_of(task.env_id, acting, task.horizon, (_SEED, policy or 0), share):
                made.append(episode)
                bar.update(min(len(episode), recipe.steps - bar.n))
    return join(made, dataset=task.name, source="local", env_id=task.env_id)


# What is known of a set's policies: the variance of their noise, their returns without noise


def squashed_moments(mean: Doubles, std: Doubles) -> tuple[Doubles, Doubles]:
    """Mean and variance of tanh(m + s z), z standard normal, for arrays of m and s of one shape.

    The variance is exact to 1e-13 for s up to 1, to 1e-5 up to 2.5 (the shipped policies' is seldom above 2) and to
    1e-3 up to 4.
    """
    values = np.tanh(np.asarray(mean, np.float64)[..., None] + np.asarray(std, np.float64)[..., None] * _NODES)
    first = values @ _WEIGHTS
    return first, np.square(values - first[..., None]) @ _WEIGHTS


def action_noise_variance(episodes: Episodes) -> Doubles | None:
    """Variance of the behavior's own action in the state of every step, mean over action dimensions, (N,).

    For a whole local set, as `load_episodes` gives it: take the `rows` of a part. None where it is not known: for data
    from elsewhere, for built-in tasks and where `policy_rows` is None.
    """
    task = get_task(episodes.dataset) if episodes.source == "local" else None
    if not isinstance(task, D4RLTask) or (found := policy_rows(task, episodes)) is None:
        return None
    variance = np.full(episodes.n_steps, _UNIFORM_VARIANCE)
    for policy, (first, last) in found:
        if policy is None:
            continue
        behavior = BehaviorPolicy(weights_path(task, policy))
        for block in row_blocks(last - first, 2048):  # every number becomes 61
            rows = slice(first + block.start, first + block.stop)
            variance[rows] = squashed_moments(*behavior.gaussian(episodes.observations[rows]))[1].mean(axis=1)
    return variance


def policy_rows(task: D4RLTask, episodes: Episodes) -> list[tuple[int | None, tuple[int, int]]] | None:
    """The policies of a local set, in order (None: uniform random actions), with the rows [first, last) of each.

    The episode that crosses the end of a policy's share is its whole. None where the episodes are not those of the
    recipe, all of them and in order.
    """
    with readable(Path(episodes.path)), h5py.File(episodes.path, "r") as file:
        recipe = recipe_of(task, int(file.attrs["steps"]))
        complete = len(file["rewards"]) == episodes.n_steps
    found, first = [], 0
    for policy, share in zip(recipe.policies, recipe.shares(), strict=True):
        end = min(int(np.searchsorted(episodes.offsets, first + share)), len(episodes))
        last = int(episodes.offsets[end])
        found.append((policy, (first, last)))
        first = last
    cut = ~episodes.terminated & (episodes.lengths < task.horizon)
    return found if complete and first == episodes.n_steps and not cut.any() else None


def mode_returns(task: D4RLTask, episodes: int = 20, seed: int = 1000) -> Doubles | None:
    """Undiscounted returns, (episodes,), of the last policy of a task's local set acting without noise.

    The last policy is the best of a replay, and the expert of medium-expert. Its action is tanh(m), which may return
    more than the noisy actions in the data or less. Episode i starts from seed + i, as an evaluation's with that seed.
    None if no behavior policy ships for the task, or only uniform random actions. Raises SimulationError if the
    environment cannot be made, or fails.
    """
    recipe = RECIPES.get(task.family, {}).get(task.level)
    if recipe is None or recipe.policies[-1] is None:
        return None
    policy, returns = BehaviorPolicy(weights_path(task, recipe.policies[-1])), list[np.float64]()
    with make_env(task.env_id) as env:
        for i in range(episodes):
            played = play_episode(env, lambda seen: policy.act(seen[None])[0], seed + i, task.horizon)
            returns.append(played.rewards.sum(dtype=np.float64))
    return np.array(returns)
