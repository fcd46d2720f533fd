"""The episodes that a policy was not trained on, read again from its run's dataset."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import yaml

from ..base.errors import DataError, UsageError, one_line
from ..base.files import read_small
from ..envs.data.draws import draw_weights
from ..envs.data.episodes import Episodes, held_out
from ..envs.load import OF_THE_TABLE, load_task
from ..envs.local.behavior import action_noise_variance
from .card import PolicyCard

# Settings of a run that `load_task` takes.
READING = "env_id env_kwargs clip_actions max_episode_steps local_steps actions columns observation_keys".split()
SAME_MEAN = 1e-6  # relative difference of the same mean return on another processor


@dataclass(frozen=True)
class HeldOut:
    """Episodes that a policy is not trained on."""

    episodes: Episodes
    floor: float | None = None  # the mean noise variance of the behavior policy in their states, if known
    weights: npt.NDArray[np.float64] | None = None  # (E,), of their errors; None: all the same


def hold_out(
    episodes: Episodes, share: float, seed: int, draws: str = "uniform", draw_share: float = 1.0
) -> HeldOut | None:
    """The episodes that `envs.data.episodes.held_out` chooses, with their noise variance if known; None: too few.

    The drawn distribution is the dataset: each has the weight with which it would be drawn. If all of those weights are
    0, the best of the held-out episodes count.
    """
    chosen = held_out(len(episodes), share, seed)
    if not chosen.size:
        return None
    weights = draw_weights(episodes.returns, episodes.lengths, draws, draw_share)[chosen]
    if not weights.any():
        weights = draw_weights(episodes.returns[chosen], episodes.lengths[chosen], "best", draw_share)
    floor, variance = None, action_noise_variance(episodes)
    if variance is not None:
        of_steps = np.repeat(weights, episodes.lengths[chosen])
        floor = float(np.average(variance[episodes.rows(chosen)], weights=of_steps))
    return HeldOut(episodes.take(chosen), floor, weights)


def held_out_episodes(run: Path, card: PolicyCard) -> HeldOut | None:
    """The held-out episodes of a run, read again from its dataset; None if it has none.

    `run` is a run folder or a policy folder in it, `card` is of a policy of the run.

    Raises:
        UsageError: there is no run, or its configuration cannot be read.
        DataError: the data cannot be read, or their mean return differs from that of the training data.
    """
    if not card.held_out:
        return None
    return hold_out(all_episodes(run, card), card.held_out, card.seed, card.draws, card.draw_share)


def all_episodes(run: Path, card: PolicyCard) -> Episodes:
    """The dataset of a run, as it was in training. Arguments and errors are those of `held_out_episodes`."""
    file = next((file for folder in (run, run.resolve().parent) if (file := folder / "config.yaml").is_file()), None)
    if file is None:
        raise UsageError(f"{run} is not in a run folder")
    try:
        data = yaml.safe_load(read_small(file))["data"]
        source = card.same_source(data["source"])
        try:
            episodes = load_task(data["env"], source, **{name: data[name] for name in READING if name in data})[1]
        except DataError as error:
            raise DataError(f"{error}{if_moved(source)}") from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(f"{file} is not the configuration of a run ({one_line(error)})") from error
    now, then = float(episodes.returns.mean()), card.data_returns.get("mean")
    if then is not None and not math.isclose(now, then, rel_tol=SAME_MEAN):
        raise DataError(
            f"{run}: {episodes.dataset} differs from the training data (mean return {now:.7g}, then {then:.7g}); train "
            "the run again"
        )
    return episodes


def if_moved(source: object) -> str:
    """What ends the message of data that cannot be read where a run says; nothing if they are there."""
    gone = isinstance(source, str) and source not in OF_THE_TABLE and not Path(source).exists()
    return "; where they have moved, train --resume --source NEW tells the run" if gone else ""
