"""Normalised scores: 0 is a random policy, 100 is an expert; D4RL's references where none are given."""

from typing import overload

import numpy as np
import numpy.typing as npt

from .table import REFERENCE_RETURNS, Reference, get_task


@overload
def normalized_score(name: str | Reference, returns: float) -> float: ...
@overload
def normalized_score(name: str | Reference, returns: npt.ArrayLike) -> npt.NDArray[np.float64]: ...
def normalized_score(name: str | Reference, returns: npt.ArrayLike) -> float | npt.NDArray[np.float64]:
    """Normalise undiscounted episode returns: 100 * (return - random) / (expert - random), as D4RL does.

    `name` is a family ("hopper") or a task ("hopper-medium") of D4RL's, or a `Reference` of your own. A number gives a
    float, an array of any shape a float64 array of that shape.

    Raises:
        UnknownTaskError: the name is neither.
    """
    if isinstance(name, Reference):
        low, high = name.low, name.high
    else:
        low, high = REFERENCE_RETURNS[name if name in REFERENCE_RETURNS else get_task(name).family]
    scores = 100.0 * (np.asarray(returns, dtype=np.float64) - low) / (high - low)
    return float(scores) if np.ndim(returns) == 0 else scores
