"""What a caller hands over, checked as `agents` checks it, with an error of the package's own. Needs numpy alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np

from .agents.arguments import check_array, check_index, check_targets
from .errors import ArgumentError
from .ranges import Range

P, T = ParamSpec("P"), TypeVar("T")


def _of_a_caller(check: Callable[P, T]) -> Callable[P, T]:
    """The check, which raises ArgumentError for its ValueError."""

    @functools.wraps(check)
    def checked(*given: P.args, **named: P.kwargs) -> T:
        try:
            return check(*given, **named)
        except ValueError as error:
            raise ArgumentError(str(error)) from error

    return checked


array, index, targets = _of_a_caller(check_array), _of_a_caller(check_index), _of_a_caller(check_targets)


def integer(name: str, value: object, limits: Range) -> int:
    """An integer of this range; raises ArgumentError."""
    if not isinstance(value, int | np.integer):
        raise ArgumentError(f"{name}: must be an integer, not {type(value).__name__}")
    if problem := limits.problem(int(value)):
        raise ArgumentError(f"{name}: {problem}")
    return int(value)
