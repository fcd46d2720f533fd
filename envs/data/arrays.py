"""Arrays, lists and trajectories of a Python program to columns."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base.errors import DataError, UsageError, one_line
from ..tasks.spaces import layout_of, transposed
from .assemble import KNOWN_NAMES, OBSERVATIONS, STEP_NAMES, Limits, Table, assemble
from .columns import ArrayColumn, Tree
from .ends import END_NAMES

if TYPE_CHECKING:
    import gymnasium as gym

_KEYS = "give a dict of observations, actions, rewards, and terminated or truncated where they are known"
_LABELS = ("dataset", "env_id", "source", "notes")
_DEPTH = 16


def from_columns(
    columns: Mapping[str, Any],
    *,
    observation_space: "gym.Space[Any] | None" = None,
    max_episode_steps: int | None = None,
    **others: Any,  # noqa: ANN401  flags of other names, and fields of `Episodes`
) -> dict[str, Any]:
    """The fields of `Episodes` of columns of all steps, by any of the names of files; see `Episodes.from_arrays`."""
    flags = {name: others[name] for name in END_NAMES if name in others}
    labels = _labels({name: value for name, value in others.items() if name not in flags})
    given = {name: value for name, value in {**columns, **flags}.items() if value is not None}
    limits = _limits(observation_space, max_episode_steps)
    return _made([_table("", given)], limits, one_each=False, **labels)


def from_trajectories(
    trajectories: Iterable[Any],
    *,
    observation_space: "gym.Space[Any] | None" = None,
    **labels: Any,  # noqa: ANN401
) -> dict[str, Any]:
    """The fields of `Episodes` of trajectories, one each; see `Episodes.from_trajectories`."""
    labels = _labels(labels)
    if isinstance(trajectories, Mapping | str | bytes) or not isinstance(trajectories, Iterable):
        raise DataError(f"trajectories: are a {type(trajectories).__name__}, not a list of episodes; {_KEYS} for each")
    tables = [_table(f"trajectory {i}", _fields(i, one)) for i, one in enumerate(trajectories)]
    if not tables:
        raise DataError(f"trajectories: there are none; {_KEYS} for each")
    return _made(tables, _limits(observation_space, None), one_each=True, **labels)


def _labels(given: dict[str, Any]) -> dict[str, Any]:
    if unknown := [name for name in given if name not in _LABELS]:
        raise UsageError(
            f"{unknown[0]}: is no argument; columns are named as in files, such as terminals, timeouts, dones or ends, "
            f"and the options are observation_space, max_episode_steps, {', '.join(_LABELS)}"
        )
    return given


def _limits(space: "gym.Space[Any] | None", max_episode_steps: int | None) -> Limits:
    try:
        layout = None if space is None else layout_of(space)
    except ValueError as error:
        raise DataError(f"observation_space: observations {error}") from error
    return Limits(layout=layout, action_low=-np.inf, action_high=np.inf, max_episode_steps=max_episode_steps)


def _made(tables: list[Table], limits: Limits, *, one_each: bool, **labels: Any) -> dict[str, Any]:  # noqa: ANN401
    return {**assemble(tables, limits, path="episodes", way_out=_KEYS, one_each=one_each, **labels), "path": ""}


def _fields(i: int, trajectory: object) -> Mapping[str, Any]:
    """A trajectory as a mapping: of its keys, or of an object's fields, as minari and imitation give them."""
    if hasattr(trajectory, "_asdict"):
        trajectory = trajectory._asdict()
    elif dataclasses.is_dataclass(trajectory) and not isinstance(trajectory, type):
        trajectory = {item.name: getattr(trajectory, item.name) for item in dataclasses.fields(trajectory)}
    if not isinstance(trajectory, Mapping):
        raise DataError(f"trajectory {i}: is {one_line(repr(trajectory), 60)}, not a dict; {_KEYS}")
    return trajectory


def _table(place: str, columns: Mapping[str, Any]) -> Table:
    read: dict[str, Tree] = {}
    for name, value in columns.items():
        if name in STEP_NAMES[OBSERVATIONS]:
            read[name] = _tree(value, _place(place, name), _DEPTH)
        elif name in KNOWN_NAMES:
            if value is not None:
                read[name] = _column(value, _place(place, name))
        elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            read[str(name)] = ArrayColumn(_place(place, str(name)), value)
        else:
            read[str(name)] = {}  # not read, but named where a column is missing
    return Table(place or "columns", read)


def _place(place: str, name: str) -> str:
    return f"{place}:{name}" if place else name


def _tree(value: Any, place: str, depth: int) -> Tree:  # noqa: ANN401  whatever the user has
    if not depth:
        raise DataError(f"{place}: is nested more than {_DEPTH} levels deep; give arrays")
    try:
        value = transposed(value)
    except ValueError as error:
        raise DataError(f"{place}: {error}") from error
    if isinstance(value, Mapping):
        return {str(key): _tree(part, f"{place}/{key}", depth - 1) for key, part in value.items()}
    if isinstance(value, tuple) and any(np.ndim(part) for part in value if not isinstance(part, Mapping)):
        return [_tree(part, f"{place}/{i}", depth - 1) for i, part in enumerate(value)]
    return _column(value, place)


def _column(value: Any, place: str) -> ArrayColumn:  # noqa: ANN401
    if hasattr(value, "detach"):  # a tensor
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
        if array.dtype == object and array.ndim == 1:  # of arrays, as a column of pandas may be
            array = np.array([np.asarray(row) for row in array])
    except Exception as error:  # any object may define what it is as an array
        raise DataError(
            f"{place}: cannot be an array of numbers ({one_line(error, 80)}); give as many numbers for each step, and "
            "episodes of different lengths to Episodes.from_trajectories"
        ) from error
    if array.dtype.kind not in "biuf":
        what = "Python objects" if array.dtype == object else str(array.dtype)
        raise DataError(f"{place}: holds {what}, not real numbers; give as many numbers for each step")
    return ArrayColumn(place, array)
