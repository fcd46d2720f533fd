"""What a Minari dataset says of itself, read as plain JSON: nothing that its metadata name is imported or made.

`minari` itself imports any module they name. Here an environment is believed only if Gymnasium's registry in this
process has it under the same entry point.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import WrapperSpec

from ...errors import DataError, UsageError, one_line
from ...tasks.environment import entry_point_name, is_plain_argument
from ...tasks.table import Reference

# Where the folder of datasets cannot be written.
WAY_OUT = "set MINARI_DATASETS_PATH to another folder"

_AGAIN = "get the dataset again"

# The package's own pattern, without the letters of other alphabets.
_ID = re.compile(r"(?:[A-Za-z0-9_-]+/)*[A-Za-z0-9_-]+")
_MAX_ID = 200

# Wrappers that change neither what an environment returns nor when it ends, so leaving them out changes no score.
_PASSIVE_WRAPPERS = {"RecordEpisodeStatistics", "RecordVideo", "OrderEnforcing", "PassiveEnvChecker"}


@dataclass(frozen=True)
class MinariSpec:
    """A dataset's metadata after all checks; None where it has none.

    Observations have the size `observation_dim`, actions the bounds `action_low` and `action_high` (A,), or they are
    `n_actions` integers from `action_start` on; `reference_returns` score 0 and 100.
    """

    env_id: str | None
    env_kwargs: dict[str, Any]
    max_episode_steps: int | None
    reference_returns: tuple[float, float] | None
    observation_dim: int | None
    action_low: tuple[float, ...] | None
    action_high: tuple[float, ...] | None
    n_actions: int | None
    action_start: int
    total_episodes: int
    total_steps: int
    notes: tuple[str, ...]

    @property
    def reference(self) -> Reference | None:
        """The returns that score 0 and 100, under a name."""
        returns = self.reference_returns
        return None if returns is None else Reference("Minari's reference returns", *returns)


def minari_dataset_dir() -> Path:
    """Where Minari keeps its datasets: `$MINARI_DATASETS_PATH`, else `~/.minari/datasets`, as the package does."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")


def check_minari_id(dataset_id: str) -> str:
    """A Minari id, which may become part of a path, with a version or without one; UsageError: it is not one."""
    if len(dataset_id) > _MAX_ID or not _ID.fullmatch(dataset_id):
        like = "write it like mujoco/hopper/medium-v0 (letters, digits, '_' and '-')"
        raise UsageError(f"{dataset_id[:60]!a} is not a Minari id; {like}")
    return dataset_id


def split_version(dataset_id: str) -> tuple[str, int | None]:
    """A Minari id's name and version: "mujoco/hopper/medium-v0" is ("mujoco/hopper/medium", 0); None: it has none."""
    match = re.fullmatch(r"(.*[^/])-v([0-9]{1,9})", dataset_id)
    return (match[1], int(match[2])) if match else (dataset_id, None)


def minari_data_dir(dataset_id: str) -> Path:
    """The folder of a dataset's `metadata.json` and `main_data.hdf5`; UsageError: no id with a version."""
    if split_version(check_minari_id(dataset_id))[1] is None:
        raise UsageError(f"the Minari id {dataset_id!r} has no version; write {dataset_id}-v0")
    return minari_dataset_dir() / check_minari_id(dataset_id) / "data"


