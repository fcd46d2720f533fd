"""Record a dataset in D4RL's layout with policies that you trained with Stable-Baselines3.

  aaren-rl collect --env-id Hopper-v4 --policy random --out hopper.hdf5
  aaren-rl collect --env-id Ant-v4 --policy model.zip --out ant.hdf5
  aaren-rl collect --env-id Ant-v4 --policy random a.zip b.zip --out mixed.hdf5
  aaren-rl train --env-id Ant-v4 --env my-ant --source ant.hdf5

Files of Stable-Baselines3 hold pickles, and loading them runs the code in them: give files that you saved yourself.
Observations and rewards are recorded as the environment returns them, also where VecNormalize scales what a policy
sees. Exit codes: 2 usage, 3 data, 5 environment.
"""

# Stable-Baselines3 takes seconds to import: not before all arguments are checked.

from __future__ import annotations

import argparse
import json
import pickle
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from .base.errors import DataError, UsageError, one_line
from .base.fields import COUNT, COUNT_FROM_0, SAC_SEED
from .base.files import check_writable, writing
from .cli import Parser, choose_device, import_registering, progress_bar, run
from .envs.data.columns import narrowed
from .envs.data.episodes import Episode, join
from .envs.data.files import write_hdf5
from .envs.simulation import play_episode
from .envs.tasks.environment import close_env, make_env, own_task
from .envs.tasks.table import env_kwargs

if TYPE_CHECKING:
    import torch
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.vec_env import VecNormalize

ALGORITHMS = ("A2C", "DDPG", "DQN", "PPO", "SAC", "TD3")
RANDOM = "random"  # in place of a policy's file


def make_parser() -> Parser:
    """The command line."""
    parser = Parser("collect", __doc__, "--env-id ID --policy ZIP [ZIP ...] --out FILE [options]")
    add = parser.add_argument
    add("--env-id", metavar="ID", required=True, help="Gymnasium environment, such as Hopper-v4 or CartPole-v1")
    add("--policy", nargs="+", metavar="ZIP", required=True, help="models' save(), in turn; random: random actions")
    add("--vec-normalize", type=Path, metavar="PKL", help="VecNormalize's save(): scales what the policies see")
    add("--steps", type=COUNT.integer, metavar="N", default=200_000, help="steps per policy [200000]")
    add("--noise", type=COUNT_FROM_0.number, metavar="X", default=0.0, help="deviation of Gaussian action noise [0]")
    add("--deterministic", action="store_true", help="the mean or best action in place of a sample")
    add("--max-episode-steps", type=COUNT.integer, metavar="N", help="truncate episodes after N steps [as registered]")
    add("--env-kwargs", metavar="JSON", help="arguments of the environment, as a JSON object")
    add("--seed", type=SAC_SEED.integer, metavar="N", default=0, help="of the first episode, of samples and noise [0]")
    add("--out", type=Path, metavar="FILE", required=True, help="HDF5 file to write")
    parser.add_shared(device="cpu")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return run(make_parser(), collect, argv)


def collect(arguments: argparse.Namespace) -> int:
    """Records episodes of all policies in one file; returns the exit code."""
    check_writable("--out", arguments.out)
    if arguments.out.exists():
        raise UsageError(f"--out {arguments.out}: already exists; delete it, or give another")
    import_registering(arguments.register)
    device = choose_device(arguments.device)
    kwargs = env_kwargs(arguments.env_kwargs)
    kwargs["max_episode_steps"] = _horizon(arguments.env_id, arguments.max_episode_steps, kwargs)
    print(record_policies(arguments, kwargs, device))
    return 0


def _horizon(env_id: str, asked: int | None, kwargs: dict[str, Any]) -> int:
    """The steps after which an episode is truncated; raises UsageError where data cannot be recorded."""
    task = own_task("data", env_id, env_kwargs=kwargs)
    if not np.isfinite([task.action_low, task.action_high]).all():
        raise UsageError(f"--env-id {env_id}: its actions are unbounded; register it with bounds")
    if not (horizon := asked or task.horizon):
        raise UsageError(f"--env-id {env_id}: it has no time limit; give --max-episode-steps")
    return horizon


