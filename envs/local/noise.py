"""The noise variance of the behavior policies of a local set, and their returns without noise.

A behavior policy draws a Gaussian m + s z in each action dimension and gives its tanh (SAC, Haarnoja et al. 2018,
appendix C). A model that sees only the state cannot predict that action better than to its variance.
"""

from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import numpy.typing as npt

from ...base.errors import DataError
from ..data.episodes import Episodes, row_blocks
from ..data.files import readable
from ..simulation import rollout
from ..tasks.table import D4RLTask, get_task
from .policy import BehaviorPolicy
from .sets import RECIPES, recipe_of, weights_path

# Expectations under the standard normal distribution by the trapezoidal rule: where the deviation is large and the tanh
# all but a step, it beats Gauss and Hermite's (41 nodes: an error of 8e-4 at s = 2 and 0.03 at 4).
_NODES = np.linspace(-8.0, 8.0, 61)
_WEIGHTS = np.exp(-(_NODES**2) / 2)
_WEIGHTS /= _WEIGHTS.sum()

_UNIFORM_VARIANCE = 1 / 3  # of the uniform distribution on [-1, 1]


def squashed_moments(
    mean: npt.NDArray[np.floating], std: npt.NDArray[np.floating]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean and variance of tanh(m + s z), z standard normal, for arrays of m and s of one shape.

    The variance is exact to 1e-13 for s up to 1, to 1e-5 up to 2.5 (the shipped policies' is seldom above 2) and to
    1e-3 up to 4.
    """
    values = np.tanh(np.asarray(mean, np.float64)[..., None] + np.asarray(std, np.float64)[..., None] * _NODES)
    first = values @ _WEIGHTS
    return first, np.square(values - first[..., None]) @ _WEIGHTS


def action_noise_variance(episodes: Episodes) -> npt.NDArray[np.float64] | None:
    """Variance of the behavior's own action in the state of every step, mean over action dimensions, (N,).

    For a whole local set, as `load_episodes` gives it: take the `rows` of a part. None for data from elsewhere, and for
    built-in tasks. Raises DataError where the episodes are not those of the recipe, all of them and in order.
    """
    task = get_task(episodes.dataset) if episodes.source == "local" else None
    if not isinstance(task, D4RLTask):
        return None
    variance = np.full(episodes.n_steps, _UNIFORM_VARIANCE)
    for policy, (first, last) in policy_rows(task, episodes):
        if policy is None:
            continue
        behavior = BehaviorPolicy(weights_path(task, policy))
        for block in row_blocks(last - first, 2048):  # every number becomes 61
            rows = slice(first + block.start, first + block.stop)
            variance[rows] = squashed_moments(*behavior.gaussian(episodes.observations[rows]))[1].mean(axis=1)
    return variance


def policy_rows(task: D4RLTask, episodes: Episodes) -> list[tuple[int | None, tuple[int, int]]]:
    """The policies of a local set, in order (None: uniform random actions), with the rows [first, last) of each.

    The episode that crosses the end of a policy's share is its whole. Raises DataError where the episodes are not those
    of the recipe, all of them and in order.
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
    if not complete or first != episodes.n_steps or cut.any():
        raise DataError(
            f"{episodes.path}: these {len(episodes):,} episodes of {episodes.n_steps:,} steps are not the local set "
            f"of {recipe.steps:,} steps as it was made; load it again without options, and whole"
        )
    return found


def mode_returns(task: D4RLTask, episodes: int = 20, seed: int = 1000) -> npt.NDArray[np.float64] | None:
    """Undiscounted returns, (episodes,), of the last policy of a task's local set acting without noise.

    The last policy is the best of a replay, and the expert of medium-expert. Its action is tanh(m), which may return
    more than the noisy actions in the data or less. Episode i starts from seed + i, as an evaluation's with that seed.
    None if no behavior policy ships for the task, or only uniform random actions. Raises SimulationError if the
    environment cannot be made, or fails.
    """
    recipe = RECIPES.get(task.family, {}).get(task.level)
    if recipe is None or recipe.policies[-1] is None:
        return None
    policy = _Mode(BehaviorPolicy(weights_path(task, recipe.policies[-1])))
    return rollout(policy, task.env_id, episodes=episodes, target_return=0.0, seed=seed).returns


class _Mode(NamedTuple):
    """A behavior policy without noise, in the form that `rollout` plays; it has no state."""

    behavior: BehaviorPolicy

    def initial_state(self, batch_size: int, target_return: npt.NDArray[np.float64]) -> None:
        pass

    def act(
        self, observation: npt.NDArray[np.float32], reward: npt.NDArray[np.float32], state: None
    ) -> tuple[npt.NDArray[np.float32], None]:
        noise = np.zeros((len(observation), self.behavior.action_dim), np.float32)
        return self.behavior.act(observation, noise), None
