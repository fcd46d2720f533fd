"""Reads untrusted values of JSON and YAML as dataclasses."""

import dataclasses
import math
import re
import reprlib
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")  # a number to people and to YAML 1.2, text to PyYAML


def read(cls: type[T], tree: object, where: str = "") -> T:
    """Makes a dataclass from a mapping of its fields: plain values, lists, mappings, unions and dataclasses.

    Types are strict: True is not an int and "3" is not a float. An int becomes a float if the field is a float and the
    number stays the same, and so does 1e-3, which PyYAML reads as text. Floats must be finite. `where` is the value's
    name in messages.

    Raises ValueError if a key or a value does not fit; the message is one line that names the field.
    """
    prefix = where and f"{where}: "
    if not isinstance(tree, dict):
        raise ValueError(f"{prefix}must be a mapping")
    fields, hints = dataclasses.fields(typing.cast("Any", cls)), typing.get_type_hints(cls)
    needed = {f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING}
    for what, keys in (("unknown", set(tree) - set(hints)), ("missing", needed - set(tree))):
        if keys:
            raise ValueError(f"{prefix}{what} key {', '.join(sorted(map(str, keys)))[:200]}")
    return cls(**{name: check_type(value, hints[name], f"{where}.{name}".lstrip(".")) for name, value in tree.items()})


def check_type(value: object, hint: Any, where: str) -> Any:  # noqa: ANN401  a type as an annotation has it
    """The value as `read` has it in a field of this type, named `where`. Raises ValueError if it does not fit."""
    if dataclasses.is_dataclass(hint):
        return read(typing.cast("type[Any]", hint), value, where)
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for kind in kinds:
        try:
            return _as(kind, value)
        except TypeError:
            continue
    if typing.get_origin(hint) is list:
        raise ValueError(f"{where}: must be a list of {typing.get_args(hint)[0].__name__}")
    if float in kinds and isinstance(value, float):
        raise ValueError(f"{where}: must be finite, not {value}")
    # A value in a file may be far longer than a line.
    raise ValueError(f"{where}: {reprlib.repr(value)} is not {' or '.join(kind.__name__ for kind in kinds)}")


def _as(kind: Any, value: Any) -> Any:  # noqa: ANN401
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is list and isinstance(value, list):
        return [_as(parts[0], item) for item in value]
    if origin is dict and isinstance(value, dict):
        return {_as(parts[0], key): _as(parts[1], item) for key, item in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return read(typing.cast("type[Any]", kind), value)
    if kind is float and (_EXPONENT.fullmatch(value) if isinstance(value, str) else _is_exact(value)):
        value = float(value)
    if kind is Any or (type(value) is kind and (kind is not float or math.isfinite(value))):
        return value
    raise TypeError


def _is_exact(value: object) -> bool:
    """Whether it is an int that a float holds exactly."""
    return type(value) is int and abs(value) < 2**53
