"""Arrays, lists, trajectories and frames of a Python program to columns."""

import dataclasses
from collections.abc import Iterable, Mapping, Sized
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base.errors import DataError, UsageError, one_line
from ..tasks.spaces import layout_of, transposed
from .assemble import Limits, assemble
from .columns import MEANING, NAMES, OBSERVATIONS, Column, Table, Tree

if TYPE_CHECKING:
    import gymnasium as gym

_KEYS = "give a dict of observations, actions, rewards, and terminated or truncated where they are known"
_LABELS = ("dataset", "env_id", "source", "notes")
_OPTIONS = ("observation_space", "max_episode_steps", "kind", "names", *_LABELS)
_DEPTH = 16


def from_columns(columns: Mapping[str, Any], **options: Any) -> dict[str, Any]:  # noqa: ANN401
    """The fields of `Episodes` of columns of all steps, by any of the names of files; see `Episodes.from_arrays`."""
    flags = {name: options.pop(name) for name in [*options] if name in MEANING and name not in _OPTIONS}
    given = {name: value for name, value in {**columns, **flags}.items() if value is not None}
    return _made([_table("", given)], one_each=False, **options)


def from_trajectories(trajectories: Iterable[Any], **options: Any) -> dict[str, Any]:  # noqa: ANN401
    """The fields of `Episodes` of trajectories, one each; see `Episodes.from_trajectories`."""
    if isinstance(trajectories, Mapping | str | bytes) or not isinstance(trajectories, Iterable):
        raise DataError(f"trajectories: are a {type(trajectories).__name__}, not a list of episodes; {_KEYS} for each")
    tables = [_table(f"trajectory {i}", _fields(i, one)) for i, one in enumerate(trajectories)]
    if not tables:
        raise DataError(f"trajectories: there are none; {_KEYS} for each")
    return _made(tables, one_each=True, **options)


def from_frame(frame: Any, **options: Any) -> dict[str, Any]:  # noqa: ANN401  of pandas
    """The fields of `Episodes` of a frame with a row for each step; see `Episodes.from_frame`."""
    notes: list[str] = []
    columns = frame_columns(frame, "", options.get("names") or {}, notes)
    options["notes"] = (*notes, *options.get("notes", ()))
    return _made([Table("frame", columns)], one_each=False, **options)


def _made(
    tables: list[Table],
    *,
    one_each: bool,
    observation_space: "gym.Space[Any] | None" = None,
    max_episode_steps: int | None = None,
    kind: str | None = None,
    names: Mapping[str, Any] | None = None,
    **labels: Any,  # noqa: ANN401
) -> dict[str, Any]:
    if unknown := [name for name in labels if name not in _LABELS]:
        raise UsageError(
            f"{unknown[0]}: is no argument; columns are named as in files, such as terminals, timeouts, dones or ends, "
            f"and the options are {', '.join(_OPTIONS)}"
        )
    try:
        layout = None if observation_space is None else layout_of(observation_space)
    except ValueError as error:
        raise DataError(f"observation_space: observations {error}") from error
    limits = Limits(
        layout=layout,
        action_low=-np.inf,
        action_high=np.inf,
        max_episode_steps=None if one_each else max_episode_steps,
        actions=kind,
        names=names or {},
    )
    return {**assemble(tables, limits, path="episodes", way_out=_KEYS, one_each=one_each, **labels), "path": ""}


def _fields(i: int, trajectory: Any) -> Mapping[str, Any]:  # noqa: ANN401
    """A trajectory as a mapping: of its keys, or of an object's fields, as minari and imitation give them."""
    if hasattr(trajectory, "_asdict"):
        trajectory = trajectory._asdict()
    elif dataclasses.is_dataclass(trajectory) and not isinstance(trajectory, type):
        trajectory = {item.name: getattr(trajectory, item.name) for item in dataclasses.fields(trajectory)}
    elif hasattr(trajectory, "to_numpy") and hasattr(trajectory, "columns"):  # a frame of pandas
        trajectory = {str(name): trajectory[name] for name in trajectory.columns}
    if not isinstance(trajectory, Mapping):
        raise DataError(f"trajectory {i}: is {one_line(repr(trajectory), 60)}, not a dict; {_KEYS}")
    return trajectory


def _table(place: str, columns: Mapping[str, Any]) -> Table:
    read: dict[str, Tree] = {}
    rewards = next((columns[name] for name in NAMES["rewards"] if name in columns), None)
    steps = len(rewards) if isinstance(rewards, Sized) else 0
    for name, value in columns.items():
        here = f"{place}:{name}" if place else str(name)
        if name in NAMES[OBSERVATIONS]:
            read[name] = tree_of(value, here, steps)
        elif name in MEANING:
            if value is not None:
                read[name] = column_of(value, here)
        else:
            read[str(name)] = _other(value, here)
    return Table(place or "columns", read)


