"""The fields of dataclasses that users fill, on a command line or in files of JSON and YAML: their ranges and types.

A field's range stands in its metadata, under "limits". They are checked before anything starts.
"""

import argparse
import math
import os
import re
import reprlib
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Range:
    """Finite numbers from `low` to `high`. `above` excludes `low`, `below` excludes `high`."""

    low: float
    high: float
    above: bool = False
    below: bool = False

    def problem(self, value: float) -> str | None:
        """The problem with a value, for a message after a name and a colon; None if it is valid."""
        if isinstance(value, float) and not math.isfinite(value):
            return f"must be finite, not {value}"
        if value < self.low or (self.above and value == self.low):
            return f"must be {'above' if self.above else 'at least'} {_shown(self.low)}, not {value}"
        if value > self.high or (self.below and value == self.high):
            return f"must be {'below' if self.below else 'at most'} {_shown(self.high)}, not {value}"
        return None

    def integer(self, text: str) -> int:
        """The argparse type of an integer of this range."""
        return self._read(int, "an integer", text)

    def number(self, text: str) -> float:
        """The argparse type of a number of this range."""
        return self._read(float, "a number", text)

    def _read(self, kind: Callable[[str], Number], name: str, text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {name}, not {text[:40]!r}") from None
        if problem := self.problem(value):
            raise argparse.ArgumentTypeError(problem)
        return value


def _shown(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def setting(default: Any, text: str | None = None, limits: Range | None = None) -> Any:  # noqa: ANN401  any default
    """A field with a range. With a help text, it is a setting for users."""
    return field(default=default, metadata={"limits": limits, **({"help": text} if text else {})})


def check_limits(config: Any) -> None:  # noqa: ANN401  any dataclass
    """Raise ValueError that names the first field out of its range."""
    for item in fields(config):
        limits, value = item.metadata.get("limits"), getattr(config, item.name)
        if limits is not None and isinstance(value, int | float) and (problem := limits.problem(value)):
            raise ValueError(f"{item.name}: {problem}")


AUTO = "auto"  # target return: the maximum achievable return at every step, instead of a number

LARGE = 2**53  # above, floats and JSON do not represent every integer
COUNT = Range(1, LARGE)
COUNT_FROM_0 = Range(0, LARGE)
ENVS = Range(1, 2**31)
TEMPERATURE = Range(0, 1e30, above=True)
DILATION = 1000  # in environment steps: a recurrence encoding keeps a sum for each
CONTEXT = Range(2, 2**20)  # a rollout window allocates all steps at the start
BELOW_1 = Range(0, 1, below=True)
SEED = Range(0, LARGE)
SAC_SEED = Range(0, 2**32 - 2**16)  # NumPy's old generator has 32 bits, and an environment has a seed each
SOME = Range(0, 1, above=True)
HALF = Range(0, 0.5)
POSITIVE = Range(0, 1e30, above=True)
FROM_0 = Range(0, 1e30)
RETURN = Range(-1e15, 1e15)  # in an environment's units: divided by a return scale it stays a float32
RETURN_SCALE = Range(1e-20, 1e15)
GPUS = Range(0, 1024)
THREADS = Range(1, max(64, 8 * (os.cpu_count() or 1)))  # of many more, torch dies

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
    hints = typing.get_type_hints(cls)
    needed = {f.name for f in fields(typing.cast("Any", cls)) if f.default is f.default_factory is MISSING}
    for what, keys in (("unknown", set(tree) - set(hints)), ("missing", needed - set(tree))):
        if keys:
            raise ValueError(f"{prefix}{what} key {', '.join(sorted(map(str, keys)))[:200]}")
    return cls(**{name: check_type(value, hints[name], f"{where}.{name}".lstrip(".")) for name, value in tree.items()})


def check_type(value: object, hint: Any, where: str) -> Any:  # noqa: ANN401  a type as an annotation has it
    """The value as `read` has it in a field of this type, named `where`. Raises ValueError if it does not fit."""
    if is_dataclass(hint):
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
    if is_dataclass(kind) and isinstance(value, dict):
        return read(typing.cast("type[Any]", kind), value)
    if kind is float and (
        _EXPONENT.fullmatch(value) if isinstance(value, str) else type(value) is int and abs(value) < 2**53
    ):
        value = float(value)
    if kind is Any or (type(value) is kind and (kind is not float or math.isfinite(value))):
        return value
    raise TypeError