def read_spec(path: Path) -> MinariSpec:
    """Read a dataset's `metadata.json`; nothing is imported.

    DataError: it is missing or damaged; the data are not in HDF5; a space is not a vector of numbers; or the
    environment is not Gymnasium's of that entry point, has wrappers, or arguments that may name files or code.
    """
    try:
        metadata = _object(str(path), path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({one_line(error)}); {_AGAIN}") from error
    if (kind := metadata.get("data_format", "hdf5")) != "hdf5":
        raise DataError(f"{path}:data_format is {_shown(kind)}; only hdf5 is read, convert it with minari")
    notes: list[str] = []
    env = _env_spec(path, metadata, notes)
    observed, _ = _bounds(path, metadata, "observation_space")
    n_actions, start = _choices(path, metadata)
    low, high = _bounds(path, metadata, "action_space") if n_actions is None else (None, None)
    described = [(key, metadata.get(key)) for key in ("algorithm_name", "description")]
    notes += [f"{key}: {one_line(text)}" for key, text in described if text and isinstance(text, str)]
    return MinariSpec(
        env_id=env.get("id"),
        env_kwargs=env.get("kwargs", {}),
        max_episode_steps=None if env.get("max_episode_steps") is None else _count(path, env, "max_episode_steps"),
        reference_returns=_reference_returns(metadata, notes),
        observation_dim=None if observed is None else len(observed),
        action_low=low,
        action_high=high,
        n_actions=n_actions,
        action_start=start,
        total_episodes=_count(path, metadata, "total_episodes"),
        total_steps=_count(path, metadata, "total_steps"),
        notes=tuple(notes),
    )


def _shown(value: object) -> str:
    return ascii(value)[:80]


def _object(where: str, text: Any) -> dict[str, Any]:  # noqa: ANN401  what JSON holds; Minari keeps JSON inside JSON
    try:
        value = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{where}: is not JSON ({one_line(error)}); {_AGAIN}") from error
    if not isinstance(value, dict):
        raise DataError(f"{where}: is not a JSON object; {_AGAIN}")
    return value


def _count(path: Path, values: dict[str, Any], key: str) -> int:
    value = values.get(key)
    if not isinstance(value, int) or not 0 < value < 2**53:
        raise DataError(f"{path}:{key} is {_shown(value)}, not a number of at least 1; use a dataset with data")
    return value


def _choices(path: Path, metadata: dict[str, Any]) -> tuple[int | None, int]:
    """The number of discrete actions and the first one; None where they are not described as such."""
    if metadata.get("action_space") is None:
        return None, 0
    space = _object(f"{path}:action_space", metadata["action_space"])
    if space.get("type") != "Discrete":
        return None, 0
    if not isinstance(start := space.get("start", 0), int) or abs(start) >= 2**53:
        raise DataError(f"{path}:action_space.start is {_shown(start)}, not a whole number; {_AGAIN}")
    return _count(path, space, "n"), start


def _bounds(path: Path, metadata: dict[str, Any], key: str) -> tuple[tuple[float, ...] | None, ...]:
    """Lower and upper bounds of a space; None where the dataset does not describe it."""
    if metadata.get(key) is None:
        return None, None
    space = _object(f"{path}:{key}", metadata[key])
    shape = space.get("shape")
    if space.get("type") != "Box" or not isinstance(shape, list) or len(shape) != 1:
        raise DataError(
            f"{path}:{key} is {_shown(space.get('type'))} of shape {_shown(shape)}; only a Box with one axis (a vector "
            "of numbers) can be learned from, and Discrete actions; record through FlattenObservation"
        )
    try:
        bounds = np.array([space["low"], space["high"]], np.float64)
    except (KeyError, ValueError, TypeError, OverflowError):
        bounds = np.zeros(0)
    if bounds.shape != (2, *shape) or not np.all(bounds[0] <= bounds[1]):
        raise DataError(f"{path}:{key} has no bounds that fit its shape {_shown(shape)}; {_AGAIN}")
    return tuple(tuple(side.tolist()) for side in bounds)


def _env_spec(path: Path, metadata: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """The environment's description, with harmless arguments only; {}: there is none."""
    if metadata.get("env_spec") is None:
        return {}
    spec = _object(f"{path}:env_spec", metadata["env_spec"])
    env_id, entry = spec.get("id"), spec.get("entry_point")
    given = f"{path}:env_spec gives {_shown(env_id)} the entry point {_shown(entry)} (not imported)"
    if not isinstance(env_id, str) or env_id not in gym.registry:
        raise DataError(f"{given}, Gymnasium knows no such environment; --register MODULE, or use another dataset")
    if entry != (known := entry_point_name(env_id)):
        raise DataError(f"{given}, Gymnasium has {known}; do not trust the dataset, get it from another place")
    wrappers, kwargs = spec.get("additional_wrappers") or [], spec.get("kwargs") or {}
    if not isinstance(wrappers, list) or not isinstance(kwargs, dict):
        raise DataError(f"{path}:env_spec.kwargs or additional_wrappers have no names; {_AGAIN}")
    names = _added_wrappers(env_id, wrappers)
    if not _PASSIVE_WRAPPERS.issuperset(names):
        raise DataError(
            f"{path}:env_spec was recorded through wrappers ({_shown(names)}; not imported), without which {env_id} is "
            "another task; register the wrapped environment under an id of its own and record on that"
        )
    if names:
        notes.append(f"left out wrappers that only watch: {', '.join(names)}")
    # What the registry passes on itself is not the file's doing, and may name the environment's own files.
    own = json.loads(json.dumps(gym.registry[env_id].kwargs, default=str))
    kwargs = {key: value for key, value in kwargs.items() if key not in own or value != own[key]}
    if kwargs.pop("render_mode", None) is not None:
        notes.append("left out the environment's render_mode")
    for key, value in kwargs.items():
        if not is_plain_argument(key, value):
            raise DataError(
                f"{path}:env_spec.kwargs has {_shown(key)} = {_shown(value)}; only finite numbers, words and lists of "
                "them are passed on to an environment, and nothing that names files or modules; use another dataset"
            )
    return {**spec, "kwargs": kwargs}


def _added_wrappers(env_id: str, wrappers: list[Any]) -> list[str]:
    """The names of a description's wrappers, without those that `make_env` adds itself."""
    shown = [wrapper if isinstance(wrapper, dict) else {"name": wrapper} for wrapper in wrappers]
    own = gym.registry[env_id].additional_wrappers
    if len(own) <= len(shown) and all(map(_is_wrapper, shown, own)):
        shown = shown[len(own) :]
    names = [str(wrapper.get("name")) for wrapper in shown]
    return [name for name in names if name != "FlattenObservation"]  # added where it changes something


def _is_wrapper(described: dict[str, Any], own: WrapperSpec) -> bool:
    # Arguments are None where the wrapper does not record them.
    same = (described.get("name"), described.get("entry_point")) == (own.name, own.entry_point)
    return same and described.get("kwargs") in (None, json.loads(json.dumps(own.kwargs, default=str)))


def _reference_returns(metadata: dict[str, Any], notes: list[str]) -> tuple[float, float] | None:
    low, high = metadata.get("ref_min_score"), metadata.get("ref_max_score")
    if low is None and high is None:
        return None
    if isinstance(low, int | float) and isinstance(high, int | float) and -1e300 < low < high < 1e300:
        return float(low), float(high)
    notes.append(f"left out reference scores that do not rise from one number to another: {_shown([low, high])}")
    return None