def _other(value: Any, place: str) -> Tree:  # noqa: ANN401
    """A column that has no known name; {}: it cannot be one, but a message has its name where a column is missing."""
    try:
        return column_of(value, place)
    except DataError:
        return {}


def tree_of(value: Any, place: str, steps: int, depth: int = _DEPTH) -> Tree:  # noqa: ANN401  whatever the user has
    """Observations as columns: an array, what may become one, or a dict or a tuple of them, nested."""
    if not depth:
        raise DataError(f"{place}: is nested more than {_DEPTH} levels deep; give arrays")
    if isinstance(value, tuple) and len(value) in (steps, steps + 1) and _of_steps(value):
        value = list(value)  # as zip(*rows) gives
    try:
        value = transposed(value)
    except ValueError as error:
        raise DataError(f"{place}: {error}") from error
    if isinstance(value, Mapping):
        return {str(key): tree_of(part, f"{place}/{key}", steps, depth - 1) for key, part in value.items()}
    if isinstance(value, tuple) and any(np.ndim(part) for part in value if not isinstance(part, Mapping)):
        return [tree_of(part, f"{place}/{i}", steps, depth - 1) for i, part in enumerate(value)]
    return column_of(value, place)


def _of_steps(value: tuple[Any, ...]) -> bool:
    """Whether the parts of a tuple are observations of a step each: they are alike."""
    if any(isinstance(part, tuple) for part in value):
        return True
    try:
        return not any(isinstance(part, Mapping) for part in value) and len({np.shape(part) for part in value}) == 1
    except ValueError:  # parts of different lengths
        return False


def column_of(value: Any, place: str) -> Column:  # noqa: ANN401
    """An array, or what becomes one, as a column; DataError: it does not, or something of it is missing."""
    if hasattr(value, "detach"):  # a tensor
        value = value.detach().cpu()
    try:
        if np.ma.is_masked(value):
            _refuse_masked(value, place)
        array = np.asarray(value)
        if array.dtype == object:
            array = _numbers(value, array)
    except DataError:
        raise
    except Exception as error:  # any object may define what it is as an array
        raise DataError(
            f"{place}: cannot be an array of numbers ({one_line(error, 80)}); give as many numbers for each step, and "
            "episodes of different lengths to Episodes.from_trajectories"
        ) from error
    if array.dtype.kind not in "biuf":
        what = "Python objects" if array.dtype == object else str(array.dtype)
        raise DataError(f"{place}: holds {what}, not real numbers; give as many numbers for each step")
    return Column(place, array)


def _refuse_masked(value: Any, place: str) -> None:  # noqa: ANN401
    step, *column = np.argwhere(np.ma.getmaskarray(value))[0]
    where = f"step {step}" + (f", column {column[0]}" if column else "")
    raise DataError(f"{place}: is masked at {where}, so a value is missing there; fill it or leave the episode out")


def _numbers(value: Any, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:  # noqa: ANN401
    """An array of objects as one of numbers: rows that are arrays, and the mixed or nullable columns of a frame."""
    if hasattr(value, "to_numpy") and all(getattr(kind, "kind", "O") in "biuf" for kind in _dtypes(value)):
        return np.asarray(value.to_numpy(np.float64, na_value=np.nan))
    if array.ndim == 1 and len(array) and all(np.ndim(row) for row in array):
        return np.array([np.asarray(row) for row in array])
    return array


def _dtypes(value: Any) -> list[Any]:  # noqa: ANN401
    return [*value.dtypes] if hasattr(value, "columns") else [value.dtype]


def frame_columns(frame: Any, place: str, names: Mapping[str, Any], notes: list[str]) -> dict[str, Tree]:  # noqa: ANN401
    """The columns of a frame; those of images, text and the like, {}, with a note.

    DataError: one of a known name is no numbers.
    """
    named = {name for of in names.values() for name in ([of] if isinstance(of, str) else of)}
    columns: dict[str, Tree] = {}
    odd: list[str] = []
    for name in map(str, frame.columns):
        where = f"{place}:{name}" if place else name
        try:
            if isinstance(values := frame[name], type(frame)):
                raise DataError(f"{where} is there twice; rename one")
            columns[name] = column_of(np.stack(values.to_numpy()) if _of_lists(values) else values, where)
        except (DataError, ValueError, TypeError) as error:
            if name in named or name in MEANING:
                told = one_line(error, 80)
                raise DataError(f"{where} holds no numbers ({told}); give as many for each step") from error
            columns[name] = {}
            odd.append(name)
    if odd:
        notes.append(f"left out columns that are no numbers: {', '.join(odd[:20])}")
    return columns


def _of_lists(values: Any) -> bool:  # noqa: ANN401  a column of pandas
    return values.dtype == object and len(values) > 0 and bool(np.ndim(values.iloc[0]))
