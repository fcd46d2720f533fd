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

import numpy as np

from ....base.errors import DataError, UsageError, one_line
from ...tasks.names import get_task
from ...tasks.spaces import Layout, checked_layout, is_vector
from ...tasks.table import D4RLTask, Reference
from .env_spec import Described, describe

# Where the folder of datasets cannot be written.
WAY_OUT = "set MINARI_DATASETS_PATH to another folder"

_AGAIN = "get the dataset again"

# The package's own pattern, without the letters of other alphabets.
_ID = re.compile(r"(?:[A-Za-z0-9_-]+/)*[A-Za-z0-9_-]+")
_MAX_ID = 200


@dataclass(frozen=True)
class MinariSpec:
    """A dataset's metadata after all checks; None where it has none.

    It was recorded on the environment `recorded`, and is to be evaluated in `evaluated`. Observations have the
    `layout`, actions the bounds `action_low` and `action_high` (A,), or they are `n_actions` integers from
    `action_start` on; `reference_returns` score 0 and 100.
    """

    recorded: Described | None
    evaluated: Described | None
    reference_returns: tuple[float, float] | None
    layout: Layout | None
    action_low: tuple[float, ...] | None
    action_high: tuple[float, ...] | None
    n_actions: int | None
    action_start: int
    total_episodes: int
    total_steps: int
    notes: tuple[str, ...]

    @property
    def env_id(self) -> str | None:
        """The environment it was recorded on."""
        return None if self.recorded is None else self.recorded.env_id

    @property
    def unflat(self) -> Layout | None:
        """The layout of observations that are no vectors by themselves."""
        return None if self.layout is None or is_vector(self.layout) else self.layout

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


def minari_id(name: str) -> str:
    """The Minari id of a task's data, without a version: "mujoco/hopper/medium" of "hopper-medium".

    These were recorded on the -v5 environments by other policies than D4RL's: scores are not comparable with D4RL's.
    UsageError: no such task, or one whose data are made here.
    """
    task = get_task(name)
    if not isinstance(task, D4RLTask):
        raise UsageError(f"{name}: Minari has no such data, because they are made locally; leave --source out")
    return f"mujoco/{task.family}/{task.level}"


def read_spec(path: Path) -> MinariSpec:
    """Read a dataset's `metadata.json`; nothing is imported.

    DataError: it is missing or damaged; the data are not in HDF5; observations cannot be flattened, or actions are
    neither vectors nor integers; or the environment cannot be one.
    """
    try:
        metadata = _object(str(path), path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({one_line(error)}); {_AGAIN}") from error
    if (kind := metadata.get("data_format", "hdf5")) != "hdf5":
        raise DataError(f"{path}:data_format is {_shown(kind)}; only hdf5 is read, convert it with minari")
    notes: list[str] = []
    recorded, evaluated = (_environment(path, metadata, key) for key in ("env_spec", "eval_env_spec"))
    notes += () if recorded is None else recorded.notes
    layout = _layout(path, metadata)
    n_actions, start = _choices(path, metadata)
    low, high = _bounds(path, metadata) if n_actions is None else (None, None)
    described = [(key, metadata.get(key)) for key in ("algorithm_name", "description")]
    notes += [f"{key}: {one_line(text)}" for key, text in described if text and isinstance(text, str)]
    return MinariSpec(
        recorded=recorded,
        evaluated=evaluated,
        reference_returns=_reference_returns(metadata, notes),
        layout=layout,
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


def _layout(path: Path, metadata: dict[str, Any]) -> Layout | None:
    """The space of observations; None where the dataset does not describe it."""
    if metadata.get("observation_space") is None:
        return None
    try:
        return checked_layout(_object(f"{path}:observation_space", metadata["observation_space"]))
    except ValueError as error:
        raise DataError(f"{path}:observation_space: observations {error}") from error


def _bounds(path: Path, metadata: dict[str, Any]) -> tuple[tuple[float, ...] | None, ...]:
    """Lower and upper bounds of actions, (A,); None where the dataset does not describe them."""
    if metadata.get("action_space") is None:
        return None, None
    space = _object(f"{path}:action_space", metadata["action_space"])
    shape = space.get("shape")
    if space.get("type") != "Box" or not isinstance(shape, list):
        raise DataError(
            f"{path}:action_space is {_shown(space.get('type'))}; only Box (real numbers) and Discrete actions can be "
            "learned from; number the combinations, numpy.ravel_multi_index(actions.T, nvec), and give them to "
            "aaren_rl.Episodes.from_trajectories"
        )
    try:
        bounds = np.array([space["low"], space["high"]], np.float64)
    except (KeyError, ValueError, TypeError, OverflowError):
        bounds = np.zeros(0)
    if bounds.shape != (2, *shape) or not np.all(bounds[0] <= bounds[1]):
        raise DataError(f"{path}:action_space has no bounds that fit its shape {_shown(shape)}; {_AGAIN}")
    return tuple(tuple(side.ravel().tolist()) for side in bounds)


def _environment(path: Path, metadata: dict[str, Any], key: str) -> Described | None:
    if metadata.get(key) is None:
        return None
    try:
        return describe(f"{path}:{key}", _object(f"{path}:{key}", metadata[key]))
    except ValueError as error:
        raise DataError(f"{error}; {_AGAIN}") from error


def _reference_returns(metadata: dict[str, Any], notes: list[str]) -> tuple[float, float] | None:
    low, high = metadata.get("ref_min_score"), metadata.get("ref_max_score")
    if low is None and high is None:
        return None
    if isinstance(low, int | float) and isinstance(high, int | float) and -1e300 < low < high < 1e300:
        return float(low), float(high)
    notes.append(f"left out reference scores that do not rise from one number to another: {_shown([low, high])}")
    return None
