"""D4RL's normalised scores: 0 is a random policy, 100 is D4RL's expert."""

from typing import overload

import numpy as np
import numpy.typing as npt

from .specs import get_task

# Family: (random policy's, expert policy's) mean return, the `-v2` entries of `d4rl.infos`.
REFERENCE_RETURNS: dict[str, tuple[float, float]] = {
    "halfcheetah": (-280.178953, 12135.0),
    "hopper": (-20.272305, 3234.3),
    "walker2d": (1.629008, 4592.3),
    "ant": (-325.6, 3879.7),
}


@overload
def normalized_score(name: str, returns: float) -> float: ...
@overload
def normalized_score(name: str, returns: npt.ArrayLike) -> npt.NDArray[np.float64]: ...
def normalized_score(name: str, returns: npt.ArrayLike) -> float | npt.NDArray[np.float64]:
    """Normalise undiscounted episode returns: 100 * (return - random) / (expert - random), as D4RL does.

    `name` is a family ("hopper") or a task ("hopper-medium"). A number gives a float, an array of any shape a float64
    array of that shape.

    Raises:
        UnknownTaskError: the name is neither.
    """
    family = name if name in REFERENCE_RETURNS else get_task(name).family
    low, high = REFERENCE_RETURNS[family]
    scores = 100.0 * (np.asarray(returns, dtype=np.float64) - low) / (high - low)
    return float(scores) if np.ndim(returns) == 0 else scores
