"""Published normalized scores on D4RL's v2 data, for comparison.

They were computed on D4RL's own files: beside a score on local data they show the order of magnitude and no more.
"""

from typing import NamedTuple


class Published(NamedTuple):
    """A published score; `std` over training seeds, None where it is not copied here."""

    mean: float
    std: float | None = None


PAPER = "Attention as an RNN, Table 1"

PUBLISHED = {
    PAPER: "Feng et al. 2024, arXiv:2405.13956, Table 1: 5 training seeds, mean and standard deviation",
    "CORL, last": "Tarasov et al. 2022, CORL's dt.py results: the last checkpoint's score",
    "CORL, best": "the same: the best score during training",
    "Decision Transformer paper": "Chen et al. 2021, arXiv:2106.01345, the table of D4RL results",
}

# task: the paper's Transformer, mean and standard deviation, and its Aaren, too; Decision Transformer by the other
# sources of PUBLISHED, who did not run Ant.
_SCORES: dict[str, tuple[float, ...]] = {
    "halfcheetah-medium": (41.88, 1.47, 42.16, 1.89, 42.20, 42.73, 42.6),
    "halfcheetah-medium-replay": (36.57, 1.40, 37.91, 1.94, 38.91, 40.31, 36.6),
    "halfcheetah-medium-expert": (75.98, 6.34, 75.74, 15.13, 91.55, 93.40, 86.8),
    "ant-medium": (94.25, 8.62, 93.29, 4.04),
    "ant-medium-replay": (89.39, 4.96, 85.53, 6.57),
    "ant-medium-expert": (125.47, 10.99, 119.72, 12.63),
    "hopper-medium": (80.18, 5.85, 80.86, 4.77, 65.10, 69.42, 67.6),
    "hopper-medium-replay": (79.73, 7.64, 77.87, 5.68, 81.77, 88.74, 82.7),
    "hopper-medium-expert": (98.82, 10.33, 103.89, 11.89, 110.44, 111.18, 107.6),
    "walker2d-medium": (77.84, 3.81, 74.44, 5.16, 67.63, 74.70, 74.0),
    "walker2d-medium-replay": (72.36, 5.63, 71.44, 6.55, 59.86, 68.22, 66.6),
    "walker2d-medium-expert": (109.66, 0.45, 110.51, 1.30, 107.11, 108.71, 108.1),
}


def published(env: str, agent: str) -> dict[str, Published]:
    """Published scores of an agent on a task, by source (a key of `PUBLISHED`); empty where there are none."""
    if env not in _SCORES or agent not in ("decision-aaren", "decision-transformer"):
        return {}
    if agent == "decision-aaren":
        return {PAPER: Published(*_SCORES[env][2:4])}
    others = zip(list(PUBLISHED)[1:], _SCORES[env][4:], strict=False)
    return {PAPER: Published(*_SCORES[env][:2]), **{source: Published(mean) for source, mean in others}}
