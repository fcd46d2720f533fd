"""From a task's name to the task, and from returns to normalized scores."""

import difflib
from typing import overload

import numpy as np
import numpy.typing as npt

from ...base.errors import UnknownTaskError
from .built_in import BUILT_IN, LONGEST, LocalTask, corridor
from .table import REFERENCE_RETURNS, TASKS, D4RLTask, Reference


def find_task(name: str) -> D4RLTask | LocalTask | None:
    """The task of an exact name, D4RL's or built-in; None where there is none."""
    return TASKS.get(name) or BUILT_IN.get(name) or corridor(name)


def get_task(name: str) -> D4RLTask | LocalTask:
    """Look a task up by its exact name; every name that becomes part of a path goes through here first.

    UnknownTaskError: there is no such task; the message has the nearest name, or all of them.
    """
    if (task := find_task(name)) is not None:
        return task
    shown = repr(name if len(name) <= 60 else name[:57] + "...")
    spelled, known = name[:60].lower().replace("_", "-"), [*TASKS, *BUILT_IN]
    near = difflib.get_close_matches(spelled, known, n=1, cutoff=0.75)
    family = [other for other in known if other.startswith(f"{spelled.split('-')[0]}-")]
    hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(family or known)}"
    if spelled.startswith("tmaze-"):
        hint = f"a corridor of N steps is tmaze-N or tmaze-discrete-N, with N from 2 to {LONGEST:,}"
    raise UnknownTaskError(f"unknown task {shown}; {hint}")


@overload
def normalized_score(name: str | Reference, returns: float) -> float: ...
@overload
def normalized_score(name: str | Reference, returns: npt.ArrayLike) -> npt.NDArray[np.float64]: ...
def normalized_score(name: str | Reference, returns: npt.ArrayLike) -> float | npt.NDArray[np.float64]:
    """Normalize undiscounted episode returns: 100 * (return - random) / (expert - random), as D4RL does.

    `name` is a family ("hopper") of D4RL's, a task ("hopper-medium"), or a `Reference` of your own. A number gives a
    float, an array of any shape a float64 array of that shape. UnknownTaskError: the name is neither.
    """
    if isinstance(name, Reference):
        low, high = name.low, name.high
    elif name in REFERENCE_RETURNS:
        low, high = REFERENCE_RETURNS[name]
    else:
        reference = get_task(name).reference
        assert reference is not None  # of all tasks that are found by name
        low, high = reference.low, reference.high
    scores = 100.0 * (np.asarray(returns, dtype=np.float64) - low) / (high - low)
    return float(scores) if np.ndim(returns) == 0 else scores