def controller(
    model: BaseAlgorithm | None,
    space: gym.Space[Any],
    seed: int,
    normalize: VecNormalize | None = None,
    noise: float = 0.0,
    deterministic: bool = False,
) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
    """What acts as a model of Stable-Baselines3, or uniformly at random: from an observation (O,) to an action.

    `normalize` scales what it observes. `noise` is the standard deviation of Gaussian noise on its actions, in half the
    range of each.
    """
    rng = np.random.default_rng(seed)
    space.seed(seed)

    def act(observation: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if model is None:
            action = space.sample()
        else:
            seen = observation if normalize is None else normalize.normalize_obs(observation)
            action, _ = model.predict(seen, deterministic=deterministic)
        if not isinstance(space, gym.spaces.Box):
            return np.asarray(action)
        if noise and model is not None:
            drawn = rng.normal(0.0, noise, action.shape) * (space.high - space.low) / 2
            action = np.clip(action + drawn, space.low, space.high)
        return np.asarray(action, np.float32)  # as the file has them

    return act


def algorithm_of(file: Path) -> str:
    """The algorithm that a model's file says it is of; nothing in the file is executed.

    Raises DataError: the file is not Stable-Baselines3's, UsageError: of another algorithm.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            data = json.loads(archive.read("data"))
        module = str(data["policy_class"]["__module__"])
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{file}: not a model that Stable-Baselines3 saved ({one_line(error, 100)})") from error
    if module == "stable_baselines3.common.policies":  # of both on-policy algorithms
        return "PPO" if "n_epochs" in data else "A2C"
    name = module.split(".")[1].upper() if module.startswith("stable_baselines3.") else module
    if name not in ALGORITHMS:
        raise UsageError(f"{file}: is of {name}; known are {', '.join(ALGORITHMS)}")
    return name


def load_model(file: Path, device: torch.device) -> BaseAlgorithm:
    """A saved model. Unpickles what is in the file. Raises DataError, and as `algorithm_of`."""
    import stable_baselines3

    kind: type[BaseAlgorithm] = getattr(stable_baselines3, algorithm_of(file))
    try:
        return kind.load(file, device=device)
    except Exception as error:  # what a pickle of another version may raise
        raise DataError(f"{file}: {kind.__name__} cannot load it ({one_line(error, 200)})") from error


def load_normalize(file: Path) -> VecNormalize:
    """A saved VecNormalize. Unpickles the file. Raises DataError."""
    from stable_baselines3.common.vec_env import VecNormalize

    try:
        loaded = pickle.loads(file.read_bytes())
        if not isinstance(loaded, VecNormalize):
            raise TypeError(f"a {type(loaded).__name__}")
    except Exception as error:  # what a pickle of another version may raise
        raise DataError(f"{file}: not a VecNormalize that Stable-Baselines3 saved ({one_line(error, 200)})") from error
    loaded.training = False
    return loaded


def record_policies(arguments: argparse.Namespace, kwargs: Mapping[str, Any], device: torch.device) -> str:
    """Writes episodes of every policy of the command line, one after another; returns a line about them.

    `kwargs` are the environment's arguments and its time limit. Raises the errors of `load_model` and `load_normalize`,
    UsageError for a policy of other sizes, SimulationError, and DataError or ResourcesError where the file cannot be
    written.
    """
    from stable_baselines3.common.utils import set_random_seed

    env_id, seed, file = arguments.env_id, arguments.seed, arguments.out
    with ExitStack() as stack:
        env = make_env(env_id, **kwargs)
        stack.callback(close_env, env)
        normalize = None if arguments.vec_normalize is None else load_normalize(arguments.vec_normalize)
        models: list[BaseAlgorithm | None] = []
        names = []
        for path in arguments.policy:
            model = None if path == RANDOM else load_model(Path(path), device)
            _check_fits(path, model, env)
            models.append(model)
            names.append("uniform random actions" if model is None else f"{type(model).__name__} {Path(path).name}")
        set_random_seed(seed)
        episodes = list[Episode]()
        for i, model in enumerate(models):
            act = controller(model, env.action_space, seed + i, normalize, arguments.noise, arguments.deterministic)
            # Every policy from other first states; a seed below 2^32 as Stable-Baselines3 wants it too.
            episodes += record(env, act, arguments.steps, seed + i * 1_000_000, kwargs["max_episode_steps"])
    made = join(episodes, dataset=file.stem, env_id=env_id)
    made = replace(made, observations=narrowed(made.observations))
    own = {name: value for name, value in kwargs.items() if name != "max_episode_steps"}
    attributes: dict[str, str | int | float] = {
        "env_id": env_id,
        "origin": f"collected with aaren-rl {version('aaren-rl')}; not the D4RL file",
        "policy": ", then ".join(names),
        "sampled": "deterministic" if arguments.deterministic else "stochastic",
        "noise": arguments.noise,
        "max_episode_steps": kwargs["max_episode_steps"],
        "seed": seed,
        **({"env_kwargs": json.dumps(own)} if own else {}),
        **{name.replace("-", "_"): version(name) for name in ("gymnasium", "mujoco", "stable-baselines3")},
    }
    with writing(file, "give another --out"):
        write_hdf5(file, made, attributes)
    return f"{file}: {len(made)} episodes, {made.n_steps:,} steps, mean return {made.returns.mean():.6g}"


def _check_fits(path: str, model: BaseAlgorithm | None, env: gym.Env[Any, Any]) -> None:
    for what in ("observation", "action") if model is not None else ():
        theirs, ours = getattr(model, f"{what}_space"), getattr(env, f"{what}_space")
        if (theirs.shape, type(theirs)) != (ours.shape, type(ours)):
            raise UsageError(f"--policy {path}: its {what}s are {one_line(theirs, 80)}, the environment's {ours}")


def record(env: gym.Env[Any, Any], act: Callable[[Any], Any], steps: int, seed: int, horizon: int) -> list[Episode]:
    """Episodes from `seed` on until they have so many steps, the last whole. SimulationError: the environment fails."""
    found, total = list[Episode](), 0
    with progress_bar(total=steps, desc=env.spec.id if env.spec else None, unit="step", unit_scale=True) as bar:
        while total < steps:
            # In float64, as VecNormalize gets them.
            found.append(play_episode(env, act, seed + len(found), horizon, np.float64))
            total += len(found[-1])
            bar.update(min(total, steps) - bar.n)
    return found
