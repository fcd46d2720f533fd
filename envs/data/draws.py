"""How often each episode is drawn: the drawn distribution is the dataset.

In proportion to the weights: training contexts of every sampler, the normalization of observations, the choice between
whole episodes and truncated BPTT, and the held-out error. Without those of weight 0, but otherwise alike: the estimate
of the highest return, and the range that returns-to-go are clamped to. From all episodes: the return scale, the default
target return, and what a policy card says of the data.
"""

import numpy as np
import numpy.typing as npt

Weights = npt.NDArray[np.float64]

LEAST_EPISODES = 30  # effective ones, and steps: fewer overfit
LEAST_STEPS = 20_000
NEARLY_EQUAL = 0.1  # of the highest return: episodes whose returns differ by less are drawn about equally often
# Quantiles of usual returns. What lies above them by more than they are apart counts as so far above: one giant return
# must not make all others alike.
USUAL = 0.05, 0.95
HALVINGS = 60  # of the interval in which the width of the ramp is searched


def draw_weights(returns: npt.NDArray[np.float64], lengths: npt.NDArray[np.int64], draws: str, share: float) -> Weights:
    """A weight in [0, 1] for each episode, (E,), in proportion to which it is drawn; `draws` is a key of `card.DRAWN`.

    `returns` (E,) are in the reward's units, `lengths` (E,) in steps, `share` is in (0, 1].

    On logs of several controllers a policy with a memory finds out from the history which of them plays, and then plays
    as that one does, whatever return is asked for (Ortega et al. 2021, "Shaking the foundations"). Where the episodes
    drawn are good, that does no harm. Weighting by return: Yue et al. 2022, "Boosting Offline RL via Data Rebalancing",
    and Hong et al. 2023, "Harnessing Mixed Offline RL Datasets via Trajectory Weighting".

    "return": the weight rises linearly from 0 at some return to 1 at the highest. That return is chosen so that the
    effective number of episodes is `share` of all, at least 30 episodes and 20,000 steps, and is at least a tenth below
    the highest: so few or equally good episodes are all drawn. "best": the `share` with the highest returns, equally
    often. "uniform": all, equally often.
    """
    weights = np.ones(len(returns))
    if draws == "best":
        weights[:] = 0
        weights[best_of(returns, share)] = 1
    wanted = len(returns) * max(share, LEAST_EPISODES / len(returns), LEAST_STEPS / lengths.sum())
    if draws != "return" or wanted >= len(returns):
        return weights
    low, high = np.quantile(returns, USUAL)
    capped = np.minimum(returns, high + (high - low)) if low < high else returns
    below = capped - (top := capped.max())
    span = -float(below.min())
    narrow, wide = max(NEARLY_EQUAL * abs(float(top)), 1e-9 * span), 1e3 * span

    def rising(width: float) -> Weights:
        ramp: Weights = np.maximum(below + width, 0) / width
        return ramp

    if span == 0 or effective(rising(narrow)) >= wanted:
        return rising(narrow) if span else weights
    for _ in range(HALVINGS):
        middle = float(np.sqrt(narrow * wide))
        narrow, wide = (middle, wide) if effective(rising(middle)) < wanted else (narrow, middle)
    return rising(wide)


def best_of(returns: npt.NDArray[np.float64], fraction: float) -> npt.NDArray[np.int64]:
    """Which episodes have the highest `returns` (E,), a `fraction` of them and one at least, in rising order."""
    count = max(1, round(fraction * len(returns)))
    return np.sort(np.argsort(-returns, kind="stable")[:count])


def effective(weights: Weights) -> float:
    """The effective number of episodes drawn with these weights (E,): (sum w)^2 / sum w^2 (Kish 1965)."""
    return float(weights.sum() ** 2 / (weights**2).sum())
