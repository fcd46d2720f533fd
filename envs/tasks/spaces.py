"""Observation spaces: flattened to one vector, batch by batch, as Gymnasium's `spaces.flatten` does it step by step.

A layout is what flattening needs to know of a space, as JSON in Minari's form: {"type": "Dict", "subspaces": {...}}. A
policy's card has one. No Gymnasium, unless a space is given.

Shape suffixes: N steps or environments, O numbers of a flat observation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...base.errors import ArgumentError

if TYPE_CHECKING:
    import gymnasium as gym

Layout: TypeAlias = Mapping[str, Any]

MOST = 2**20  # numbers of an observation: beyond, one-hot vectors are a mistake
# Numbers of uint8 with three axes: up to here they are a grid of symbols, such as MiniGrid's 7 x 7 x 3, else an image.
_GRID = 2**10
_DEPTH = 16
_DESCRIBE = "describe it as Minari's serialize_space does"


def layout_of(space: gym.Space[Any]) -> Layout:
    """The layout of a space; ValueError: it cannot be flattened, and the message says why and what to do."""
    return checked_layout(_described(space))


def _described(space: gym.Space[Any]) -> dict[str, Any]:
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        return {"type": "Box", "shape": list(space.shape), "dtype": str(space.dtype)}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": list(space.shape)}
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "subspaces": {str(key): _described(part) for key, part in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "subspaces": [_described(part) for part in space.spaces]}
    return {"type": type(space).__name__}


def checked_layout(tree: object) -> Layout:
    """The layout in JSON of unknown origin, without what flattening does not need; ValueError: it is none."""
    layout = _checked(tree, _DEPTH)
    if (size := flat_size(layout)) > MOST:
        raise ValueError(f"are {size:,} numbers when flattened, more than {MOST:,}; leave out what is that large")
    return layout


def _checked(tree: object, depth: int) -> Layout:
    if not isinstance(tree, dict) or not depth:
        raise ValueError(f"are of no known space; {_DESCRIBE}")
    kind, parts = tree.get("type"), tree.get("subspaces")
    if kind == "Dict" and isinstance(parts, dict):
        return {"type": kind, "subspaces": {key: _checked(part, depth - 1) for key, part in parts.items()}}
    if kind == "Tuple" and isinstance(parts, list):
        return {"type": kind, "subspaces": [_checked(part, depth - 1) for part in parts]}
    if kind == "Box":
        shape = _counts(tree.get("shape"))
        if tree.get("dtype") == "uint8" and is_image(shape):
            told = f"are images (uint8 of shape {tuple(shape)}), for which the models have no encoder"
            way_out = "wrap the environment in gymnasium.wrappers.FlattenObservation where they are small"
            raise ValueError(f"{told}; encode them as vectors of features, or {way_out}")
        return {"type": kind, "shape": shape}
    if kind == "MultiBinary":
        n = tree.get("n")
        return {"type": kind, "n": _counts(n if isinstance(n, list) else [n])}
    if kind in ("Discrete", "MultiDiscrete"):
        return _choices(kind, tree)
    told = f"are {str(kind)[:40]}, which has no fixed size as a vector; leave it out by --observation-keys"
    way_out = "the environment's argument observation_keys, or wrap it in gymnasium.wrappers.TransformObservation"
    raise ValueError(f"{told}, or {way_out}")


def _choices(kind: str, tree: dict[str, Any]) -> Layout:
    key = "n" if kind == "Discrete" else "nvec"
    try:
        counts, starts = np.array(tree.get(key)), np.array(tree.get("start", 0))
    except ValueError:  # rows of different lengths
        counts = starts = np.array(None)
    if counts.dtype != int or starts.dtype != int or starts.shape not in ((), counts.shape) or (counts < 1).any():
        raise ValueError(f"have {key} {str(tree.get(key))[:40]} in their space, and a start beside; {_DESCRIBE}")
    return {"type": kind, key: counts.tolist(), "start": np.broadcast_to(starts, counts.shape).tolist()}


def _counts(values: object) -> list[int]:
    if isinstance(values, list) and all(type(value) is int and 0 <= value < 2**53 for value in values):
        return values
    raise ValueError(f"have the shape {str(values)[:40]} in their space; {_DESCRIBE}")


def flat_size(layout: Layout) -> int:
    """The number O of columns of a flattened observation."""
    kind = layout["type"]
    if kind in ("Dict", "Tuple"):
        return sum(map(flat_size, _parts(layout).values()))
    if kind == "MultiDiscrete":
        return int(np.sum(layout["nvec"]))
    return math.prod(layout["shape"] if kind == "Box" else layout["n"] if kind == "MultiBinary" else [layout["n"]])


def is_image(shape: Sequence[int]) -> bool:
    """Whether an observation of this shape and of uint8 is an image rather than a small grid."""
    return len(shape) == 3 and math.prod(shape) > _GRID


def is_vector(layout: Layout) -> bool:
    """Whether observations are vectors as they are."""
    return layout["type"] == "Box" and len(layout["shape"]) == 1


def parts_of(layout: Layout, name: str = "observations") -> dict[str, int]:
    """The parts of an observation in the order in which they are flattened, by name, and the columns of each."""
    if layout["type"] not in ("Dict", "Tuple"):
        return {name: flat_size(layout)}
    found: dict[str, int] = {}
    for key, part in _parts(layout).items():
        found |= parts_of(part, f"{name}/{key}")
    return found


def rearranged(given: Layout | None, wanted: Layout | None) -> npt.NDArray[np.int64] | None:
    """The columns (O,) of flat observations of `given` in the order of `wanted`; None: they are in it, or not known.

    Gymnasium's Dict sorts the keys of a dict, and keeps the order of keyword arguments. ValueError: they have other
    parts.
    """
    if given is None or wanted is None:
        return None
    here, there = parts_of(given), parts_of(wanted)
    if here != there:
        told = [", ".join(f"{name.partition('/')[2]} ({size})" for name, size in of.items()) for of in (here, there)]
        raise ValueError(f"have the parts {told[0]}, not {told[1]}")
    if list(here) == list(there):
        return None
    firsts = dict(zip(here, np.cumsum([0, *here.values()])[:-1].tolist(), strict=True))
    return np.concatenate([np.arange(firsts[name], firsts[name] + size) for name, size in there.items()])


def flatten_batch(
    layout: Layout | None, tree: Any, name: str = "observations", dtype: npt.DTypeLike = np.float32
) -> npt.NDArray[Any]:
    """N observations as an array (N, O) of `dtype`: Discrete and MultiDiscrete one-hot, the others raveled.

    `tree` holds what Gymnasium's vector environments give: an array with a first axis of N, a dict or a tuple of them,
    or a list of N single observations. What is flat already, (N, O), is kept. Without a layout, all numbers are columns
    as they are, and a dict's keys are sorted, as Gymnasium's Dict sorts them. `name` is the tree's in messages.

    ValueError: a part is missing, of another shape, no number, or not in its space.
    """
    parts = list(_leaves(layout, transposed(tree), name))
    if not parts:
        raise ValueError(f"{name}: hold no numbers")
    lengths = {where: len(part) for where, part in parts}
    if len(set(lengths.values())) > 1:
        few, many = min(lengths, key=lengths.__getitem__), max(lengths, key=lengths.__getitem__)
        raise ValueError(f"{few} has {lengths[few]:,} rows, {many} has {lengths[many]:,}; give as many of each")
    if len(parts) == 1:
        return parts[0][1].astype(dtype, copy=False)
    return np.concatenate([part for _, part in parts], axis=1, dtype=dtype, casting="unsafe")


def as_flat(layout: Layout | None, observation: Any, dtype: npt.DTypeLike = np.float32) -> Any:
    """Observations as a policy acts on them, (B, O), from those of its environment; what is flat is returned as it is.

    Raises ArgumentError, a ValueError, as `flatten_batch`.
    """
    if layout is None and not _is_unflat(observation):
        return observation
    try:
        return flatten_batch(layout, observation, "observation", dtype)
    except ValueError as error:
        raise ArgumentError(f"{error} (act takes a batch: [observation] is one of one)") from error


def _is_unflat(observation: Any) -> bool:
    if isinstance(observation, list) and observation and isinstance(observation[0], Mapping):
        return True
    try:
        return isinstance(observation, Mapping) or np.ndim(observation) > 2
    except ValueError:  # parts of different lengths
        return isinstance(observation, tuple)


def transposed(tree: Any) -> Any:
    """A list of observations that are dicts or tuples as one dict or tuple of lists."""
    if not isinstance(tree, list) or not tree or not isinstance(tree[0], Mapping | tuple):
        return tree
    first, same = tree[0], all(type(one) is type(tree[0]) and len(one) == len(tree[0]) for one in tree)
    if not same or (isinstance(first, Mapping) and any(one.keys() != first.keys() for one in tree)):
        raise ValueError("observations of a list have different parts; give the same to each")
    if isinstance(first, Mapping):
        return {key: transposed([one[key] for one in tree]) for key in first}
    return tuple(transposed(list(column)) for column in zip(*tree, strict=True))


def _parts(layout: Layout) -> dict[str, Layout]:
    parts = layout["subspaces"]
    return dict(parts) if layout["type"] == "Dict" else _named(tuple(parts))


def _named(tree: Any) -> dict[str, Any]:
    """The parts of a dict or a tuple by name, in the order in which they are flattened."""
    if not isinstance(tree, Mapping):
        return {str(i): part for i, part in enumerate(tree)}
    return dict(sorted((str(key), part) for key, part in tree.items()))


def _leaves(layout: Layout | None, tree: Any, name: str) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """The arrays (N, columns) of a tree, in order, with their names."""
    if not isinstance(tree, Mapping | tuple):
        array = _numbers(tree, name)
        yield name, array.reshape(len(array), -1) if layout is None else _leaf(layout, array, name)
        return
    if layout is not None and layout["type"] not in ("Dict", "Tuple"):
        raise ValueError(f"{name}: is a {type(tree).__name__}, its space is a {layout['type']}; give an array")
    found = _named(tree)
    for key, part in (dict.fromkeys(found) if layout is None else _parts(layout)).items():
        if key not in found:
            raise ValueError(f"{name}: {key!r} is missing (found: {', '.join(found)[:200] or 'nothing'}); add it")
        yield from _leaves(part, found[key], f"{name}/{key}")


def _numbers(value: Any, name: str) -> npt.NDArray[Any]:
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except ValueError as error:
        raise ValueError(f"{name}: rows have different shapes; give as many numbers in each") from error
    if array.dtype.kind not in "biuf" or not array.ndim:
        raise ValueError(f"{name}: is {array.dtype} of shape {array.shape}; give an array of numbers, a row for each")
    return array


def _leaf(layout: Layout, array: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    kind, size, rows = layout["type"], flat_size(layout), len(array)
    if array.shape == (rows, size):
        # Where every choice is the only one, numbers and one-hot vectors have the same shape; the latter are 1.
        single = kind in ("Discrete", "MultiDiscrete") and size == np.size(layout.get("nvec", layout.get("n")))
        return np.ones_like(array) if single else array
    if kind in ("Dict", "Tuple"):
        raise ValueError(f"{name}: has shape {array.shape}; give the parts of the {kind}, or ({rows}, {size})")
    counts = np.array(layout.get("nvec", layout.get("n")))
    shape = layout["shape"] if kind == "Box" else counts.tolist() if kind == "MultiBinary" else counts.shape
    if array.shape != (rows, *shape) and not (kind == "Discrete" and array.shape == (rows, 1)):
        raise ValueError(f"{name}: has shape {array.shape}; its space is of {(rows, *shape)}, flat of {(rows, size)}")
    if kind in ("Box", "MultiBinary"):
        return array.reshape(rows, size)
    columns = []
    for chosen, count, start in zip(array.reshape(rows, -1).T, counts.flat, np.ravel(layout["start"]), strict=True):
        columns.append(np.equal(chosen[:, None], np.arange(start, start + count)))
        if (odd := ~columns[-1].any(axis=1)).any():
            found = f"{chosen[odd][0]:g} in row {odd.argmax()}"
            raise ValueError(f"{name}: has {found}; its space is {start} to {start + count - 1}")
    return np.concatenate(columns, axis=1)
