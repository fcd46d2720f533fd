"""A dataset in numbers: how long its episodes are, what they return, how they end, and what varies at all."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..envs.data.episodes import Episodes, row_blocks
from ..envs.tasks.scores import normalized_score
from ..envs.tasks.table import Reference

QUANTILES = (0, 5, 25, 50, 75, 95, 100)  # percent


@dataclass(frozen=True)
class Spread:
    """Of one number an episode: its mean and its quantiles at 0 (the minimum), 5, 25, 50, 75, 95 and 100 %."""

    mean: float
    quantiles: tuple[float, ...]

    @staticmethod
    def of(values: npt.NDArray[np.float64] | npt.NDArray[np.int64]) -> "Spread":
        """The spread of `values` (E,); quantiles between two values are interpolated."""
        return Spread(float(values.mean()), tuple(float(q) for q in np.percentile(values, QUANTILES)))


@dataclass(frozen=True)
class Description:
    """A dataset in numbers, with where it comes from.

    Returns are undiscounted; `score_mean` is the mean normalised score with the returns of `reference`, both None where
    there are none. `terminated_share` is the share of episodes that the environment ended, `constant_columns` the
    observation columns that never change.
    """

    dataset: str
    source: str
    path: str
    env_id: str | None
    notes: tuple[str, ...]
    episodes: int
    steps: int
    returns: Spread
    lengths: Spread
    reference: str | None
    score_mean: float | None
    terminated_share: float
    observation_dim: int
    constant_columns: tuple[int, ...]
    action_dim: int
    action_range: tuple[float, float]


def describe(episodes: Episodes, reference: Reference | None) -> Description:
    """Describe a dataset; `reference` are the returns that score 0 and 100, where there are such."""
    returns = episodes.returns
    return Description(
        dataset=episodes.dataset,
        source=episodes.source,
        path=episodes.path,
        env_id=episodes.env_id,
        notes=episodes.notes,
        episodes=len(episodes),
        steps=episodes.n_steps,
        returns=Spread.of(returns),
        lengths=Spread.of(episodes.lengths),
        reference=None if reference is None else reference.name,
        score_mean=None if reference is None else float(normalized_score(reference, returns).mean()),
        terminated_share=float(episodes.terminated.mean()),
        observation_dim=episodes.observation_dim,
        constant_columns=_constant_columns(episodes.observations),
        action_dim=episodes.action_dim,
        action_range=episodes.action_range(),
    )


def _constant_columns(observations: npt.NDArray[np.float32]) -> tuple[int, ...]:
    constant = np.ones(observations.shape[1], dtype=np.bool_)
    for rows in row_blocks(len(observations)):
        constant &= np.all(observations[rows] == observations[0], axis=0)
    return tuple(np.flatnonzero(constant).tolist())
