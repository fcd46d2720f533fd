"""Datasets made on this machine from behavior policies that ship with the package: D4RL-like, but not D4RL's files."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
from tqdm import tqdm

from ...base.errors import DataError, UsageError
from ...base.files import alone, sha256
from ...base.files import cache_dir as cache_dir
from ..data.episodes import Episode, Episodes, join
from ..data.files import read_file, write_hdf5, write_pin
from ..tasks.table import TASKS, D4RLTask, LocalTask
from . import cartpole, tmaze
from .policy import BehaviorPolicy, episodes_of

RECIPE_VERSION = 3  # part of the cache's path: increase it whenever a change alters the data
LEAST_STEPS = 1_000  # fewer leave a policy of some recipes no more than one short episode
_SEED = 0

_POLICIES = Path(__file__).parent
_WAY_OUT = "set AAREN_RL_CACHE to another folder"


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
        shares: list[int] = np.diff(np.linspace(0, self.steps, len(self.policies) + 1).astype(int)).tolist()
        return shares


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
    (about, make), path = _how(task, steps, progress), local_path(task, steps)
    if path.is_file():
        return path
    with alone(path, "making", _WAY_OUT):
        # Another process may have written it while this one waited.
        if not path.is_file():
            for leftover in path.parent.glob(f".{path.name}.*.tmp"):
                leftover.unlink()
            used = {package: version(package) for package in ("gymnasium", "mujoco")}
            write_hdf5(path, make(), {"env_id": task.env_id, **about, **used})
            write_pin(path, sha256(path))
    return path


def _how(
    task: D4RLTask | LocalTask, steps: int | None, progress: bool
) -> tuple[dict[str, str | int], Callable[[], Episodes]]:
    """The attributes of the file, and the function that makes its data."""
    if isinstance(task, LocalTask):
        make = MAKERS[task.dataset]
        return {"origin": "made locally by aaren-rl", "policy": task.policy}, partial(make, task, progress)
    recipe = recipe_of(task, steps)
    about: dict[str, str | int] = {
        "origin": "made locally by aaren-rl; not the D4RL file",
        "policy": recipe.description,
        "steps": recipe.steps,
        "seed": _SEED,
    }
    return about, partial(_collect, task, recipe, progress)


def _collect(task: D4RLTask, recipe: Recipe, progress: bool) -> Episodes:
    made: list[Episode] = []
    title = f"making {task.name} (local)"
    bar = tqdm(total=recipe.steps, desc=title, unit="step", unit_scale=True, disable=not progress)
    with bar:
        for policy, share in zip(recipe.policies, recipe.shares(), strict=True):
            # Seeds are of (base seed, policy, episode), so medium-expert is made of the first episodes of both.
            acting = None if policy is None else BehaviorPolicy(weights_path(task, policy))
            for episode in episodes_of(task.env_id, acting, task.horizon, (_SEED, policy or 0), share):
                made.append(episode)
                bar.update(min(len(episode), recipe.steps - bar.n))
    return join(made, dataset=task.name, source="local", env_id=task.env_id)


def _reacher(task: LocalTask, progress: bool) -> Episodes:
    from . import reacher  # on demand, as it imports MuJoCo

    return reacher.make_episodes(task, progress)


def _without_velocities(task: LocalTask, progress: bool) -> Episodes:
    """The local set of the same robot and level, "hopper-medium" of "hopper-p-medium", without velocities."""
    episodes = read_file(make_local(TASKS[task.name.replace("-p-", "-")], progress=progress))
    return replace(episodes, observations=np.ascontiguousarray(episodes.observations[:, : task.observation_dim]))


# Of each built-in task: what makes its data, and whether to show a bar.
MAKERS: dict[str, Callable[[LocalTask, bool], Episodes]] = {
    "tmaze": tmaze.make_episodes,
    "tmaze-discrete": tmaze.make_episodes,
    "reacher-recall": _reacher,
    "hopper-p-medium": _without_velocities,
    "walker2d-p-medium": _without_velocities,
    "cartpole-medium-replay": cartpole.make_episodes,
}
